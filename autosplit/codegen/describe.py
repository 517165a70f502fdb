"""Docstrings: where a class comes from, and the shapes of what it takes and returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autosplit.codegen.definitions import Classes, ClassGroup
from autosplit.codegen.dtypes import fixed_at
from autosplit.codegen.expressions import Subscript, Text, Unary, values
from autosplit.codegen.layout import WIDTH
from autosplit.codegen.lists import is_list
from autosplit.codegen.scopes import Scope, StageGraph
from autosplit.program import TensorSpec

_QUANTITIES = {"$device": "device", "$training": "bool", "$symbol": "int"}


def docstring(indent: str, lines: Sequence[str]) -> list[str]:
    """Return a docstring, quotes included; nothing in it can end it."""
    safe = [_safe(line) for line in lines]
    if len(safe) == 1:
        return [f'{indent}"""{safe[0]}"""']
    body = [f"{indent}{line}" if line else "" for line in safe[1:]]
    return [f'{indent}"""{safe[0]}', *body, f'{indent}"""']


def _safe(line: str) -> str:
    text = "".join(char if char.isprintable() else "?" for char in line)
    return text.replace("\\", "/").replace('"', "'")


def describe_stage(graph: StageGraph, classes: Classes) -> list[str]:
    """Return the docstring of the file."""
    spec = graph.spec
    root = graph.program.module.get("")
    model = f" of {root.class_name}" if root is not None else ""
    covered = ", ".join(spans(_tops(classes)))
    first = f"Stage {spec.index} of {spec.count}{model}."
    lines = [first, "", *_wrap(f"Holds {covered}." if covered else "Holds no parameters.")]
    if graph.program.mode_bound:
        mode, other = ("train", "eval") if graph.program.training else ("eval", "train")
        lines += ["", *_wrap(f"Right in {mode} mode only: in {other} mode the model branches.")]
    fixed = fixed_at(graph.program, spec)
    if fixed:
        some = ", ".join(fixed[:3]) + (f" and {len(fixed) - 3} more" if len(fixed) > 3 else "")
        lines += ["", *_wrap(f"Not to be cast: {some} may name the traced dtype.")]
    return lines


def describe_class(graph: StageGraph, classes: Classes, group: ClassGroup) -> list[str]:
    """Return the docstring of a class."""
    definition = group.first
    if definition.fqn == "":
        scopes = definition.scopes
        what = [f"Stage {graph.spec.index} of {graph.spec.count}."]
    else:
        scopes = [
            scope
            for each in group.definitions
            for scope in each.scopes
            if scope.text is each.bodies[0][0]
        ]
        what = _wrap(", ".join(spans([d.fqn for d in group.definitions])) + ".")
    if not definition.bodies:
        return what
    return [*what, *_signature(graph, definition.bodies[0][0], scopes)]


def describe_helper(graph: StageGraph, scopes: Sequence[Scope]) -> list[str]:
    """Return the docstring of a helper function, given its calls."""
    results = zip(*(scope.outputs for scope in scopes), strict=True)
    shapes = [_shape(graph, values) for values in results]
    return _wrap(f"Return {', '.join(shapes)}.")


def _signature(graph: StageGraph, scope: Scope, same: list[Scope]) -> list[str]:
    lines: list[str] = []
    if scope.inputs:
        lines += ["", "Args:"]
    rows = [other.passed if other.model else other.inputs for other in same]
    for value in scope.arguments():
        if is_list(value):
            packed = scope.packed_inputs()
            shape = _shape(graph, packed)
            lines.append(f"    {scope.variables[value]}: {len(packed)} x {shape}")
            continue
        at = scope.inputs.index(value)
        given = [each for row in rows for each in row[at : at + 1] if each is not None]
        lines.append(f"    {scope.variables[value]}: {_shape(graph, given)}")
    if scope.outputs:
        lines += ["", "Returns:"]
    results = [_results(other) for other in same if len(other.outputs) == len(scope.outputs)]
    for at, (value, elements) in enumerate(_results(scope)):
        name = "" if len(scope.outputs) == 1 else f"{scope.variables[value]}: "
        several = f"{len(elements)} x " if is_list(value) else ""
        given = [each for row in results for each in row[at][1]]
        lines.append(f"    {name}{several}{_shape(graph, given)}")
    return lines


def _results(scope: Scope) -> list[tuple[str, tuple[str, ...]]]:
    """Return what a body returns, lists with all their elements."""
    if scope.returned is None:
        return [(value, (value,)) for value in scope.outputs]
    found: list[tuple[str, tuple[str, ...]]] = []
    for expr in scope.returned:
        (value,) = values(expr)
        elements = scope.lists.get(value, (value,))
        match expr:
            case Unary("*", Subscript(_, (Text(start),))):
                elements = elements[int(start.rstrip(":")) :]
        found.append((value, elements))
    return found


def _shape(graph: StageGraph, values: Sequence[str]) -> str:
    specs = [graph.tensor(value) for value in values]
    known = [spec for spec in specs if isinstance(spec, TensorSpec)]
    if not known or len(known) != len(specs):
        return _QUANTITIES.get(values[0].split(":")[0], "tuple")
    if len({len(spec.shape) for spec in known}) > 1:
        return "tensor"
    dims = []
    for column in zip(*(spec.shape for spec in known), strict=True):
        dims.append(str(column[0]) if len(set(column)) == 1 else "*")
    text = f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"
    dtypes = {spec.dtype for spec in known}
    if dtypes == {"float32"}:
        return text
    return f"{text} {'/'.join(sorted(dtypes))}"


# ---------------------------------------------------------------- names of modules


def _tops(classes: Classes) -> list[str]:
    """Return what the stage holds, cut after the first list index."""
    found: dict[str, None] = {}
    for rel in classes.stage.members:
        name = rel.lstrip("=")
        parts = name.split(".")
        index = next((at for at, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
        found[".".join(parts[: index + 1])] = None
    return list(found)


def spans(names: Iterable[str]) -> list[str]:
    """Return names with runs of an index written as ``layers.0..3``."""
    runs: list[tuple[list[str], int, list[int]]] = []
    for name in dict.fromkeys(names):
        parts = name.split(".")
        at = next((i for i, part in enumerate(parts) if part.isdigit()), -1)
        index = int(parts[at]) if at >= 0 else -1
        shape = [*parts[:at], "#", *parts[at + 1 :]] if at >= 0 else parts
        if runs and at >= 0 and runs[-1][0] == shape and runs[-1][2][-1] == index - 1:
            runs[-1][2].append(index)
        else:
            runs.append((shape, at, [index]))
    found = []
    for shape, at, indices in runs:
        parts = list(shape)
        if at >= 0:
            parts[at] = str(indices[0]) if len(indices) == 1 else f"{indices[0]}..{indices[-1]}"
        found.append(".".join(parts))
    if len(found) > 6:
        return [*found[:4], f"... ({len(found)} in all)"]
    return found


def _wrap(text: str, width: int = WIDTH - 12) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if len(joined) > width and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = joined
    return lines
