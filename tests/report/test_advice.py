from dataclasses import replace

from autosplit.report.advice import advise
from autosplit.types import Timing
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
