"""What a class holds: layers, parameters, buffers and other classes, under original names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from autosplit.codegen.errors import CodegenError
from autosplit.codegen.expressions import (
    Attribute,
    Expr,
    Invoke,
    Number,
    Text,
    call,
    dotted,
)
from autosplit.codegen.operators import argument
from autosplit.codegen.originals import is_original, original
from autosplit.codegen.scopes import StageGraph
from autosplit.program import Arg, Constructor, ModuleSpec, Sequence, StateSpec

_POSITIONAL: dict[str, tuple[str, ...]] = {
    "Linear": ("in_features", "out_features"),
    "Embedding": ("num_embeddings", "embedding_dim"),
    "LayerNorm": ("dim",),
    "RMSNorm": ("dim",),
    "Dropout": ("dropout",),
    "GroupNorm": ("num_groups", "num_channels"),
    "BatchNorm1d": ("num_features",),
    "BatchNorm2d": ("num_features",),
    "BatchNorm3d": ("num_features",),
    **{
        f"Conv{transposed}{n}d": ("in_channels", "out_channels", "kernel_size")
        for transposed in ("", "Transpose")
        for n in (1, 2, 3)
    },
}
"""What to call positional constructor arguments that differ between uses of a class."""

SECOND_NAME = "="
"""Begins the key of a tie of tensors, which comes after everything else is there."""

_NORMAL_DTYPE = "float32"


@dataclass(frozen=True)
class Layer:
    """A module of ``torch.nn`` or another library that is built and called as it is.

    ``stride`` says that a convolution states its stride, 1 or not.
    """

    spec: ModuleSpec
    name: str
    stride: bool = False


@dataclass(frozen=True)
class State:
    """A parameter, buffer or constant that the class registers itself."""

    spec: StateSpec
    name: str


@dataclass(frozen=True)
class Tie:
    """A second name of something the stage holds already."""

    name: str
    source: str


@dataclass(frozen=True)
class Child:
    """A module with a class of its own in the file; ``fqn`` names its definition."""

    fqn: str


@dataclass(frozen=True)
class Chain:
    """An ``nn.Sequential`` with its contents."""

    items: tuple[Member, ...]


Member: TypeAlias = Layer | State | Tie | Child | Chain


@dataclass
class Branch:
    """A module that only holds others, or the class itself.

    ``kind`` is "module", "list", "dict", "parameter list" or "parameter dict", and "sequence"
    for a class that is an ``nn.Sequential``.
    """

    children: dict[str, Branch | Member] = field(default_factory=dict)
    kind: str = "module"

    def at(self, rel: str) -> Branch | Member:
        """Return what stands at a relative name."""
        here: Branch | Member = self
        for part in rel.split(".") if rel else ():
            if not isinstance(here, Branch):
                raise KeyError(rel)
            here = here.children[part]
        return here


def build_tree(graph: StageGraph, fqn: str, members: dict[str, Member]) -> Branch:
    """Return the members of a class as a tree of containers.

    Parameters
    ----------
    fqn
        Name of the module that the class stands for.
    members
        Members by name relative to it, in registration order.
    """
    root = Branch()
    for rel, member in members.items():
        if rel.startswith(SECOND_NAME):
            _make_room(root, rel.removeprefix(SECOND_NAME))
            continue
        *path, last = rel.split(".")
        here = root
        for part in path:
            below = here.children.setdefault(part, Branch())
            if not isinstance(below, Branch):
                raise CodegenError(f"{rel!r} stands inside {part!r}, which is a layer of its own")
            here = below
        here.children[last] = member
    _set_kinds(graph, root, fqn, top=True)
    return root


def _make_room(root: Branch, rel: str) -> None:
    """Add the containers in which a second name of a tensor stands."""
    here = root
    for part in rel.split(".")[:-1]:
        below = here.children.setdefault(part, Branch())
        if not isinstance(below, Branch):
            return
        here = below


def _set_kinds(graph: StageGraph, branch: Branch, fqn: str, *, top: bool = False) -> None:
    head = f"{fqn}." if fqn else ""
    for name, child in branch.children.items():
        if isinstance(child, Branch):
            _set_kinds(graph, child, head + name)
    spec = graph.program.module.get(fqn)
    original = spec.qualified if spec is not None else ""
    branch.kind = _kind(branch, original, top=top)


def _kind(branch: Branch, original: str, *, top: bool) -> str:
    names, children = list(branch.children), list(branch.children.values())
    if not names:
        return "module"
    numbered = all(name.isdigit() and str(int(name)) == name for name in names)
    counted = numbered and names == [str(index) for index in range(len(names))]
    if all(isinstance(child, State) and child.spec.kind == "parameter" for child in children):
        if top or not (numbered or original.endswith(".ParameterDict")):
            return "module"
        return "parameter list" if counted else "parameter dict"
    if any(isinstance(child, State) for child in children):
        return "module"
    keyed = numbered or original.endswith(".ModuleDict") or not all(map(str.isidentifier, names))
    if not keyed:
        return "module"
    return "list" if counted and not top else "dict"


# ---------------------------------------------------------------- constructors


def construct(graph: StageGraph, member: Layer | State) -> Expr:
    """Return the expression that makes a layer, parameter or buffer.

    Values are left uninitialised where torch allows it: the checkpoint fills them.
    """
    if isinstance(member, State):
        return _tensor(member.spec)
    spec = member.spec
    if is_original(spec):
        return original(member.name)
    if spec.constructor is None:
        raise CodegenError(f"no constructor is known for {spec.qualified} {member.name!r}")
    states = [graph.program.state[name] for name in graph.state_under(member.name)]
    expr = _layer(spec.constructor, states, stride=member.stride)
    parameters = [state for state in states if state.kind == "parameter"]
    if parameters and not any(state.requires_grad for state in parameters):
        return Invoke(Attribute(expr, "requires_grad_"), (Text("False"),))
    return expr


def frozen_parts(graph: StageGraph, member: Layer) -> list[str]:
    """Return the frozen parameters of a layer that also has trained ones, by relative name."""
    if is_original(member.spec):
        return []
    names = list(graph.state_under(member.name))
    parameters = [n for n in names if graph.program.state[n].kind == "parameter"]
    frozen = [n for n in parameters if not graph.program.state[n].requires_grad]
    if len(frozen) == len(parameters):
        return []
    return [name[len(member.name) + 1 :] for name in frozen]


def _layer(constructor: Constructor, states: list[StateSpec], *, stride: bool) -> Expr:
    hints = _POSITIONAL.get(constructor.qualified.rpartition(".")[2], ())
    given, named = _plain_arguments(constructor)
    if stride and len(given) == len(hints) and "stride" not in dict(named):
        named = (("stride", 1), *named)
    names = [*hints, *[""] * len(given)]
    args = tuple(argument(arg, hint) for arg, hint in zip(given, names, strict=False))
    kwargs = tuple((key, argument(arg, key)) for key, arg in named)
    dtypes = {state.dtype for state in states if "float" in state.dtype}
    if len(dtypes) == 1 and _NORMAL_DTYPE not in dtypes and "dtype" not in dict(kwargs):
        kwargs = (*kwargs, ("dtype", dotted(f"torch.{dtypes.pop()}")))
    return Invoke(dotted(_public(constructor.qualified)), args, kwargs)


def _plain_arguments(
    constructor: Constructor,
) -> tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]:
    """Return arguments as people write them: ``3`` for ``(3, 3)``, ``Dropout(0.1)``."""
    name = constructor.qualified.rpartition(".")[2]
    args, kwargs = constructor.args, constructor.kwargs
    if name.endswith("Dropout") and not args and kwargs and kwargs[0][0] == "p":
        args, kwargs = (kwargs[0][1],), kwargs[1:]
    if name == "MultiheadAttention":
        kwargs = tuple(
            pair for pair in kwargs if pair not in (("kdim", args[0]), ("vdim", args[0]))
        )
    if re.fullmatch(r"LayerNorm|RMSNorm", name):
        # A norm over (5, 5) is not one over 5: its shape says over how many dimensions it goes.
        return tuple(_scalar(arg, longest=1) for arg in args), kwargs
    if not re.fullmatch(r"(Conv|ConvTranspose|MaxPool|AvgPool)\dd", name):
        return args, kwargs
    return tuple(map(_scalar, args)), tuple((key, _scalar(arg)) for key, arg in kwargs)


def _scalar(arg: Arg, longest: int = 3) -> Arg:
    """Return the one number that a sequence of up to ``longest`` items repeats."""
    if isinstance(arg, Sequence) and 0 < len(arg.items) <= longest:
        return arg.items[0] if len(set(map(repr, arg.items))) == 1 else arg
    return arg


def _public(qualified: str) -> str:
    """Return ``nn.Linear`` for ``torch.nn.modules.linear.Linear``."""
    if qualified.startswith("torch.nn.modules."):
        return f"nn.{qualified.rpartition('.')[2]}"
    if qualified.startswith("torch.nn."):
        return qualified.removeprefix("torch.")
    return qualified


def _tensor(spec: StateSpec) -> Expr:
    sizes = tuple(Number(size, f"dim{index}") for index, size in enumerate(spec.shape))
    kwargs: dict[str, Expr] = {}
    if spec.dtype != _NORMAL_DTYPE:
        kwargs["dtype"] = dotted(f"torch.{spec.dtype}")
    empty = call("torch.empty", *(sizes or (Text("()"),)), **kwargs)
    if spec.kind != "parameter":
        return empty
    if spec.requires_grad:
        return call("nn.Parameter", empty)
    return call("nn.Parameter", empty, requires_grad=Text("False"))


# ---------------------------------------------------------------- order


def registration_order(graph: StageGraph) -> dict[str, int]:
    """Return the position of every name of the model, as ``state_dict`` walks it."""
    return {name: at for at, name in enumerate(_walk(graph, ""))}


def _walk(graph: StageGraph, fqn: str) -> Iterator[str]:
    spec = graph.program.module.get(fqn)
    if spec is None:
        return
    head = f"{fqn}." if fqn else ""
    for name in spec.state:
        yield head + name
    for child in spec.children:
        yield head + child
        yield from _walk(graph, head + child)
