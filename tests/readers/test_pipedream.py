"""PipeDream graphs: what they mean, and what is refused by line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autosplit.errors import DataError
from autosplit.readers import read
from autosplit.types import Profile

FIELDS = "forward_compute_time=1.0, backward_compute_time=2.0, "


def line(name: str, layer: str, activation: str = "8.000", parameters: str = "0.000") -> str:
    return f"{name} -- {layer} -- {FIELDS}activation_size={activation}, parameter_size={parameters}"


GRAPH = "\n".join(
    [
        line("node1", "Input0", "4.0"),
        line("node2", "Linear(4, 4)", parameters="64.000"),
        line("node3", "LSTM(4, 4)", "[8.0; 2.0; 2.0]"),
        line("node4", "__getitem__(0)"),
        line("node5", "__getitem__(1)", "2.0"),
        line("node6", "Add"),
        "\tnode1 -- node2",
        "\tnode2 -- node3",
        "\tnode3 -- node4",
        "\tnode3 -- node5",
        "\tnode2 -- node6",
        "\tnode4 -- node6",
    ]
)


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def write(text: str) -> Any:
        path = tmp_path / "graph.txt"
        path.write_text(text)
        return read(path)

    return write


def test_graph_becomes_a_profile(load: Any) -> None:
    profile = load(GRAPH)
    assert isinstance(profile, Profile)
    assert profile.device.clock == "file"
    assert [layer.name for layer in profile.layers] == ["node2", "node3", "node4", "node6"]
    assert profile.layer["node2"].forward.median_s == pytest.approx(1e-3)
    assert profile.layer["node2"].backward.median_s == pytest.approx(2e-3)
    values = {value.name: value for value in profile.values}
    assert values["node1"].producer is None
    assert values["node2"].consumers == ("node3", "node6")
    assert values["node3[0]"].nbytes == 8
    assert values["node3[0]"].consumers == ("node4",)
    assert values["node6"].output
    assert [state.nbytes for state in profile.states] == [64]
    assert "node5" not in profile.layer, "nothing reads that tensor"


def test_order_of_lines_does_not_matter(load: Any) -> None:
    rows = GRAPH.split("\n")
    shuffled = load("\n".join([*rows[:6][::-1], *rows[6:][::-1]]))
    assert {layer.name for layer in shuffled.layers} == {"node2", "node3", "node4", "node6"}
    names = [layer.name for layer in shuffled.layers]
    assert names.index("node3") < names.index("node4") < names.index("node6")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\tnode4 -- node6", "\tnode4 -- node9", "line 12: there is no node node9"),
        ("\tnode4 -- node6", "\tnode4 -- node2", "form a cycle"),
        ("\tnode4 -- node6", "nonsense", "line 12 is neither a node nor an edge"),
        ("__getitem__(0)", "__getitem__(5)", "line 4: __getitem__(5) of node3"),
        ("forward_compute_time=1.0", "forward_compute_time=nan", "line 1: forward_compute_time"),
        ("forward_compute_time=1.0", "forward_compute_time=-1", "line 1: forward_compute_time"),
        ("forward_compute_time=1.0", "forward_compute_time=x", "expected a number, found 'x'"),
        (", parameter_size=64.000", "", "line 2: field 'parameter_size' is missing"),
        ("[8.0; 2.0; 2.0]", "[8.0; ; 2.0]", "line 3: activation_size"),
        ("node2 -- Linear", "node3 -- Linear", "node3 appears twice"),
    ],
)
def test_faults_are_refused_by_line(load: Any, old: str, new: str, message: str) -> None:
    assert old in GRAPH
    with pytest.raises(DataError) as caught:
        load(GRAPH.replace(old, new, 1))
    assert message in str(caught.value)
