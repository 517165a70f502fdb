"""What does not fit is refused with what is missing and the smallest change that would fit."""

import pytest

from autosplit.errors import ExitCode, InfeasibleError
from tests.builders import profile
from tests.planning import plan


def test_more_stages_than_layers():
    with pytest.raises(InfeasibleError) as caught:
        plan(profile([1.0] * 3), 4)
    assert "4 stages" in caught.value.message
    assert "3 layers" in caught.value.cause
    assert caught.value.exit_code == ExitCode.INFEASIBLE


def test_a_layer_that_is_too_large_is_named_with_what_is_missing():
    measured = profile([1.0] * 3, param_bytes=[10, 2**20, 10])
    with pytest.raises(InfeasibleError) as caught:
        plan(measured, 2, optimizer="sgd", memory_bytes=2**20)
    assert "l1 alone needs 2.00 MiB, 1.00 MiB more" in caught.value.cause


def test_the_smallest_change_that_fits_is_told():
    measured = profile([1.0] * 8, saved_bytes=[1000] * 8, param_bytes=[100] * 8)
    with pytest.raises(InfeasibleError) as caught:
        plan(measured, 2, 4, schedule="gpipe", optimizer="sgd", memory_bytes=15_000)
    assert "--schedule 1f1b" in caught.value.hint
    assert "--recompute auto" in caught.value.hint
    assert "--stages 3" in caught.value.hint
    assert "devices of 16.4 KiB" in caught.value.hint
    assert "micro-batches in flight" in caught.value.cause
    assert plan(measured, 2, 4, optimizer="sgd", memory_bytes=15_000).stages


def test_recomputation_makes_it_fit():
    measured = profile([1.0, 2.0, 3.0, 1.0], saved_bytes=[1000] * 4)
    with pytest.raises(InfeasibleError):
        plan(measured, 2, 4, schedule="gpipe", memory_bytes=6_000)
    found = plan(measured, 2, 4, schedule="gpipe", memory_bytes=6_000, recompute="auto")
    assert all(stage.memory.total_bytes <= 6_000 for stage in found.stages)
    assert any(stage.recompute for stage in found.stages)
    assert "by whole stages" in " ".join(found.notes)
    everything = plan(measured, 2, 4, schedule="gpipe", memory_bytes=6_000, recompute="all")
    assert all(stage.recompute == stage.layers for stage in everything.stages)
    assert found.objective_s <= everything.objective_s * (1 + 1e-9)
