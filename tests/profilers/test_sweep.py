"""Several input sizes in one profile: exact where measured, on a line in between."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosplit import workflow
from autosplit.errors import UsageError
from autosplit.profilers import ProfileOptions
from autosplit.types import LayerSample, ModelRef, Profile, SweepPoint
from autosplit.types.sweep import mixture
from tests import builders

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
QUICK = ProfileOptions(device="cpu", min_repetitions=2, max_repetitions=2)
H200 = ProfileOptions(analytic="h200")

pytestmark = pytest.mark.timeout(120)


def spec(name: str) -> str:
    return f"{SAMPLES / name}.py:build"


def facts(profile: Profile) -> list[object]:
    """Return what does not depend on the clock."""
    return [
        profile.model,
        profile.fingerprint,
        [(layer.nodes, layer.saved, layer.flops) for layer in profile.layers],
        profile.storages,
        [replace(value, storage=None) for value in profile.values],
    ]


def test_at_a_measured_size_it_is_the_profile_of_that_size() -> None:
    swept = workflow.sweep(spec("mlp"), {"batch": (1, 4)}, QUICK)
    assert [point.sizes for point in swept.sweep] == [(("batch", 1),), (("batch", 4),)]
    assert swept.model.batch_size == 4
    for size in (1, 4):
        alone = workflow.profile(ModelRef(spec=spec("mlp"), batch_size=size), QUICK)
        assert facts(swept.at(batch_size=size)) == facts(alone)
    # Everything but time is proportional to rows in this model, so the line is exact.
    between = workflow.profile(ModelRef(spec=spec("mlp"), batch_size=3), QUICK)
    assert facts(swept.at(batch_size=3)) == facts(between)


def test_modelled_sizes_equal_those_modelled_alone() -> None:
    swept = workflow.sweep(spec("gpt"), {"batch": (2, 4), "seq": (16, 32)}, H200)
    assert len(swept.sweep) == 4
    alone = workflow.profile(ModelRef(spec=spec("gpt"), batch_size=2), H200)
    found = swept.at(batch_size=2)
    # Small operations may join another layer at another size; all in all it is the same.
    assert (found.model, found.fingerprint) == (alone.model, alone.fingerprint)
    assert found.storages == alone.storages
    assert sum(layer.flops or 0 for layer in found.layers) == sum(
        layer.flops or 0 for layer in alone.layers
    )
    seconds = [sum(layer.forward.median_s for layer in p.layers) for p in (found, alone)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.02)
    short = swept.at(batch_size=2, seq=16)
    assert sum(v.nbytes for v in short.values) < sum(v.nbytes for v in found.values)


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("mlp", {"seq": (8,)}, "--seq-len cannot vary"),
        ("gpt", {"seq": (32, 100_000)}, "the model does not run at batch 4, seq 100000"),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    name: str, sizes: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        workflow.sweep(spec(name), sizes, QUICK)


def test_models_on_meta_are_swept_too() -> None:
    ref = ModelRef(spec=spec("mlp"), on_meta=True)
    assert len(workflow.sweep(ref, {"batch": (1, 2)}, H200).sweep) == 2


# ---------------------------------------------------------------- in between


def grid(cost: dict[tuple[int, int], float]) -> tuple[SweepPoint, ...]:
    return tuple(
        SweepPoint((("batch", batch), ("seq", seq)), (LayerSample(seconds, 2 * seconds),))
        for (batch, seq), seconds in cost.items()
    )


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 8), st.integers(16, 64))
def test_costs_in_proportion_to_each_size_are_met(a: float, b: float, batch: int, seq: int) -> None:
    def cost(batch: int, seq: int) -> float:
        return a + b * batch * seq

    points = grid({(n, m): cost(n, m) for n in (1, 2, 8) for m in (16, 64)})
    found = mixture(points, {"batch": batch, "seq": seq})
    assert sum(share for _, share in found) == pytest.approx(1)
    predicted = sum(point.layers[0].forward_s * share for point, share in found)
    assert predicted == pytest.approx(cost(batch, seq))


def test_a_size_outside_or_unknown_is_refused() -> None:
    source = builders.profile([1.0])
    with pytest.raises(UsageError, match="of one size"):
        source.at(batch_size=2)
    points = tuple(replace(p, storage_bytes=(0,)) for p in grid({(1, 16): 1.0, (4, 16): 4.0}))
    swept = replace(source, sweep=points)
    assert swept.at(batch_size=2).layers[0].forward.median_s == pytest.approx(2.0)
    assert swept.at(batch_size=2).layers[0].backward.median_s == pytest.approx(4.0)
    with pytest.raises(UsageError, match="measured from 1 to 4") as caught:
        swept.at(batch_size=5)
    assert "profile again" in str(caught.value.hint)
    with pytest.raises(UsageError, match="no size 'tgt'"):
        swept.at(tgt=3)


def test_a_sweep_is_searched_and_its_plan_exported(tmp_path: Path) -> None:
    from autosplit.types import PlanRequest

    swept = workflow.sweep(spec("mlp"), {"batch": (1, 2, 4)}, H200)
    path = tmp_path / "profile.json"
    workflow.save(swept, path)
    request = PlanRequest(stages=2, microbatches=1)
    found = workflow.search([path], request, devices=2, global_batch=8)
    tried = {candidate.microbatch_size for candidate in found.candidates}
    assert tried == {1, 2, 4}
    small = next(c.plan for c in found.candidates if c.microbatch_size == 2 and c.plan)
    assert small.model.batch_size == 2
    workflow.timeline(replace(small, profile_path=str(path)))
    workflow.export(replace(found.best, profile_path=str(path)), tmp_path / "pipeline")
    assert (tmp_path / "pipeline" / "routing.json").exists()
