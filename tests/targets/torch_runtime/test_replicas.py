"""Which rows each replica takes, and what dividing parameters needs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autosplit.targets.templates.torch.pipeline import PipelineError
from autosplit.targets.templates.torch.pipeline.batches import (
    Share,
    divide,
    mean_loss,
    whole_batch,
)
from autosplit.targets.templates.torch.pipeline.feed import Feed, takes_replica
from autosplit.targets.templates.torch.pipeline.replicas import Replicas, _buckets, _gradient
from autosplit.targets.templates.torch.pipeline.sharding import _blocks, build_stages
from tests.targets.torch_runtime.tables import table

CPU = torch.device("cpu")


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [1, 2, 7, 12])
def test_shares_hold_each_row_once(rows, count):
    spans = [Share(index, count).span(rows) for index in range(count)]
    taken = [first + i for first, number in spans for i in range(number)]
    assert taken == list(range(rows))
    numbers = [number for _, number in spans]
    assert max(numbers) - min(numbers) <= 1
    assert all(0 <= first < rows for first, _ in spans)


def test_a_replica_without_rows_runs_one_that_counts_nothing(tmp_path):
    routing = table(tmp_path)
    x, labels = torch.arange(6.0).view(2, 3), torch.tensor([4, 5])
    batch = whole_batch(routing, ((x,), {"labels": labels, "flag": True}), (labels,))
    shares = [divide(routing, batch, 2, share=Share(index, 3)) for index in range(3)]
    assert [[part.rows for part in parts] for parts in shares] == [[1], [1], [0]]
    (idle,) = shares[2]
    assert torch.equal(idle.inputs["x"], x[:1])
    assert torch.equal(idle.targets[0], labels[:1])
    losses = [torch.tensor(2.0), torch.tensor(6.0), torch.tensor(100.0)]
    assert mean_loss(losses, [part for parts in shares for part in parts]) == 4.0


def test_a_source_may_be_told_its_replica(tmp_path):
    def told(batch_size, replica, replicas):
        yield batch_size, replica, replicas

    def not_told(batch_size):
        yield batch_size

    routing, second = table(tmp_path), Replicas(count=2, index=1)
    assert not takes_replica(not_told)
    assert list(Feed(not_told, 7, 1, routing, second, CPU).source()) == [7]
    assert list(Feed(told, 7, 1, routing, second, CPU).source()) == [(3, 1, 2)]
    with pytest.raises(PipelineError, match="1 rows are too few for 2 replicas"):
        Feed(told, 1, 1, routing, second, CPU).source()


def test_dividing_needs_several_replicas():
    with pytest.raises(PipelineError, match="divides parameters over replicas"):
        build_stages([nn.Identity], [0], CPU, Replicas(), "fsdp")
    (stage,) = build_stages([nn.Identity], [0], CPU, Replicas(), "replicate").values()
    assert isinstance(stage, nn.Identity)


def test_gradients_are_summed_in_pieces_of_one_dtype():
    large = torch.zeros(4 * 2**20)
    half = torch.zeros(3, dtype=torch.bfloat16)
    found = list(_buckets([large, large, half, half, large[:1], large[:2]]))
    assert [[len(gradient) for gradient in bucket] for bucket in found] == [
        [len(large)],
        [len(large)],
        [3, 3],
        [1, 2],
    ]
    assert list(_buckets([])) == []


def test_a_sparse_gradient_is_refused():
    parameter = nn.Parameter(torch.zeros(4, 2))
    assert torch.equal(_gradient(parameter), torch.zeros(4, 2))
    parameter.grad = torch.zeros(4, 2).to_sparse()
    with pytest.raises(PipelineError, match="sparse gradient"):
        _gradient(parameter)


class Block(nn.Module):
    def __init__(self, inner: nn.Linear | None = None):
        super().__init__()
        self.inner = inner or nn.Linear(2, 2)

    def forward(self, x):
        return self.inner(x)


def test_blocks_are_members_of_lists_that_run_as_a_whole_and_share_nothing():
    held = nn.Module()  # of what is left of a block, its parts are called one by one
    held.inner = nn.Linear(2, 2)
    shared = nn.Linear(2, 2)
    stage = nn.Module()
    stage.blocks = nn.ModuleDict({"3": Block(), "4": nn.Sequential(Block(), Block())})
    stage.others = nn.ModuleList([held, Block(shared), Block(shared), nn.Linear(2, 2)])
    assert list(_blocks(stage)) == [stage.blocks["3"], stage.blocks["4"]]
