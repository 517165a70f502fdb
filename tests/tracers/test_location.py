"""A trace knows nothing of who asked for it."""

from __future__ import annotations

from autosplit.modelspec import load_model
from autosplit.serialize import digest
from autosplit.tracers import trace
from autosplit.types import ModelRef

SPEC = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())

def example_inputs(batch_size):
    return (torch.ones(batch_size, 2),)
"""


def test_a_model_without_code_of_its_own_has_the_same_fingerprint_from_anywhere(tmp_path):
    (tmp_path / "net.py").write_text(SPEC)
    ref = ModelRef(f"{tmp_path / 'net.py'}:build", batch_size=2)
    one = trace(load_model(ref)).program
    other = trace(load_model(ref)).program
    assert [node.location for node in one.nodes if node.op == "module"] == [None, None]
    assert digest(one) == digest(other)
