"""Small models, each with one thing that is hard to trace."""

from __future__ import annotations

import dataclasses
from collections import namedtuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

Pair = namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Result:
    logits: torch.Tensor
    hidden: list[torch.Tensor]
    extra: torch.Tensor | None = None


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.lin = nn.Linear(width, width)

    def forward(self, x):
        return x + self.lin(self.norm(x))


class Reused(nn.Module):
    """One block called three times, and a second name for a layer."""

    def __init__(self):
        super().__init__()
        self.block = Block()
        self.first = nn.Linear(8, 8)
        self.second = self.first

    def forward(self, x):
        x = self.first(x)
        for _ in range(3):
            x = self.block(x)
        return self.second(x)


class RootState(nn.Module):
    """Parameters at the root and in lists, a non-persistent buffer, an unregistered tensor."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(8))
        self.gains = nn.ParameterList([torch.rand(8) for _ in range(2)])
        self.named = nn.ParameterDict({"shift": nn.Parameter(torch.rand(8))})
        self.register_buffer("offset", torch.rand(8), persistent=False)
        self.loose = torch.rand(8)

    def forward(self, x):
        for gain in self.gains:
            x = x * gain
        return x * self.scale + self.named["shift"] + self.offset + self.loose


class InPlace(nn.Module):
    """Writes through a view, into an index, and with an in-place activation."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.a(x).clone()
        y[:, 0] = 1.0
        half = y[:, 4:]
        half.mul_(2)
        return self.b(self.act(y)) + y


class Modes(nn.Module):
    """Rates that follow the mode, regions of other global state."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = F.dropout(self.a(x), 0.3, self.training)
        with torch.no_grad():
            y = x * 2
        with torch.autocast("cpu", torch.bfloat16):
            z = self.b(x + y)
        return z.float()


class ModeBranch(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        x = self.lin(x)
        return x * 2 + 1 if self.training else x


class Structured(nn.Module):
    """Keyword inputs with None and a nested pair; dataclass, named tuple and dict outputs."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, pair, *, bias=None, flag=True):
        left, right = pair["both"]
        x = self.lin(left + right)
        x = x if bias is None else x + bias
        return {"result": Result(x, [left, x]), "pair": Pair(x, None), "flag": flag}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 6, num_layers=2, batch_first=True, bidirectional=True, proj_size=3)
        self.gru = nn.GRU(6, 5)
        self.rnn = nn.RNN(5, 4, nonlinearity="relu")

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        y, _ = self.gru(y)
        y, last = self.rnn(y)
        return y, h, c, last


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = self.encoder(x)
        return self.attention(x, x, x)[0]


class Norms(nn.Module):
    """Batch norm as a layer and as a function; both update their statistics."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x):
        return F.batch_norm(self.norm(x), self.mean, self.var, training=self.training)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool):
        super().__init__()
        self.a, self.b = Block(), Block()
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.b, self.a(x), use_reentrant=self.reentrant)


class Hooked(nn.Module):
    """A weight-normalised layer and one with a hook: both are traced through."""

    def __init__(self):
        super().__init__()
        self.a = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.b = nn.Linear(8, 8)
        self.b.register_forward_hook(lambda module, args, output: output * 2)

    def forward(self, x):
        return self.b(self.a(x))


class Changed(nn.Module):
    """A layer whose settings no longer are those of its constructor."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.lin.weight = nn.Parameter(torch.rand(4, 8))
        self.lin.bias = None

    def forward(self, x):
        return self.lin(x)


class Unpacking(nn.Module):
    """Takes a tensor apart by iterating over it, and asks for sizes."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 24)

    def forward(self, x):
        batch, seq, _ = x.shape
        q, k, v = self.lin(x).view(batch, seq, 3, 8).permute(2, 0, 1, 3)
        return (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v * batch


class Sliced(nn.Module):
    """Calls a part of a Sequential, which is a new module on the same layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(Block() for _ in range(3)))

    def forward(self, x):
        return self.layers[1:](nn.ReLU()(x))


class Averaging(nn.Module):
    """Uses the batch size where no tensor at hand shows it."""

    def forward(self, x):
        return x.sum(0) / x.shape[0]


class ValueBranch(nn.Module):
    def forward(self, x):
        if x.mean() > 0:
            return x
        return -x


class NumpyInside(nn.Module):
    def forward(self, x):
        return x * float(x.detach().numpy().mean())


class Nonzero(nn.Module):
    def forward(self, x):
        return x[x > 0]


class Foreign(nn.Module):
    """Calls a layer that is hidden in a plain list."""

    def __init__(self):
        super().__init__()
        self.hidden = [nn.Linear(8, 8)]

    def forward(self, x):
        return self.hidden[0](x)


class HiddenParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = [nn.Parameter(torch.rand(8))]

    def forward(self, x):
        return x * self.hidden[0]


class Remembering(nn.Module):
    """Keeps an activation on itself, as many models do."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.last = None

    def forward(self, x):
        self.last = self.lin(x)
        return self.last


class Opaque:
    pass


class OpaqueOutput(nn.Module):
    def forward(self, x):
        return x, Opaque()


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        x = self.norm(self.lin(x))
        raise ValueError("no such luck")


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 * ctx.saved_tensors[0]


class CustomBackward(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        return Square.apply(self.lin(x))


class Counting(nn.Module):
    """Changes plain attributes in its forward."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        return self.linear(x) * (1.0 if self.steps < 1000 else 0.5)


class TakesGradients(nn.Module):
    """Returns the gradient of an energy."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        x = x.clone().requires_grad_(True)
        energy = torch.tanh(self.linear(x)).sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0]


class Freezing(nn.Module):
    """Freezes a weight for one of its uses, by method or by attribute."""

    def __init__(self, attribute=False):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.attribute = attribute

    def forward(self, x):
        if self.attribute:
            self.linear.weight.requires_grad = False
        else:
            self.linear.weight.requires_grad_(False)
        return self.linear(x)
