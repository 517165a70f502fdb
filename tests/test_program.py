from dataclasses import replace

import pytest

from autosplit.errors import DataError
from autosplit.program import (
    Call,
    InputSpec,
    Mapping,
    ModuleSpec,
    Node,
    Program,
    Ref,
    Sequence,
    Size,
    Slice,
    StateSpec,
    Symbol,
    TensorSpec,
    Tree,
    refs,
)
from autosplit.serialize import digest

X = TensorSpec(("batch", 4), "float32")


def program(**changes):
    """Return ``y = linear(x); return {"out": y + weight.sum()}`` with a tied weight."""
    fields = {
        "nodes": (
            Node("x", "input", "x", value=X),
            Node("y", "module", "linear", (Ref("x"),), value=X, calls=(0, 1)),
            Node("w", "state", "head.weight", value=TensorSpec((4, 4), "float32")),
            Node("total", "function", "torch.sum", (Ref("w"),), value=TensorSpec((), "float32")),
            Node("sum", "function", "operator.add", (Ref("y"), Ref("total")), value=X),
        ),
        "calls": (Call(0, "module", "Model", "", None), Call(1, "module", "Linear", "linear", 0)),
        "modules": (
            ModuleSpec("", "Model", "m.Model", False, children=("linear", "head")),
            ModuleSpec("linear", "Linear", "torch.nn.Linear", True, state=("weight", "bias")),
            ModuleSpec("head", "Linear", "torch.nn.Linear", True, state=("weight",)),
        ),
        "states": (
            StateSpec(
                "linear.weight", "parameter", (4, 4), "float32", True, True, ("head.weight",)
            ),
            StateSpec("linear.bias", "parameter", (4,), "float32", True),
        ),
        "symbols": (Symbol("batch", 3, (("x", 0),)),),
        "inputs": (InputSpec("x", ("args", 0), 0),),
        "input_tree": Tree("tuple", items=(Tree("value", "x"),)),
        "output_tree": Tree("dict", keys=("out",), items=(Tree("value", "sum"),)),
    }
    return Program(**{**fields, **changes})


def test_references_are_found_in_every_kind_of_argument():
    argument = (
        Ref("a"),
        Sequence("list", (Ref("b"), 3, Mapping((("key", Ref("c")),)))),
        Slice(Ref("d"), None, Size("batch - 1")),
        Ref("a"),
    )
    assert list(refs(argument)) == ["a", "b", "c", "d", "a"]


def test_inputs_of_a_node_stand_once_in_order():
    node = Node("n", "function", "f", (Ref("b"), Ref("a")), (("k", Ref("b")), ("l", Ref("c"))))
    assert node.inputs() == ("b", "a", "c")


def test_tensors_of_a_node():
    assert Node("n", "function", "f", value=X).tensors == (X,)
    assert Node("n", "function", "f", value=(X, None, X)).tensors == (X, X)
    assert Node("n", "function", "f").tensors == ()


def test_users_operations_and_outputs():
    found = program()
    assert found.users["x"] == ("y",)
    assert found.users["sum"] == ()
    assert [node.name for node in found.operations] == ["y", "total", "sum"]
    assert found.outputs == ("sum",)
    assert found.position["sum"] == 4


def test_state_is_known_by_every_name_and_used_under_the_first():
    found = program()
    assert found.state["head.weight"] is found.state["linear.weight"]
    assert found.states_of(found.node["y"]) == ("linear.weight", "linear.bias")
    assert found.states_of(found.node["total"]) == ("linear.weight",)


def test_sizes_are_evaluated_for_any_batch():
    found = program()
    assert found.nbytes(X) == 3 * 4 * 4
    assert found.nbytes(X, {"batch": 10}) == 10 * 4 * 4
    assert found.evaluate("2*batch + 1") == 7


def test_bytes_of_state():
    assert StateSpec("w", "parameter", (3, 5), "bfloat16").nbytes == 30
    assert StateSpec("w", "buffer", (), "int64").nbytes == 8


def test_trees_yield_their_values_from_left_to_right():
    inner = Tree("list", items=(Tree("value", "b"), Tree("constant", None)))
    tree = Tree("tuple", items=(Tree("value", "a"), inner, Tree("value", "a")))
    assert list(tree.values()) == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"output_tree": Tree("value", "nowhere")}, "output 'nowhere' does not exist"),
        ({"inputs": (InputSpec("z", ("args", 0), 0),)}, "input 'z' does not exist"),
    ],
)
def test_names_that_do_not_exist_are_refused(change, words):
    with pytest.raises(DataError, match=words):
        program(**change)


def test_nodes_stand_in_running_order_and_once():
    nodes = program().nodes
    with pytest.raises(DataError, match="argument of y 'x' does not exist"):
        program(nodes=(nodes[1], nodes[0], *nodes[2:]))
    with pytest.raises(DataError, match="node 'sum' appears twice"):
        program(nodes=(*nodes, replace(nodes[4])))


def test_a_digest_does_not_depend_on_where_lines_stand():
    nodes = program().nodes
    moved = (*nodes[:-1], replace(nodes[-1], location="elsewhere.py:7"))
    assert digest(program(nodes=moved)) == digest(program())
    renamed = (*nodes[:-1], replace(nodes[-1], random=True))
    assert digest(program(nodes=renamed)) != digest(program())


def test_an_unknown_dtype_is_refused():
    with pytest.raises(DataError, match="unknown dtype 'float31'"):
        TensorSpec((1,), "float31")
