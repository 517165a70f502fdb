"""Which values a gradient comes back for, told from the program alone."""

from __future__ import annotations

from autosplit.program import Program


def returned_values(program: Program) -> frozenset[str]:
    """Return the values that a gradient of the model's outputs reaches."""
    follows = {
        node.name: any(spec.requires_grad for spec in node.tensors) for node in program.nodes
    }
    reached = {name for name in program.outputs if follows[name]}
    for node in reversed(program.nodes):
        if node.name in reached:
            reached.update(name for name in node.inputs() if follows[name])
    return frozenset(reached)
