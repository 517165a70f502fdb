"""Small modules, each hard to write in one way."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.codegen.sharing import WIDTH, Attends, Shortcuts, Variants


class Two(nn.Module):
    """Two bodies behind one flag."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.b = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, residual: bool = False) -> Tensor:
        y = self.b(torch.relu(self.a(x)))
        return y + x if residual else torch.tanh(y)


class TwoBodies(nn.Module):
    """One module called in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.two = Two()
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.two(self.two(x), residual=True))


class Borrower(nn.Module):
    """Calls a module it does not own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, project: nn.Module, scale: Tensor) -> Tensor:
        return project(self.inner(x)) * scale


class Lender(nn.Module):
    """Hands a module and a parameter to another module."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.borrower = Borrower()

    def forward(self, x: Tensor) -> Tensor:
        return self.borrower(x, self.project, self.scale)


class Scaled(nn.Module):
    """Takes a parameter of its caller."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.linear(x) * scale


class Alternating(nn.Module):
    """Blocks of two kinds in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([kind() for _ in range(4) for kind in (Two, Scaled)])
        self.scale = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x) if index % 2 == 0 else layer(x, self.scale)
        return x


class Ambient(nn.Module):
    """Sections without gradients and under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.a(x)
        with torch.autocast("cpu", torch.bfloat16):
            y = self.b(x)
            y = self.c(y)
        return y.float() + h


class Skips(nn.Module):
    """Results kept in a Python list and used in reverse."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.down:
            x = torch.relu(down(x))
            skips.append(x)
        for up in self.up:
            x = up(torch.cat([x, skips.pop()], 1))
        return x


class InPlace(nn.Module):
    """Writes to values, to a part of a value and to a buffer."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        h = self.linear(x)
        before = h * 2
        h.mul_(3)
        h += before
        h[:, 0] = 0.5
        part = h[:, 1:3]
        part.tanh_()
        return torch.cat([h, before], 1) * self.calls


class Draws(nn.Module):
    """Random draws whose order must stay, behind values that want to be written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Dropout(0.5), nn.Dropout(0.4)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.first(x) + 1]
        kept = self.second(self.linear(x))
        noise = torch.rand_like(x)
        return kept * parts[0] + F.dropout(x, 0.3, self.training) * noise


class Odd(nn.Module):
    """Names that are not attributes, or that Python or the file uses for something else."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.ModuleDict({"a-b": nn.Linear(WIDTH, WIDTH), '"); quit() #': nn.ReLU()})
        self.add_module("class", nn.Linear(WIDTH, WIDTH))
        self.add_module("__inner", nn.Linear(WIDTH, WIDTH))
        self.torch = nn.Linear(WIDTH, WIDTH)
        self.register_parameter("größe", nn.Parameter(torch.rand(WIDTH)))
        self.table = nn.ParameterDict({"x y": torch.rand(WIDTH), "lambda": torch.rand(WIDTH)})

    def forward(self, torch: Tensor) -> Tensor:
        self_ = torch * self.table["x y"] + self.table["lambda"]
        for kind in self.kinds.values():
            self_ = kind(self_)
        F = getattr(self, "class")(self_)  # noqa: N806
        return self.torch(getattr(self, "__inner")(F)) * self.größe


class Holder(nn.Module):
    """State of every kind: lists of parameters, buffers that are kept or not, a constant."""

    steps: Tensor
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.gains = nn.ParameterList(torch.rand(WIDTH) for _ in range(3))
        self.mix = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.register_buffer("steps", torch.ones(1, dtype=torch.int64))
        self.register_buffer("table", torch.rand(WIDTH), persistent=False)
        self.temperature = nn.Parameter(torch.tensor(0.5))
        self.fixed = torch.rand(WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.half_frozen = nn.Linear(WIDTH, WIDTH)
        self.half_frozen.weight.requires_grad_(False)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        for gain, mix in zip(self.gains, self.mix, strict=True):
            x = x + mix(x) * gain
        x = self.half_frozen(self.frozen(x)) * self.steps + self.table
        return x / self.temperature + self.fixed


class Tied(nn.Module):
    """One weight under two names, one module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.leave = nn.Linear(WIDTH, WIDTH, bias=False)
        self.leave.weight = self.enter.weight
        self.again = self.enter

    def forward(self, x: Tensor) -> Tensor:
        return self.again(torch.relu(self.leave(torch.relu(self.enter(x)))))


class Recurrent(nn.Module):
    """Results that are tuples in tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y, (h, c) = self.lstm(x.unsqueeze(1).expand(-1, 5, -1))
        z, _ = self.gru(y)
        best, _ = z.max(1)
        return best + h[0] * c[0]


class Dense(nn.Module):
    """Every layer reads all results before it."""

    def __init__(self, depth: int = 5) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.Linear(WIDTH * (i + 1), WIDTH) for i in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        seen = [x]
        for cell in self.cells:
            seen.append(torch.tanh(cell(torch.cat(seen, -1))))
        return torch.cat(seen, -1)


class Repeated(nn.Module):
    """One block over and over, whose first input is read again afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Two()

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for _ in range(5):
            h = self.block(h)
        return h - x


class Nested(nn.Module):
    """Lists in a list, and two lists walked together."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.ModuleList(
            nn.ModuleList([Two(), nn.Linear(WIDTH, WIDTH)]) for _ in range(3)
        )
        self.stack = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.ReLU(), Two()))

    def forward(self, x: Tensor) -> Tensor:
        for two, linear in self.pairs:
            x = linear(two(x)) + x
        return self.stack(x)


class Stack(nn.Sequential):
    """A sequence under a name of its own, with equal layers in a row."""

    def __init__(self) -> None:
        equal = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))
        super().__init__(nn.Linear(WIDTH, WIDTH), *equal, Two())


class Chained(nn.Module):
    """A sequence, of which one layer is also called in another way before."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack()
        self.plain = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)), Two())

    def forward(self, x: Tensor) -> Tensor:
        x = self.stack[4](x, residual=True) + self.plain[4](x, residual=True)
        return self.plain(self.stack(x))


class Half(nn.Module):
    """Weights of another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x).to(torch.bfloat16)).float()


EDGES = (
    TwoBodies,
    Lender,
    Alternating,
    Ambient,
    Skips,
    InPlace,
    Draws,
    Odd,
    Holder,
    Tied,
    Recurrent,
    Dense,
    Repeated,
    Nested,
    Chained,
    Variants,
    Attends,
    Shortcuts,
    Half,
)
