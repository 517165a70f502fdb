"""Operations that change nothing, and global state that does not matter, left out.

Every rule holds for the traced dtypes and for any size of a symbol; each use is listed as a
rewrite. A stage that writes to memory in place keeps its views and copies.
"""

from __future__ import annotations

from collections.abc import Mapping as Map
from dataclasses import replace

from autosplit.codegen.scopes import Rewrite, StageGraph
from autosplit.program import (
    PLAIN,
    Ambient,
    Arg,
    EllipsisArg,
    Mapping,
    Node,
    Program,
    Ref,
    Sequence,
    Slice,
    TensorSpec,
)

_CASTS = {"to", "float", "half", "double", "bfloat16", "int", "long", "bool", "type", "type_as"}
_SAME_SHAPE = {"expand", "expand_as", "view", "view_as", "reshape", "reshape_as"}
_STRIDE_READERS = {"view", "view_as", "as_strided", "unfold", "data_ptr", "stride"}
_VIEWS = {
    "transpose",
    "permute",
    "unsqueeze",
    "squeeze",
    "expand",
    "getitem",
    "contiguous",
    "to",
    "chunk",
    "split",
    "narrow",
    "select",
    "t",
    "mT",
}
_FLOATING = ("float", "bfloat", "complex")


def simplify(graph: StageGraph) -> None:
    """Drop operations of a stage that return what they are given, then what nobody reads."""
    calm = not any(graph.writes(name) for name in graph.nodes)
    for name in list(graph.nodes):
        found = _equal_input(graph, graph.nodes[name], calm=calm)
        if found is not None:
            source, why = found
            if _may_replace(graph, name, source):
                graph.rewrites.append(Rewrite("no-op", name, why))
                substitute(graph, name, source)
    drop_dead(graph)


def substitute(graph: StageGraph, name: str, source: str) -> None:
    """Let all readers of one value read another instead."""
    readers = graph.readers.pop(name, [])
    _remove(graph, name)
    for reader in dict.fromkeys(readers):
        if reader in graph.nodes:
            graph.nodes[reader] = _reading(graph.nodes[reader], {name: source})
    graph.give[:] = [source if value == name else value for value in graph.give]
    graph.readers.setdefault(source, []).extend(readers)
    for names in graph.names.values():
        found = names.pop(name, None)
        if found:
            kept = names.setdefault(source, [])
            kept += [each for each in found if each not in kept]


def drop_dead(graph: StageGraph) -> None:
    """Drop operations without effect whose value nobody reads any more."""
    for name in reversed(list(graph.nodes)):
        if not graph.readers.get(name) and not graph.effect(name):
            _remove(graph, name)


def _remove(graph: StageGraph, name: str) -> None:
    for value in graph.nodes.pop(name).inputs():
        graph.readers[value] = [each for each in graph.readers[value] if each != name]


def _may_replace(graph: StageGraph, name: str, source: str) -> bool:
    """Keep results apart from arguments and from one another at the stage's border."""
    if name not in graph.give:
        return True
    return source in graph.nodes and source not in graph.give


# ---------------------------------------------------------------- the rules


def _equal_input(graph: StageGraph, node: Node, *, calm: bool) -> tuple[str, str] | None:
    """Return the input an operation equals, and why."""
    if node.op != "function" or not node.args or not isinstance(node.args[0], Ref):
        return None
    source = node.args[0].name
    before, after = graph.tensor(source), graph.tensor(node.name)
    if before is None or after is None or node.mutates:
        return None
    method = node.target.rpartition(".")[2].strip("_")
    if method in _CASTS and node.returns_argument:
        return source, "the value has this dtype and place already"
    if method == "contiguous" and node.returns_argument and not _strides_read(graph, node.name):
        return source, "the value is contiguous, and nothing after it depends on that"
    if not calm or before.dtype != after.dtype:
        return None
    if before.shape == after.shape:
        if method in _SAME_SHAPE:
            return source, "the value has this shape already"
        if method == "getitem" and _takes_all(node.args[1]):
            return source, "the subscript takes everything"
    if len(node.args) == 2 and not node.kwargs and before.shape == after.shape:
        if method in ("add", "radd", "sub") and _is(node.args[1], 0) and not _floats(before):
            return source, "adding zero to whole numbers changes nothing"
        if method in ("mul", "rmul", "div", "truediv") and _is(node.args[1], 1):
            return source, "a factor of one changes nothing"
    return None


def _is(arg: Arg, number: int) -> bool:
    return isinstance(arg, int | float) and not isinstance(arg, bool) and arg == number


def _takes_all(index: Arg) -> bool:
    parts = index.items if isinstance(index, Sequence) else (index,)
    return all(isinstance(part, Slice | EllipsisArg) for part in parts)


def _strides_read(graph: StageGraph, name: str) -> bool:
    """Whether an operation after a value could see how it lies in memory."""
    if name in graph.give:
        return True
    for reader in graph.readers.get(name, ()):
        node = graph.nodes.get(reader)
        method = node.target.split(".")[-1].strip("_") if node is not None else ""
        if method in _STRIDE_READERS or node is None or graph.writes(reader):
            return True
        if method in _VIEWS and _strides_read(graph, reader):
            return True
    return False


def _floats(spec: TensorSpec) -> bool:
    return spec.dtype.startswith(_FLOATING)


# ---------------------------------------------------------------- global state


def plain_ambients(program: Program) -> dict[str, Ambient]:
    """Return the global state each operation needs, where it is less than what was in force.

    Whether gradients are recorded does not matter to values that no parameter and no floating
    point input has touched, and autocast does not matter to whole numbers.
    """
    touched: set[str] = set()
    found: dict[str, Ambient] = {}
    for node in program.nodes:
        reads = node.inputs()
        if _is_touched(program, node) or touched.intersection(reads):
            touched.add(node.name)
        if node.ambient == PLAIN:
            continue
        ambient = node.ambient
        if not _is_touched(program, node) and not touched.intersection(reads):
            ambient = replace(ambient, grad=True, inference=False)
        specs = [*node.tensors, *(s for read in reads for s in program.node[read].tensors)]
        if node.op == "function" and not any(_floats(spec) for spec in specs):
            ambient = replace(ambient, autocast=())
        found[node.name] = ambient
    return found


def _is_touched(program: Program, node: Node) -> bool:
    if node.op == "input":
        return any(_floats(spec) for spec in node.tensors)
    if node.op == "state":
        return program.state[node.target].kind == "parameter"
    return node.op == "module" and any(
        program.state[name].kind == "parameter" for name in program.states_of(node)
    )


# ---------------------------------------------------------------- new arguments


def _reading(node: Node, names: Map[str, str]) -> Node:
    """Return a node that reads other values."""
    return replace(
        node,
        args=tuple(_rename(arg, names) for arg in node.args),
        kwargs=tuple((key, _rename(arg, names)) for key, arg in node.kwargs),
        mutates=tuple(names.get(name, name) for name in node.mutates),
    )


def _rename(arg: Arg, names: Map[str, str]) -> Arg:
    match arg:
        case Ref(name):
            return Ref(names.get(name, name))
        case Slice(start, stop, step):
            return Slice(*(_rename(part, names) for part in (start, stop, step)))
        case Sequence(kind, items):
            return Sequence(kind, tuple(_rename(item, names) for item in items))
        case Mapping(items):
            return Mapping(tuple((key, _rename(item, names)) for key, item in items))
    return arg
