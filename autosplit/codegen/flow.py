"""What each scope takes and returns, and where it reads sizes and the device."""

from __future__ import annotations

from autosplit.codegen.errors import CodegenError
from autosplit.codegen.expressions import values
from autosplit.codegen.operators import DEVICE, SYMBOL, TRAINING, operation
from autosplit.codegen.scopes import Scope, StageGraph


def connect(graph: StageGraph, root: Scope) -> None:
    """Fill in inputs, outputs, sizes and device of every scope, inner ones first."""
    for scope in [*root.scopes(), root]:
        _connect(graph, scope)
    _finish_stage(graph, root)


def _connect(graph: StageGraph, scope: Scope) -> None:
    inside = set(scope.nodes())
    used: dict[str, None] = {}
    for item in scope.items:
        used.update(dict.fromkeys(_uses(graph, item)))
    outside = [value for value in used if value not in inside]
    tensors = [value for value in outside if not value.startswith("$")]
    taken = [value for value in tensors if not _owned(graph, scope, value)]
    scope.inputs = _in_order(graph, scope, taken)
    scope.sizes = {}
    scope.device_of = next((v for v in scope.inputs if graph.tensor(v) is not None), None)
    for value in outside:
        if value == DEVICE:
            _find_device(scope)
        elif value == TRAINING:
            if not scope.owns_modules:
                scope.inputs.append(value)
        elif value.startswith(SYMBOL):
            _find_size(graph, scope, value)
    scope.outputs = [
        name
        for name in scope.nodes()
        if any(reader not in inside for reader in graph.readers.get(name, ()))
    ]


def _uses(graph: StageGraph, item: str | Scope) -> list[str]:
    """Return the values an item reads, ``$`` quantities included."""
    if isinstance(item, Scope):
        return item.inputs
    code = operation(graph.nodes[item])
    place = [] if code.place is None else list(values(code.place))
    return place + list(values(code.expr))


def _owned(graph: StageGraph, scope: Scope, value: str) -> bool:
    name = graph.state(value)
    if name is None or not scope.owns_modules:
        return False
    return graph.held_state(name, scope.prefix) is not None


def _in_order(graph: StageGraph, scope: Scope, taken: list[str]) -> list[str]:
    """Sort arguments as the original signature has them; others keep their order of use."""
    rank = {name: index for index, name in enumerate(scope.call.arg_names)}

    def key(value: str) -> int:
        names = graph.local_names(scope.call.index, value)
        return min((rank[name] for name in names if name in rank), default=len(rank))

    return sorted(taken, key=key)


def _find_device(scope: Scope) -> None:
    if scope.device_of is None and scope.kind != "stage":
        scope.inputs.append(DEVICE)


def _find_size(graph: StageGraph, scope: Scope, value: str) -> None:
    symbol = value.removeprefix(SYMBOL)
    for taken in scope.inputs:
        tensor = graph.tensor(taken)
        if tensor is not None and symbol in tensor.shape:
            scope.sizes[symbol] = (taken, tensor.shape.index(symbol))
            return
    if scope.kind != "stage":
        scope.inputs.append(value)


def _finish_stage(graph: StageGraph, root: Scope) -> None:
    """Give the stage the signature that the routing table promises."""
    spec = graph.spec
    needed = set(root.inputs)
    missing = needed.difference(spec.take)
    if missing:
        raise CodegenError(f"stage {spec.index} uses {sorted(missing)} and does not take them")
    wanted = _sizes_used(graph, root)
    root.inputs = list(spec.take)
    root.outputs = list(graph.give)
    root.sizes = {symbol: (v, dim) for symbol, v, dim in spec.sizes if symbol in wanted}
    for symbol in sorted(wanted.difference(root.sizes)):
        _find_size(graph, root, SYMBOL + symbol)
        if symbol not in root.sizes:
            raise CodegenError(f"stage {spec.index} cannot read the size {symbol!r}")
    root.device_of = next((v for v in root.inputs if graph.tensor(v) is not None), None)


def _sizes_used(graph: StageGraph, root: Scope) -> set[str]:
    used = {value for item in root.items for value in _uses(graph, item)}
    return {value.removeprefix(SYMBOL) for value in used if value.startswith(SYMBOL)}
