"""Modules that are hard to write: exact in every form, and never anything but code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import cache

import pytest
import torch
from torch import nn

from autosplit.codegen import FLAT, CodegenOptions, StageSource
from autosplit.errors import AutosplitError
from autosplit.modelspec import LoadedModel
from autosplit.tracers import Trace, trace
from tests.codegen.chain import Chain, compare, from_module, make
from tests.codegen.edges import EDGES, WIDTH, Attends, Shortcuts, TwoBodies

SUMMED_OVER_STAGES = 1e-6


@cache
def traced(kind: type[nn.Module]) -> tuple[LoadedModel, Trace]:
    torch.manual_seed(0)
    loaded = from_module(kind(), (torch.randn(4, WIDTH),))
    return loaded, trace(loaded)


def chain(kind: type[nn.Module], count: int, options: CodegenOptions | None) -> Chain:
    loaded, found = traced(kind)
    try:
        return make(loaded, count, options=options, traced=found)
    except AutosplitError as error:
        if error.message.startswith("stage"):
            raise
        pytest.skip(error.message)


@pytest.mark.parametrize("options", [None, FLAT], ids=["readable", "flat"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("kind", EDGES, ids=lambda kind: kind.__name__)
def test_edges_are_exact(
    kind: type[nn.Module],
    count: int,
    options: CodegenOptions | None,
    check_style: Callable[[Iterable[StageSource]], None],
) -> None:
    made = chain(kind, count, options)
    assert not [note for s in made.sources for note in s.rewrites if note.kind == "flat"]
    check_style(made.sources)
    for train in (True, False):
        for batch_size in (None, 3):
            found = compare(made, train=train, batch_size=batch_size)
            assert found.output == 0
            assert found.buffer == 0
            assert max(found.gradient.values(), default=0) <= SUMMED_OVER_STAGES


@pytest.mark.parametrize("kind", EDGES, ids=lambda kind: kind.__name__)
def test_names_of_the_model_are_data(kind: type[nn.Module]) -> None:
    for source in chain(kind, 1, None).sources:
        calls = [n.func for n in ast.walk(ast.parse(source.text)) if isinstance(n, ast.Call)]
        assert not [f for f in calls if isinstance(f, ast.Name) and f.id in ("quit", "exec")]


def test_calls_that_lack_an_argument_share_class_and_function() -> None:
    (source,) = chain(Attends, 1, None).sources
    assert source.text.count("class Attention") == source.text.count("def mix") == 1
    assert "forward(self, x, memory, mask=None)" in source.text
    assert "self.over(y, x)" in source.text
    assert "self.masked(y, y, mask)" in source.text
    apart = chain(Attends, 1, CodegenOptions(variants=False)).sources[0]
    assert apart.text.count("class Attention") == apart.text.count("def mix") + 1 == 3


def test_a_second_body_is_called_by_its_result() -> None:
    (source,) = chain(TwoBodies, 1, None).sources
    assert "self.two.forward_total(self.two(x))" in source.text


def test_a_layer_that_differs_is_given_to_the_constructor() -> None:
    (source,) = chain(Shortcuts, 1, None).sources
    assert source.text.count("class Residual") == source.text.count("class Pair") == 1
    assert "def __init__(self, out_features, shortcut):" in source.text
    assert "self.shortcut = shortcut" in source.text
    assert "Residual(8, nn.Identity())" in source.text
