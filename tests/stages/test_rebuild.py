"""What is made again is the same, costs less than sending it, and has no gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from autosplit.errors import AutosplitError
from autosplit.program import Program, TensorSpec
from autosplit.stages import split
from tests.stages.symbolic import Step, assert_stages_compute_the_same, program_of
from tests.stages.test_split import cut_programs, in_order


@settings(max_examples=400, deadline=None)
@given(cut_programs())
def test_stages_that_rebuild_compute_what_the_program_computes(case):
    program, stage_of, count = case
    try:
        specs, routing = split(program, stage_of, count)
    except AutosplitError:
        with pytest.raises(AutosplitError):
            split(program, stage_of, count, again=False)
        return
    assert_stages_compute_the_same(program, specs, routing)
    plain, _ = split(program, stage_of, count, again=False)
    for spec, other in zip(specs, plain, strict=True):
        for name in set(spec.nodes) - set(other.nodes):
            node = program.node[name]
            assert not node.mutates
            assert not {f"s_{each}" for each in ("w", "tied", "frozen")} & set(node.inputs())


def wide(program: Program, name: str, **fields: object) -> Program:
    """Return the program with another value of a node."""
    nodes = [
        replace(node, value=replace(node.value, **fields)) if node.name == name else node
        for node in program.nodes
    ]
    return replace(program, nodes=tuple(nodes))


def chain(length: int) -> Program:
    """Return operations one after the other, then one that reads the last of them."""
    steps = [Step("op", (at,), sized=True) for at in range(length)]
    return program_of(1, [*steps, Step("op", (length,), (0,))], [length + 1])


def halves(program: Program) -> dict[str, int]:
    count = len(program.operations)
    return in_order(program, *[0] * (count - 1), 1)


def test_a_short_way_is_made_again_and_nothing_is_sent():
    program = chain(2)
    specs, routing = split(program, halves(program), 2)
    assert specs[1].nodes == ("n0", "n1", "n2")
    assert specs[1].take == ("x0",)
    assert routing.cuts == ((),)


def test_a_long_way_to_a_small_value_is_sent_and_to_a_large_one_made_again():
    program = chain(9)
    specs, routing = split(program, halves(program), 2)
    assert specs[1].nodes == ("n9",)
    assert routing.cuts == (("n8",),)
    large = wide(program, "n8", shape=("batch", 1 << 20))
    specs, routing = split(large, halves(large), 2)
    assert specs[1].nodes[0] == "n0"
    assert routing.cuts == ((),)


@pytest.mark.parametrize("change", [{"random": True}, {"writes_state": ("mask",)}])
def test_what_is_random_or_writes_is_never_made_again(change):
    program = chain(1)
    nodes = [replace(n, **change) if n.name == "n0" else n for n in program.nodes]
    program = replace(program, nodes=tuple(nodes))
    specs, _ = split(program, halves(program), 2)
    assert specs[1].nodes == ("n1",)


def test_what_has_a_gradient_is_never_made_again():
    program = wide(chain(1), "n0", requires_grad=True)
    assert isinstance(program.node["n0"].value, TensorSpec)
    specs, _ = split(program, halves(program), 2)
    assert specs[1].nodes == ("n1",)


def test_a_table_is_held_again_only_if_it_is_small():
    program = program_of(1, [Step("op", (0,), (3,)), Step("op", (1,), (0,))], [2])
    specs, routing = split(program, halves(program), 2)
    assert "mask" in specs[1].state
    assert [state.name for state in routing.replicated] == ["mask"]
    states = [replace(s, shape=(1 << 22,)) if s.fqn == "mask" else s for s in program.states]
    program = replace(program, states=tuple(states))
    specs, routing = split(program, halves(program), 2)
    assert "mask" not in specs[1].state
    assert not routing.replicated
