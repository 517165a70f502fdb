"""Make a ``LoadedModel`` from a module in a test, and compare a trace with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from autosplit.modelspec import LoadedModel, inputs
from autosplit.modelspec.structure import walk
from autosplit.tracers import Trace
from autosplit.tracers.replay import run_whole
from autosplit.types import ModelRef


def loaded(model: nn.Module, *args: Any, **kwargs: Any) -> LoadedModel:
    batch_dims = inputs.batch_dimensions(args, kwargs)
    symbols = inputs.free_sizes(args, kwargs, batch_dims)
    return LoadedModel(ModelRef("test.py:build"), model, args, kwargs, symbols, batch_dims)


def assert_same(trace: Trace, *args: Any, **kwargs: Any) -> None:
    """Assert that trace and model agree exactly on other inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        expected = [tensor.clone() for _, tensor in walk(trace.model(*args, **kwargs))]
        torch.manual_seed(1)
        found = run_whole(trace, args, kwargs)
    assert len(expected) == len(found)
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)
