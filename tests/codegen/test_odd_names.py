"""Names that Python, a string or a file system would stumble over stay names, never code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn

from autosplit.codegen import FLAT, CodegenOptions, StageSource
from tests.codegen.chain import Chain, compare, from_module, make

WIDTH = 4
CODE = '"""\nraise SystemExit(1)\n#'
ODD = (
    "class",
    "None",
    "1st",
    "7",
    "it's",
    'say "x"',
    "back\\slash",
    "line\nbreak",
    "tab\there",
    "größe",
    "ключ",
    "\N{MATHEMATICAL BOLD SMALL X}",
    "{braces}",
    "%s",
    "__import__('os')",
    CODE,
    "x" * 10_000,
)


class Block(nn.Module):
    """Layers, a parameter and a buffer, each under a name to be tried."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.kinds = nn.ModuleDict()
        self.kinds._modules[name] = nn.Linear(WIDTH, WIDTH)
        self.gains = nn.ParameterDict()
        self.gains._parameters[name] = nn.Parameter(torch.rand(WIDTH))
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.kinds._modules[self.name](x))
        return y * self.gains._parameters[self.name]


class Model(nn.Module):
    """Two such blocks, so that there is one in each of two stages."""

    def __init__(self, name: str, kind: type[Block] = Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind(name) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def stages(model: nn.Module, options: CodegenOptions | None = None, count: int = 2) -> Chain:
    torch.manual_seed(0)
    return make(from_module(model, (torch.randn(2, WIDTH),)), count, options=options)


def check(chain: Chain) -> None:
    """Check that the text is valid and calls nothing by a name of the model, and is exact."""
    for source in chain.sources:
        calls = [node for node in ast.walk(ast.parse(source.text)) if isinstance(node, ast.Call)]
        called = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
        assert not {"__import__", "SystemExit"} & called
    found = compare(chain, train=True, batch_size=3)
    assert found.output == 0
    assert max(found.gradient.values()) == 0


@pytest.mark.parametrize("options", [None, FLAT], ids=["readable", "flat"])
@pytest.mark.parametrize("name", ODD, ids=lambda name: ascii(name)[:20])
def test_any_name_of_a_module_or_parameter(
    name: str, options: CodegenOptions | None, check_style: Callable[[Iterable[StageSource]], None]
) -> None:
    chain = stages(Model(name), options)
    check(chain)
    if len(name) < 80:
        check_style(chain.sources)


@pytest.mark.parametrize("name", ODD, ids=lambda name: ascii(name)[:20])
def test_any_name_of_a_class(name: str) -> None:
    check(stages(Model("layer", type(name, (Block,), {}))))


class Cases(nn.Module):
    """Modules, classes and values that differ in case alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Block("up")
        self.Layer = type("block", (Block,), {})("Up")
        self.LAYER = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        X = self.layer(x) + 1  # noqa: N806
        y = self.Layer(x) * X
        Y = self.LAYER(y)  # noqa: N806
        return X + y * Y + x


@pytest.mark.parametrize("count", [1, 2, 3])
def test_names_that_differ_in_case_alone(count: int) -> None:
    chain = stages(Cases(), count=count)
    check(chain)
    text = "".join(source.text for source in chain.sources)
    assert "self.layer" in text
    assert "self.Layer" in text
    assert "self.LAYER" in text


class Shadows(nn.Module):
    """Variables called like what the file imports or Python offers, or in another alphabet."""

    def __init__(self) -> None:
        super().__init__()
        self.nn, self.torch = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.math = nn.Linear(WIDTH, WIDTH)

    def forward(self, F: Tensor) -> Tensor:  # noqa: N803
        torch_ = self.torch(F)
        nn = self.nn(torch_) * F
        größe = nn + torch_
        range, super = größe.chunk(2, -1)  # noqa: A001
        zip = self.math(nn) * größe  # noqa: A001
        return zip[..., :2] * range + super


def test_variables_never_hide_what_the_file_needs() -> None:
    check(stages(Shadows()))
