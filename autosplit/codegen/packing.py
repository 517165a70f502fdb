"""Values that only fill a list of a stage, and that it takes as one: ``*weights, x = values``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

from autosplit.codegen.expressions import Display, Expr, Unary, Value, rebuild
from autosplit.codegen.lists import display, find, is_list, listed, mapped, rounds
from autosplit.codegen.scopes import Loop, Scope, StageGraph

_FEWEST = 3


def pack_inputs(graph: StageGraph, scope: Scope) -> None:
    """Let inputs of a stage that only fill a list arrive as one."""
    parts = scope.body
    lines = [line for part in parts for each in rounds(part) for line in each]
    read = Counter(leaf.name for line in lines for leaf in line.leaves() if isinstance(leaf, Value))
    read.update(scope.results())
    for at, part in enumerate(parts):
        if isinstance(part, Loop):
            continue
        run = _longest_run(scope.inputs, part.expr, read)
        if run is None or not _read_sizes_elsewhere(graph, scope, run):
            continue
        names = tuple(scope.inputs[slice(*run)])
        filled = Display("list", tuple(map(Value, names)))
        if part.expr == filled and is_list(str(part.targets[0])):
            scope.packed = (*run, str(part.targets[0]))
            del parts[at]
            return
        value = listed(names[-1])
        scope.lists[value] = names
        scope.packed = (*run, value)
        packed = partial(_packed, names=names, value=value)
        parts[at] = mapped(part, partial(rebuild, change=packed))
        return


def _longest_run(inputs: list[str], expr: Expr, read: Counter[str]) -> tuple[int, int] | None:
    """Return the longest stretch of inputs that stand in a display, and nowhere else."""
    best = (0, 0)
    for names in _displays(expr):
        for start in range(len(inputs)):
            place = names.index(inputs[start]) if inputs[start] in names else len(names)
            stop = start
            while stop < len(inputs) and names[place + stop - start :][:1] == (inputs[stop],):
                if read[inputs[stop]] != 1:
                    break
                stop += 1
            best = max(best, (start, stop), key=lambda run: run[1] - run[0])
    return best if best[1] - best[0] >= _FEWEST else None


def _displays(expr: Expr) -> Iterator[tuple[str, ...]]:
    """Yield the values of each list or tuple; "" stands for other elements."""
    found: list[tuple[str, ...]] = []

    def look(part: Expr) -> Expr:
        if isinstance(part, Display):
            found.append(tuple(i.name if isinstance(i, Value) else "" for i in part.items))
        return part

    rebuild(expr, look)
    return iter(found)


def _packed(expr: Expr, names: tuple[str, ...], value: str) -> Expr:
    if not isinstance(expr, Display):
        return expr
    items = tuple(item.name if isinstance(item, Value) else "" for item in expr.items)
    start = find(items, names)
    if start is None:
        return expr
    before, after = expr.items[:start], expr.items[start + len(names) :]
    return display(expr.kind, (*before, Unary("*", Value(value)), *after))


def _read_sizes_elsewhere(graph: StageGraph, scope: Scope, run: tuple[int, int]) -> bool:
    """Read sizes and the device from other inputs than those of a list, if there are such."""
    packed = scope.inputs[slice(*run)]
    others = [value for value in scope.inputs if value not in packed]
    found: dict[str, tuple[str, int]] = {}
    for symbol, (value, dimension) in scope.sizes.items():
        if value not in packed:
            found[symbol] = (value, dimension)
            continue
        shapes = ((other, t.shape) for other in others if (t := graph.tensor(other)) is not None)
        place = next(((other, s.index(symbol)) for other, s in shapes if symbol in s), None)
        if place is None:
            return False
        found[symbol] = place
    scope.sizes = found
    if scope.device_of in packed:
        scope.device_of = next((v for v in others if graph.tensor(v) is not None), None)
    return True
