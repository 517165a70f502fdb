from __future__ import annotations

import pytest
import torch

from autosplit.errors import TraceError
from autosplit.tracers import trace
from tests.tracers import models
from tests.tracers.helpers import assert_same, loaded

SHAPES = {models.Unpacking: (4, 5, 8), models.Reused: (4, 8), models.RootState: (4, 8)}


@pytest.mark.parametrize("build", list(SHAPES))
def test_exported_operations_equal_eager_at_other_batch_sizes(build):
    torch.manual_seed(0)
    shape = SHAPES[build]
    found = trace(loaded(build(), torch.randn(shape)), "exported")
    program = found.program
    assert program.tracer == "exported"
    assert "ATen" in program.warnings[0]
    assert {node.target.split(".")[0] for node in program.operations} <= {"torch", "operator"}
    assert_same(found, torch.randn(3, *shape[1:]))


def test_exported_calls_carry_the_module_path():
    program = trace(loaded(models.Reused(), torch.randn(4, 8)), "exported").program
    assert {call.fqn for call in program.calls} >= {"", "block", "block.lin", "first"}
    assert program.state["second.weight"].fqn == "first.weight"
    assert all(node.value.requires_grad for node in program.operations)


def test_exported_writes_are_known():
    program = trace(loaded(models.InPlace(), torch.randn(4, 8)), "exported").program
    assert any(node.mutates for node in program.operations)


def test_data_dependent_models_are_refused():
    with pytest.raises(TraceError):
        trace(loaded(models.ValueBranch(), torch.randn(4, 8)), "exported")
    with pytest.raises(TraceError, match="depends on the data"):
        trace(loaded(models.Nonzero(), torch.randn(4, 8)), "exported")
