from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autosplit.targets.templates.torch.pipeline import (
    PipelineError,
    mean_loss,
    merge_outputs,
    split_batch,
)
from tests.targets.torch_runtime.tables import TABLE, arguments, leaf, node, table


@pytest.fixture(scope="module")
def routing(tmp_path_factory):
    return table(tmp_path_factory.mktemp("table"))


def inputs(rows: int):
    x = torch.arange(rows * 3.0).view(rows, 3)
    return (x,), {"labels": torch.arange(rows), "flag": True}


@settings(deadline=None)
@given(rows=st.integers(1, 40), count=st.integers(1, 12))
def test_no_row_is_lost_or_doubled(routing, rows, count):
    target = torch.arange(rows)
    parts = split_batch(routing, inputs(rows), (target, "mean"), count)
    assert len(parts) <= count
    assert sum(part.rows for part in parts) == rows
    for name, whole in (("x", inputs(rows)[0][0]), ("labels", target)):
        assert torch.equal(torch.cat([part.inputs[name] for part in parts]), whole)
    assert torch.equal(torch.cat([part.targets[0] for part in parts]), target)
    assert {part.targets[1] for part in parts} == {"mean"}
    sizes = [part.rows for part in parts]
    assert all(size == sizes[0] for size in sizes[:-1])
    assert sizes[-1] <= sizes[0]
    assert all(part.inputs["x"].shape[0] == part.rows for part in parts)


def test_a_size_can_be_given(routing):
    parts = split_batch(routing, inputs(10), size=4)
    assert [part.rows for part in parts] == [4, 4, 2]


@pytest.mark.parametrize(
    "given_inputs",
    [
        {"x": torch.ones(2, 3)},
        (torch.ones(2, 3),),
        ((torch.ones(2, 3),), {}),
        torch.ones(2, 3),
        [torch.ones(2, 3)],
    ],
    ids=["dict", "tuple", "pair", "tensor", "list"],
)
def test_inputs_come_in_several_forms(tmp_path, given_inputs):
    tree = arguments(x=leaf("x")) if isinstance(given_inputs, dict) else arguments(leaf("x"))
    (part,) = split_batch(table(tmp_path, input_tree=tree), given_inputs)
    assert torch.equal(part.inputs["x"], torch.ones(2, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, k: ((a[0].double(),), k), "'x' is torch.float64, not torch.float32"),
        (lambda a, k: ((a[0][0],), k), r"'x' has shape \(3,\); it needs 2 dimensions"),
        (
            lambda a, k: ((a[0][:, :2],), k),
            "'x' has 2 in dimension 1 .* need 3, the size for which",
        ),
        (lambda a, k: (a, {**k, "labels": k["labels"][:2]}), "x has 4, labels has 2"),
        (lambda a, k: ((a[0][:0],), {**k, "labels": k["labels"][:0]}), "the batch has no rows"),
    ],
    ids=["dtype", "dimensions", "size", "rows", "empty"],
)
def test_what_the_stages_cannot_take_is_refused(routing, change, message):
    with pytest.raises(PipelineError, match=message):
        split_batch(routing, change(*inputs(4)), microbatches=2)


def values(**shapes):
    return [{**v, "shape": shapes.get(v["name"], v["shape"])} for v in TABLE["values"]]


def test_a_fixed_number_of_rows_is_kept_to(tmp_path):
    routing = table(tmp_path, values=values(x=[2, 3], labels=[2]))
    assert len(split_batch(routing, inputs(8), microbatches=4)) == 4
    with pytest.raises(PipelineError, match=r"has 1 in dimension 0 .* need 2, the one number of"):
        split_batch(routing, inputs(7), microbatches=4)


def test_sizes_that_belong_together_must_agree(tmp_path):
    routing = table(tmp_path, values=values(x=["batch", "n"], labels=["batch"]))
    split_batch(routing, inputs(4))
    tied = table(tmp_path, values=values(x=["batch", "batch"], labels=["batch"]))
    with pytest.raises(PipelineError, match=r"'x' has 3 in dimension 1 .* need 4, as another"):
        split_batch(tied, inputs(4))
    derived = table(tmp_path, values=values(x=["batch", "2*n + 1"], labels=["batch"]))
    split_batch(derived, inputs(4))


def test_a_target_with_other_rows_is_refused(routing):
    with pytest.raises(PipelineError, match="has 3 rows and the batch 4"):
        split_batch(routing, inputs(4), (torch.ones(3),))
    (part,) = split_batch(routing, inputs(4), (torch.tensor(2.0), 7))
    assert part.targets == (torch.tensor(2.0), 7)


def test_the_mean_loss_counts_rows(routing):
    parts = split_batch(routing, inputs(5), microbatches=2)
    assert mean_loss([torch.tensor(1.0), torch.tensor(6.0)], parts) == pytest.approx(3.0)


def test_outputs_are_joined_in_order(tmp_path):
    tree = node("dict", leaf("y"), node("tuple", leaf("h"), leaf("x")), keys=["loss", "rest"])
    routing = table(tmp_path, output_tree=tree)
    outputs = [
        {"y": torch.tensor(float(k)), "h": torch.full((2, 3), k), "x": torch.full((1, 3), k)}
        for k in range(3)
    ]
    merged = merge_outputs(routing, outputs)
    assert list(merged) == ["loss", "rest.0", "rest.1"]
    assert merged["loss"].tolist() == [0.0, 1.0, 2.0]
    assert merged["rest.0"][:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert merged["rest.1"].shape == (3, 3)
    with pytest.raises(PipelineError, match="no outputs"):
        merge_outputs(routing, [])
