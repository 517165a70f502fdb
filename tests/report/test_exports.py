"""Profiles and plans for other programs: spreadsheets, Graphviz, trace viewers."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from autosplit.report import advice, comparison
from autosplit.report.chrome import profile_trace
from autosplit.report.dot import graph_dot
from autosplit.report.sheet import profile_csv
from autosplit.types import Timing
from tests import builders, examples


def test_odd_names_stay_whole_in_csv_and_dot():
    source = examples.profile()
    odd = 'h "0",\nattn\\'
    layers = (replace(source.layers[0], name=odd), *source.layers[1:])
    renamed = replace(source, layers=layers, values=(), states=())
    assert list(csv.reader(profile_csv(renamed).splitlines(keepends=True)))[1][0] == odd
    assert r'"h \"0\",\nattn\\"' in graph_dot(renamed)


def test_every_edge_is_drawn():
    profile = builders.profile([1.0, 2.0, 3.0], {(0, 1, 2): 8, (1, 2): 4})
    text = graph_dot(replace(profile, order_edges=(("l0", "l2"),)))
    assert '"l0" -> "l1" [label="8 B"];' in text
    assert '"l0" -> "l2" [label="8 B"];' in text
    assert '"l0" -> "l2" [style=dashed];' in text


def test_a_trace_shows_forwards_then_backwards_without_gaps():
    events = profile_trace(builders.profile([1.0, 2.0]))["traceEvents"][1:]
    assert [(e["name"], e["cat"], e["ts"], e["dur"]) for e in events] == [
        ("l0", "forward", 0.0, 1e6),
        ("l1", "forward", 1e6, 2e6),
        ("l1", "backward", 3e6, 4e6),
        ("l0", "backward", 7e6, 2e6),
    ]
    forward_only = profile_trace(builders.profile([1.0, 2.0], training=False))
    assert len(forward_only["traceEvents"]) == 3


def test_precision_narrows_with_samples_and_widens_with_spread():
    source = builders.profile([1.0, 1.0])

    def spread(spread_s, samples):
        timing = Timing(1.0, spread_s, samples)
        layers = tuple(replace(layer, forward=timing) for layer in source.layers)
        return advice.precision(replace(source, layers=layers))

    assert spread(0.0, 10) == 0.0
    assert spread(0.1, 40) == pytest.approx(spread(0.1, 10) / 2)
    assert spread(0.2, 10) == pytest.approx(2 * spread(0.1, 10))


def test_a_profile_equals_itself():
    profile = examples.profile()
    whole, *modules = comparison.differences(profile, profile, depth=1)
    assert whole.ratio == 1.0
    assert [module.path for module in modules] == ["embed", "h", "head"]
    assert sum(m.seconds[0] for m in modules) == pytest.approx(whole.seconds[0])
    assert sum(m.saved_bytes[1] for m in modules) == whole.saved_bytes[1]
    assert len(comparison.differences(profile, profile, depth=9)) == 9


def test_what_only_one_profile_has_stands_alone():
    profile = examples.profile()
    short = replace(profile, layers=profile.layers[:-1], values=(), states=())
    module = comparison.differences(short, profile)[-1]
    assert (module.path, module.ratio, module.seconds[0]) == ("head", None, None)
