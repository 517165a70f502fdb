"""Whether a stage may be cast: where the recorded operations name a floating-point dtype.

A trace cannot tell ``.to(torch.float32)`` from ``.to(x.dtype)``: both ask for the traced dtype.
A stage with such a line is right in that dtype alone; one without follows ``stage.to(dtype)``
as the model does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from autosplit.codegen.constants import LIMITS
from autosplit.program import Arg, Mapping, Node, Program, Sequence, Token
from autosplit.stages.types import StageSpec

_FLOATING = ("float", "bfloat", "complex")
_BY_NAME = {"float", "half", "double", "bfloat16"}


def fixed_at(program: Program, spec: StageSpec) -> tuple[str, ...]:
    """Return the lines of the model's source that tie a stage to the traced dtype.

    Returns
    -------
    tuple[str, ...]
        ``file.py:line``, or the operation where the source is not known; each once, in running
        order. Empty for a stage that may be cast.
    """
    found = (program.node[name] for name in spec.nodes)
    return tuple(dict.fromkeys(_place(node) for node in found if _is_fixed(node)))


def _is_fixed(node: Node) -> bool:
    if node.op != "function":
        return False
    method = node.target.rpartition(".")[2]
    if method in _BY_NAME and node.returns_argument:
        return True
    args = (*node.args, *(arg for _, arg in node.kwargs))
    return any(_names_dtype(leaf) for arg in args for leaf in _leaves(arg))


def _names_dtype(arg: Arg) -> bool:
    if isinstance(arg, Token):
        return arg.kind == "dtype" and arg.name.removeprefix("torch.").startswith(_FLOATING)
    return isinstance(arg, float) and abs(arg) in LIMITS


def _leaves(arg: Arg) -> Iterator[Arg]:
    if isinstance(arg, Sequence):
        for item in arg.items:
            yield from _leaves(item)
    elif isinstance(arg, Mapping):
        for _, item in arg.items:
            yield from _leaves(item)
    else:
        yield arg


def _place(node: Node) -> str:
    if node.location is None:
        return node.name
    path, _, line = node.location.rpartition(":")
    return f"{PurePath(path).name}:{line}"
