from dataclasses import replace

from autosplit.report.advice import advise, total_s
from autosplit.types import Timing, WholeModel
from tests import examples


def with_times(forward_s, backward_s):
    times = {"forward": Timing(forward_s), "backward": Timing(backward_s)}
    layers = tuple(replace(layer, **times) for layer in examples.profile().layers)
    return examples.profile(layers=layers)


def test_a_heavy_layer_bounds_every_plan():
    assert advise(examples.profile()) == (
        "layer head alone is 50 % of the total: no plan beats 2.01×",
    )


def test_even_layers_need_no_advice():
    assert advise(with_times(1.0, 2.0)) == ()


def test_layers_that_take_no_time_need_no_advice():
    assert advise(with_times(0.0, 0.0)) == ()


def whole(ratio, offset_s=0.0):
    """A profile whose layers sum to so much of the whole step."""
    found = examples.profile()
    step_s = total_s(found) / ratio
    return replace(found, whole=WholeModel(step_s / 3, step_s * 2 / 3, ratio, offset_s))


def test_layers_that_do_not_sum_to_the_whole_are_explained():
    assert len(advise(whole(1.09))) == 1
    slower = advise(whole(0.8))[0]
    assert slower.startswith("layers sum to 0.80× the whole, which runs slower in one piece")
    entered = advise(whole(1.2, offset_s=1.2e-3))[0]
    assert "plans take 1.20 ms off each" in entered
    assert "leaves" not in entered
    assert "which leaves 1.50×; --calibrate" in advise(whole(1.5, offset_s=0.0))[0]
