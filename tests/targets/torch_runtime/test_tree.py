from __future__ import annotations

import collections
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autosplit.targets.templates.torch.pipeline import PipelineError
from autosplit.targets.templates.torch.pipeline.tree import Output, Tree, flatten, rebuild
from tests.targets.torch_runtime.tables import constant, leaf, node

Pair = collections.namedtuple("Pair", "left right")


@dataclass
class Record:
    logits: torch.Tensor
    note: str = "none"
    kept: list[torch.Tensor] = field(default_factory=list)


def trees():
    leaves = st.integers(0, 5).map(lambda i: leaf(f"t{i}"))
    constants = st.sampled_from([None, True, 3, 0.5, "mean"]).map(constant)
    return st.recursive(
        leaves | constants,
        lambda inner: st.lists(inner, max_size=3).flatmap(
            lambda items: st.sampled_from(
                [
                    node("tuple", *items),
                    node("list", *items),
                    node("dict", *items, keys=[f"k{i}" for i in range(len(items))]),
                ]
            )
        ),
        max_leaves=10,
    ).map(Tree.from_data)


@given(trees())
def test_flatten_undoes_rebuild(tree):
    tensors = {name: torch.tensor(i) for i, name in enumerate(dict.fromkeys(tree.names()))}
    built = rebuild(tree, tensors)
    assert flatten(tree, built) == tensors
    assert [name for _, name in tree.paths()] == list(tree.names())


def test_paths_read_as_in_python():
    inner = node("tuple", leaf("a"), constant(None))
    tree = Tree.from_data(node("dict", inner, leaf("b"), keys=["hidden", "y"]))
    assert list(tree.paths()) == [("hidden.0", "a"), ("y", "b")]
    assert list(Tree.from_data(leaf("a")).paths()) == [("", "a")]


def test_output_classes_come_back():
    fields = [leaf("a"), constant("kept"), node("list", leaf("b"))]
    data = node("object", *fields, keys=["logits", "note", "kept"], type_name=f"{__name__}:Record")
    a, b = torch.ones(1), torch.zeros(1)
    built = rebuild(Tree.from_data(data), {"a": a, "b": b})
    assert isinstance(built, Record)
    assert built.logits is a
    assert built.note == "kept"
    assert built.kept[0] is b
    assert flatten(Tree.from_data(data), built) == {"a": a, "b": b}


def test_named_tuples_come_back():
    data = node(
        "namedtuple", leaf("a"), leaf("b"), keys=["left", "right"], type_name=f"{__name__}:Pair"
    )
    a, b = torch.ones(1), torch.zeros(1)
    assert rebuild(Tree.from_data(data), {"a": a, "b": b}) == Pair(a, b)


def test_mapping_classes_come_back():
    data = node("object", leaf("a"), keys=["x"], type_name="collections:OrderedDict")
    built = rebuild(Tree.from_data(data), {"a": torch.ones(1)})
    assert type(built) is collections.OrderedDict
    assert list(built) == ["x"]


@pytest.mark.parametrize("type_name", ["gone.module:Output", "builtins:nothing", "", "a b:C", None])
def test_a_class_that_is_gone_becomes_a_dict_with_attributes(type_name):
    data = node("object", leaf("a"), keys=["loss"], type_name=type_name)
    built = rebuild(Tree.from_data(data), {"a": torch.ones(1)})
    assert isinstance(built, Output)
    assert built.loss is built["loss"]
    with pytest.raises(AttributeError):
        _ = built.logits


TREE = Tree.from_data(
    node(
        "tuple",
        node("tuple", leaf("x")),
        node("dict", constant(True), constant(None), keys=["flag", "mask"]),
    )
)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (((torch.ones(1),), {"flag": False, "mask": None}), "is bool False; .* made for True"),
        (((torch.ones(1),), {"flag": 1, "mask": None}), "is int 1; .* made for True"),
        (
            ((torch.ones(1),), {"flag": True, "mask": torch.ones(2)}),
            "tensor of shape .2,.; .* None",
        ),
        (((torch.ones(1),), {"flag": True}), "must have the keys flag, mask; 'mask' differs"),
        (((3,), {"flag": True, "mask": None}), "must be a tensor, not int 3"),
        (((), {"flag": True, "mask": None}), "must be a tuple of 1, not tuple"),
        (((torch.ones(1),), None), "must be a dict, not NoneType None"),
    ],
)
def test_other_inputs_are_refused(value, message):
    with pytest.raises(PipelineError, match=message):
        flatten(TREE, value)
