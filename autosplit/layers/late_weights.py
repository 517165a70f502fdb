"""Whether the runtime can put off weight gradients of a layer, as zero-bubble schedules want.

It does so for products of a value with a trained parameter itself: linear layers, matrix products
and convolutions. Gradients of all other parameters are computed with those of inputs.
"""

from __future__ import annotations

from collections.abc import Iterable

from autosplit.layers.work import short_name
from autosplit.program import Node, Program, Ref

_MODULES = frozenset({"Linear", "Conv1d", "Conv2d", "Conv3d"})
_PRODUCTS = frozenset(
    {"linear", "matmul", "__matmul__", "mm", "addmm", "conv1d", "conv2d", "conv3d"}
)


def has_late_weights(program: Program, names: Iterable[str]) -> bool:
    """Return whether any of the named nodes has a weight gradient that can be put off."""
    return any(_is_late(program, program.node[name]) for name in names)


def _is_late(program: Program, node: Node) -> bool:
    if node.op == "module":
        weights = program.states_of(node)
        known = program.module[node.target].class_name in _MODULES
    else:
        # What stands first is what the weight is multiplied with.
        later = (*node.args[1:], *(arg for _, arg in node.kwargs))
        sources = (program.node[arg.name] for arg in later if isinstance(arg, Ref))
        weights = tuple(source.target for source in sources if source.op == "state")
        known = short_name(node.target) in _PRODUCTS
    states = (program.state[name] for name in weights)
    return known and any(state.requires_grad and len(state.shape) > 1 for state in states)
