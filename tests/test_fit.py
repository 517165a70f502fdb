"""Where nothing fits, the smallest changes that would are computed, not guessed."""

import dataclasses
import re

import pytest

from autosplit.errors import InfeasibleError
from autosplit.planner import plan
from autosplit.types import PlanRequest
from autosplit.units import parse_bytes
from tests.builders import profile

ASK = PlanRequest(2, 4, schedule="1f1b", optimizer="sgd")


def sized(rows=4, **fields):
    measured = profile([1.0] * 6, **fields)
    return dataclasses.replace(measured, model=dataclasses.replace(measured.model, batch_size=rows))


def hint(measured, request):
    with pytest.raises(InfeasibleError) as caught:
        plan(measured, request)
    return caught.value


def test_activations_that_do_not_fit():
    measured = sized(saved_bytes=[1000] * 6)
    request = dataclasses.replace(ASK, memory_bytes=3500)
    error = hint(measured, request)
    assert "no 2-stage plan fits 3.42 KiB per device" in error.message
    assert "of activations with" in error.cause
    assert "--recompute auto" in error.hint
    assert "--batch-size 2 (now 4)" in error.hint
    assert plan(measured, dataclasses.replace(request, recompute="auto"))
    # More stages hold more micro-batches in flight: here they do not help.
    assert "--stages" not in error.hint


def test_more_stages_share_the_state():
    measured = sized(param_bytes=[1000] * 6)
    request = dataclasses.replace(ASK, memory_bytes=4500)
    error = hint(measured, request)
    stages = int(re.search(r"--stages (\d+)", error.hint)[1])
    assert stages == 3
    assert plan(measured, dataclasses.replace(request, stages=stages))


def test_devices_of_the_size_that_is_named_are_enough_and_hardly_smaller_ones():
    measured = sized(param_bytes=[1000, 100, 500, 700, 300, 900], saved_bytes=[37] * 6)
    error = hint(measured, dataclasses.replace(ASK, memory_bytes=2500))
    named = parse_bytes(re.search(r"devices of (.*B)", error.hint)[1])
    # The size is written with three digits.
    assert plan(measured, dataclasses.replace(ASK, memory_bytes=int(1.01 * named)))
    with pytest.raises(InfeasibleError):
        plan(measured, dataclasses.replace(ASK, memory_bytes=int(0.97 * named)))


def test_state_is_not_made_smaller_by_rows():
    error = hint(sized(param_bytes=[1000] * 6), dataclasses.replace(ASK, memory_bytes=3000))
    assert "--batch-size" not in error.hint
    assert "--recompute" not in error.hint


def test_gpipe_holds_all_microbatches():
    measured = sized(saved_bytes=[100] * 6)
    request = dataclasses.replace(ASK, microbatches=16, schedule="gpipe", memory_bytes=1500)
    assert "--schedule 1f1b" in hint(measured, request).hint


def test_one_layer_too_large_says_which_and_by_how_much():
    measured = sized(param_bytes=[0, 0, 5000, 0, 0, 0])
    error = hint(measured, dataclasses.replace(ASK, memory_bytes=4000))
    assert "l2 alone needs 9.77 KiB, 5.86 KiB more than a device has" in error.cause


def test_a_smaller_microbatch_is_tried_where_one_layer_is_too_large():
    measured = sized(saved_bytes=[0, 0, 6000, 0, 0, 0])
    error = hint(measured, dataclasses.replace(ASK, memory_bytes=4000))
    assert "--batch-size 2" in error.hint or "--batch-size 1" in error.hint


def test_without_an_explanation_nothing_is_tried():
    with pytest.raises(InfeasibleError) as caught:
        plan(
            sized(saved_bytes=[1000] * 6),
            dataclasses.replace(ASK, memory_bytes=3500),
            explain=False,
        )
    assert caught.value.hint is None


def test_a_layer_that_fits_when_it_is_recomputed_is_not_refused():
    """Its activations are kept for one micro-batch at a time, not for all in flight."""
    measured = profile([1.0] * 4, saved_bytes=[10, 400, 10, 10])
    request = dataclasses.replace(ASK, memory_bytes=1000, schedule="gpipe", microbatches=8)
    assert "l1 alone needs" in hint(measured, request).cause
    for recompute in ("auto", "all"):
        found = plan(measured, dataclasses.replace(request, recompute=recompute))
        assert max(found.memory_by_rank) <= 1000
