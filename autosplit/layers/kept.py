"""Which storages backward keeps for each operation, told from the program alone.

Rules by kind of operation, after torch's ``derivatives.yaml``; of an operation that is not known
all inputs and outputs are taken to be kept. State is there anyway and does not count.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from autosplit.layers.operators import family_of, kept_by, kind_of
from autosplit.layers.work import Work
from autosplit.program import (
    DTYPE_BYTES,
    Arg,
    Mapping,
    Node,
    Program,
    Ref,
    TensorSpec,
    TrainingSwitch,
)
from autosplit.program import Sequence as Items

_STATISTIC_BYTES = 4
"""Means, deviations and logarithms of sums are kept in float32."""

_PLACE_BYTES = 8
"""A maximum is remembered by its place."""

_GATES = 6
"""What a recurrent layer keeps for each number it returns: gates, the cell and its tanh."""


class Kept:
    """What the operations of a program keep for backward, at the example sizes.

    Parameters
    ----------
    program
        A traced model.
    mask_bytes
        Bytes of one element of a dropout mask; that of its input where None (on a CPU).
    """

    def __init__(self, program: Program, mask_bytes: int | None = None) -> None:
        self._program = program
        self._work = Work(program)
        self._mask_bytes = mask_bytes
        self._state = {
            storage_of(node) for node in program.nodes if node.op == "state" and node.tensors
        }
        self._storage_bytes: dict[Hashable, int] = {}
        for node in program.nodes:
            if node.tensors:
                nbytes = max(self._value_bytes(node), self._storage_bytes.get(storage_of(node), 0))
                self._storage_bytes[storage_of(node)] = nbytes

    def layer(self, names: Iterable[str]) -> dict[Hashable, int]:
        """Return the bytes of each storage that a layer keeps.

        A key is the storage of a value, or ``(operation, number)`` for one that lives inside.
        """
        found: dict[Hashable, int] = {}
        for name in names:
            node = self._program.node[name]
            if any(spec.requires_grad for spec in node.tensors):
                for key, nbytes in self._operation(node).items():
                    found[key] = max(nbytes, found.get(key, 0))
        return found

    def _operation(self, node: Node) -> dict[Hashable, int]:
        values, inside = self._rule(node)
        found: dict[Hashable, int] = {}
        for value in values:
            if (key := storage_of(value)) not in self._state:
                found[key] = self._storage_bytes[key]
        found |= {(node.name, number): nbytes for number, nbytes in enumerate(inside) if nbytes}
        return found

    def _rule(self, node: Node) -> tuple[list[Node], list[int]]:
        """Return the values kept, and the bytes of what is kept besides."""
        kind = kind_of(self._program, node)
        given = self._given(node)
        floating = [value for value in given if _is_floating(value.tensors[0])]
        match kept_by(kind):
            case "nothing":
                return [], []
            case "input":
                return floating[:1], []
            case "output":
                return [node], []
            case "indices":
                return [value for value in given if value not in floating], []
            case "statistics":
                rows = self._rows(node, kind)
                if kind == "rmsnorm":
                    # Made of plain operations where no kernel is fused: x / rms is kept too.
                    scaled = self._work.nbytes(node.tensors[0])
                    return floating[:1], [_STATISTIC_BYTES * rows, scaled]
                return floating[:1], [2 * _STATISTIC_BYTES * rows]
            case "mask":
                return [], self._mask(node)
            case "loss":
                return [v for v in given if v not in floating], [self._value_bytes(given[0])]
            case "gates":
                return floating, [_GATES * sum(map(self._work.nbytes, node.tensors))]
            case "divisor":
                return self._divided(floating, node), []
            case "factors":
                return self._factors(node, kind, floating)
            case "places":
                return floating[:1], [_PLACE_BYTES * self._work.numel(node.tensors[0])]
            case "attention":
                return self._attention(node, kind, given)
            case _:
                return [*floating, node], []

    def _factors(
        self, node: Node, kind: str, floating: Sequence[Node]
    ) -> tuple[list[Node], list[int]]:
        """Return each operand whose partner wants a gradient; under autocast its cast copy."""
        trained = node.op == "module" and any(
            self._program.state[name].requires_grad for name in self._program.states_of(node)
        )
        values = [
            value
            for place, value in enumerate(floating)
            if trained or any(wants(o) for p, o in enumerate(floating) if p != place)
        ]
        if len(floating) == 1 and node.op == "function":
            # The same value twice, or with a number, which keeps nothing.
            twice = sum(isinstance(arg, Ref) for arg in node.args) > 1
            values = list(floating) if twice else []
        dtype = node.tensors[0].dtype
        if family_of(kind) == "pointwise":
            return values, []
        cast = [value for value in values if value.tensors[0].dtype != dtype]
        copies = [self._work.numel(value.tensors[0]) * DTYPE_BYTES[dtype] for value in cast]
        weights = [
            state.nbytes // DTYPE_BYTES[state.dtype] * DTYPE_BYTES[dtype]
            for state in map(self._program.state.__getitem__, self._program.states_of(node))
            if state.kind == "parameter" and state.dtype != dtype and len(state.shape) > 1
        ]
        if kind == "einsum":
            # Dimensions of weights are put in the order of a product, which copies them.
            weights += [self._value_bytes(v) for v in floating if storage_of(v) in self._state]
        return [value for value in values if value not in cast], [*copies, *weights]

    def _divided(self, floating: Sequence[Node], node: Node) -> list[Node]:
        if len(floating) < 2:
            return list(floating) if node.args and not isinstance(node.args[0], Ref) else []
        top, bottom = floating[:2]
        return [top, bottom] if wants(bottom) else [bottom]

    def _attention(
        self, node: Node, kind: str, given: Sequence[Node]
    ) -> tuple[list[Node], list[int]]:
        """Return query, key, value, mask and result, and a logarithm for each row of scores.

        As one module it also keeps the projections, and the scores themselves.
        """
        query, key = given[0].tensors[0], given[min(1, len(given) - 1)].tensors[0]
        rows = self._work.numel(query) // max(1, self._work.shape(query)[-1])
        scores = rows * self._work.shape(key)[-2]
        width = DTYPE_BYTES[query.dtype]
        copies = [self._work.nbytes(query), self._work.nbytes(key)]
        if not kind.startswith("scaleddot"):
            heads = int(dict(self._program.module[node.target].attributes).get("num_heads", 1))
            return [*given, node], [4 * copies[0], heads * scores * width]
        if self._mask_bytes is None and self._drops(node, "dropout_p", 4):
            # A CPU has no fused kernel with dropout: scores, those left, the mask, scaled copies.
            return [*given[2:]], [*copies, 2 * scores * width, scores]
        return [*given, node], [_STATISTIC_BYTES * rows]

    def _mask(self, node: Node) -> list[int]:
        if not self._drops(node, "p", 1):
            return []
        spec = node.tensors[0]
        return [self._work.numel(spec) * (self._mask_bytes or DTYPE_BYTES[spec.dtype])]

    def _drops(self, node: Node, keyword: str, place: int) -> bool:
        """Return whether an operation draws a mask: by its mode, and by its rate."""
        if node.op == "module":
            module = self._program.module[node.target]
            return module.training and dict(module.attributes).get(keyword, 1.0) != 0
        keywords = {name: _in_training(arg) for name, arg in node.kwargs}
        plain = [_in_training(arg) for arg in node.args]
        rate = keywords.get(keyword, plain[place] if len(plain) > place else 0.0)
        mode = keywords.get("training", plain[2] if keyword == "p" and len(plain) > 2 else True)
        return bool(mode) and rate != 0.0

    def _rows(self, node: Node, kind: str) -> int:
        """Return how many means there are: one a row, or a channel, or a group."""
        shape = self._work.shape(node.tensors[0])
        if kind in ("layernorm", "rmsnorm"):
            return self._work.numel(node.tensors[0]) // max(1, shape[-1])
        if kind in ("batchnorm", "syncbatchnorm"):
            return shape[1] if len(shape) > 1 else 1
        groups = shape[1] if len(shape) > 1 else 1
        if node.op == "module":
            groups = int(
                dict(self._program.module[node.target].attributes).get("num_groups", groups)
            )
        return shape[0] * groups

    def _given(self, node: Node) -> list[Node]:
        """Return the values among the arguments, in order."""
        found: dict[str, None] = {}
        for arg in (*node.args, *(arg for _, arg in node.kwargs)):
            items = arg.items if isinstance(arg, Items) else (arg,)
            if isinstance(arg, Mapping):
                items = tuple(value for _, value in arg.items)
            found.update((item.name, None) for item in items if isinstance(item, Ref))
        nodes = map(self._program.node.__getitem__, found)
        return [each for each in nodes if each.tensors]

    def _value_bytes(self, node: Node) -> int:
        return sum(self._work.nbytes(spec) for spec in node.tensors)


def storage_of(node: Node) -> Hashable:
    """Return the key of the memory a value lives in."""
    storage = node.tensors[0].storage
    return storage if storage >= 0 else node.name


def wants(node: Node) -> bool:
    """Return whether a gradient is computed for a value."""
    return any(spec.requires_grad for spec in node.tensors)


def _in_training(arg: Arg) -> Arg:
    return arg.train if isinstance(arg, TrainingSwitch) else arg


def _is_floating(spec: TensorSpec) -> bool:
    return "float" in spec.dtype or "complex" in spec.dtype
