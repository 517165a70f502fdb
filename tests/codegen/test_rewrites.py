"""Every rewrite is listed and can be left out, and a stage says whether it may be cast."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from autosplit.codegen import REWRITES, without
from autosplit.modelspec.structure import walk
from tests.codegen.chain import Chain, compare, from_module, make
from tests.codegen.test_samples import CUTS, SEVERAL_STAGES, chain, traced

KINDS = {"fold", "helper", "loop", "named-number", "no-op", "shared-body", "causal-mask"}


def kinds(found: Chain) -> set[str]:
    """Return the kinds of rewrites that a chain lists, as the option spells them."""
    return {note.kind.replace(" ", "-") for source in found.sources for note in source.rewrites}


def test_options_are_named_like_what_the_report_lists() -> None:
    assert set(REWRITES) == KINDS
    listed = set().union(*(kinds(chain(name)) for name in CUTS))
    assert listed >= {"fold", "loop", "named-number", "shared-body", "made-again"}
    assert listed <= KINDS | {"made-again"}


@pytest.mark.parametrize("rewrite", REWRITES)
@pytest.mark.parametrize("name", ["encoder_decoder", "moe"])
def test_without_a_rewrite_stages_are_exact_and_do_not_list_it(name: str, rewrite: str) -> None:
    loaded, found = traced(name)
    other = make(loaded, at=CUTS[name], options=without([rewrite]), traced=found)
    assert rewrite not in kinds(other)
    assert "flat" not in kinds(other)
    difference = compare(other, train=False, batch_size=3)
    assert difference.output == 0
    for parameter, gradient in difference.gradient.items():
        assert gradient <= (1e-7 if parameter in SEVERAL_STAGES else 0), parameter


# ---------------------------------------------------------------- dtypes


def outputs_in(found: Chain, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Return what the model and its stages compute after both are cast."""
    model = copy.deepcopy(found.loaded.model).eval()
    found.load(model)
    for stage in found.stages:
        stage.to(dtype)
    model.to(dtype)
    args, kwargs = found.loaded.args, found.loaded.kwargs
    args = tuple(
        a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args
    )
    with torch.no_grad():
        expected = [tensor for _, tensor in walk(model(*args, **kwargs))]
        return expected, found.run(args, kwargs)


@pytest.mark.parametrize("name", CUTS)
def test_stages_of_the_samples_may_be_cast(name: str) -> None:
    found = chain(name)
    assert not [line for source in found.sources for line in source.fixed_at]
    expected, computed = outputs_in(found, torch.bfloat16)
    for one, other in zip(expected, computed, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


class Upcasts(nn.Module):
    """A norm that computes in float32 whatever the dtype of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.linear(x).to(torch.float32)
        return wide / wide.square().mean(-1, keepdim=True)


class Limits(Upcasts):
    """A mask filled with the smallest number of the dtype at hand."""

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).masked_fill(x > 0, torch.finfo(x.dtype).min)


@pytest.mark.parametrize("kind", [Upcasts, Limits])
def test_a_stage_that_may_not_be_cast_names_the_line(kind: type[nn.Module]) -> None:
    found = make(from_module(kind(), (torch.randn(2, 4),)), 1)
    (source,) = found.sources
    assert len(source.fixed_at) == 1
    assert source.fixed_at[0].startswith("test_rewrites.py:")
    assert f"Not to be cast: {source.fixed_at[0]} may name the traced dtype." in source.text
