"""Lists that a forward fills and empties in loops stay lists."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sample_models import unet
from tests.codegen.chain import Chain, compare, from_module, make

WIDTH = 4


class Balanced(nn.Module):
    """Adds up what each layer says about itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        losses = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            losses.append(x.square().mean(-1))
        return x, sum(losses)


class Twice(nn.Module):
    """Reads one element of a list by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            seen.append(x)
        return torch.cat(seen, -1) + torch.cat([seen[1]] * 4, -1)


class Optional(nn.Module):
    """One module called in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(x), x)


class Inner(nn.Module):
    """Does other things when it is given a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        if gate is None:
            return torch.tanh(self.linear(x)).square() - x
        return torch.sigmoid(gate * 2) * self.linear(x.abs())


def exact(chain: Chain) -> None:
    for train in (True, False):
        found = compare(chain, train=train, batch_size=3)
        assert found.output == 0
        assert max(found.gradient.values(), default=0) <= 1e-7


def stages(model: nn.Module, count: int) -> Chain:
    torch.manual_seed(0)
    return make(from_module(model, (torch.randn(2, WIDTH),)), count)


def test_skips_are_pushed_and_popped() -> None:
    chain = make(from_module(unet.build(), unet.example_inputs(2)), 1)
    text = chain.sources[0].text
    assert "            skips.append(x)\n            x = down(x)\n" in text
    assert "x = up(x, skips.pop())" in text
    exact(chain)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_losses_are_summed_over_stages(count: int) -> None:
    chain = stages(Balanced(), count)
    assert "sum(losses)" in chain.sources[-1].text or "sum([*losses, " in chain.sources[-1].text
    exact(chain)


@pytest.mark.parametrize("count", [1, 2])
def test_an_element_read_by_itself_is_right(count: int) -> None:
    exact(stages(Twice(), count))


def test_a_second_body_is_called_by_its_argument() -> None:
    chain = stages(Optional(), 1)
    assert "def forward_with_gate(self, x, gate):" in chain.sources[0].text
    exact(chain)


def test_numbers_that_rise_evenly_are_written_once() -> None:
    layers = [nn.Linear(WIDTH * i, WIDTH * (i + 1)) for i in range(1, 6)]
    chain = stages(nn.Sequential(nn.Identity(), nn.Sequential(*layers)), 1)
    assert "nn.Linear(4 + 4 * i, 8 + 4 * i) for i in range(5)" in chain.sources[0].text
    exact(chain)
