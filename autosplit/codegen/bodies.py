"""The lines of a method or function: sizes, statements, loops, ``with`` blocks, return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from autosplit.codegen.constants import spell
from autosplit.codegen.definitions import Classes, ClassGroup, Definition
from autosplit.codegen.errors import CodegenError
from autosplit.codegen.expressions import (
    Attribute,
    Display,
    Expr,
    HelperRef,
    Invoke,
    Leaf,
    ModuleRef,
    Number,
    StateRef,
    Subscript,
    Text,
    Unary,
    Value,
    call,
    dotted,
    transform,
    values,
)
from autosplit.codegen.layout import statement
from autosplit.codegen.lists import PACKED
from autosplit.codegen.modules import deep_path, path
from autosplit.codegen.nouns import singular
from autosplit.codegen.operators import DEVICE
from autosplit.codegen.scopes import Loop, Scope, StageGraph, Statement
from autosplit.codegen.spelling import quote, show
from autosplit.program import Ambient

_AUGMENTED = {"add_": "+=", "sub_": "-=", "mul_": "*=", "div_": "/="}
STEP = "    "


@dataclass
class Body:
    """Writes one body.

    Parameters
    ----------
    owner
        The class it is a method of; None for a function.
    first_slot
        Number of the first number of this body among those of the class.
    helper
        Name of the function that holds a call.
    classes
        The classes of the stage.
    """

    graph: StageGraph
    scope: Scope
    owner: ClassGroup | None
    first_slot: int
    helper: Callable[[int], str]
    classes: Classes
    indent: str
    uses: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.slot = self.first_slot
        self.starts: dict[str, Expr] = {}

    # ------------------------------------------------------------ lines

    def lines(self) -> list[str]:
        """Return the lines of the body."""
        body = list(self.scope.body)
        found = [*self._unpacked(), *self._sizes()]
        returned = self._returned(body)
        del body[len(body) - len(returned) :]
        found += self._parts(body)
        if self.scope.outputs or self.scope.kind == "stage":
            found += statement(self.indent, "return ", self._outputs(returned))
        return found or [f"{self.indent}return None"]

    def _returned(self, body: list[Statement | Loop]) -> list[Statement]:
        """Return the last statements whose values are only returned, in the order of outputs.

        A lone result is returned as it is; one of several only if it has no name in the source.
        """
        outputs = self.scope.outputs
        found: list[Statement] = []
        limit = len(outputs)
        read: set[str] = set()
        for part in reversed(body):
            if not isinstance(part, Statement) or part.place is not None or part.guard:
                break
            value = part.targets[0] if len(part.targets) == 1 else None
            if value is None or outputs.count(value) != 1 or value in read:
                break
            named = self.graph.local_names(self.scope.call.index, value)
            if self._is_unpacked(part) or (len(outputs) > 1 and named):
                break
            if part.ambient != self.scope.ambient or outputs.index(value) >= limit:
                break
            limit = outputs.index(value)
            read.update(values(part.expr))
            found.insert(0, part)
        return found

    def _outputs(self, returned: list[Statement]) -> Expr:
        made = {str(part.targets[0]): self._fill(part.expr) for part in returned}
        results = self.scope.returned or tuple(map(Value, self.scope.outputs))
        items = tuple(
            transform(
                result,
                lambda leaf: (
                    made.get(leaf.name) or self._leaf(leaf) if isinstance(leaf, Value) else leaf
                ),
            )
            for result in results
        )
        if len(items) == 1:
            (item,) = items
            return call("tuple", item.operand) if isinstance(item, Unary) else item
        return Display("bare" if items else "tuple", items)

    def _unpacked(self) -> Iterator[str]:
        """Take a list out of the arguments."""
        if self.scope.packed is None:
            return
        names = self.scope.argument_names()
        packed, given = self.scope.packed[2], self.scope.variables[PACKED]
        if len(names) == 1:
            yield f"{self.indent}{names[0]} = list({given})"
            return
        at = self.scope.arguments().index(packed)
        names[at] = f"*{names[at]}"
        yield f"{self.indent}{', '.join(names)} = {given}"

    def _sizes(self) -> Iterator[str]:
        """Read sizes from the shapes of inputs, several of one shape at once."""
        by_value: dict[str, dict[int, str]] = {}
        for symbol, (value, dimension) in self.scope.sizes.items():
            by_value.setdefault(value, {})[dimension] = self.scope.variables[f"$symbol:{symbol}"]
        for value, dims in by_value.items():
            shape = Attribute(self._name(value), "shape")
            tensor = self.graph.tensor(value)
            rank = len(tensor.shape) if tensor is not None else 0
            if len(dims) == 1:
                ((dimension, name),) = dims.items()
                yield from statement(
                    self.indent, f"{name} = ", Subscript(shape, (Text(str(dimension)),))
                )
                continue
            end = max(dims) + 1
            names = ", ".join(dims.get(dimension, "_") for dimension in range(end))
            whole = shape if end == rank else Subscript(shape, (Text(f":{end}"),))
            yield from statement(self.indent, f"{names} = ", whole)

    def _parts(self, body: list[Statement | Loop]) -> Iterator[str]:
        ambient = self.scope.ambient
        guarded: str | None = None
        for part in body:
            needed = part.ambient if isinstance(part, Statement) else part.body[0].ambient
            inside = needed != self.scope.ambient
            if needed != ambient and inside:
                yield from self._with(needed)
            ambient = needed
            indent = self.indent + STEP if inside else self.indent
            guard = part.guard if isinstance(part, Statement) else None
            if guard is not None:
                if guard != guarded:
                    yield f"{indent}if {self.scope.variables[guard]} is not None:"
                indent += STEP
            guarded = guard
            if isinstance(part, Statement):
                yield from self._statement(indent, part)
            else:
                yield from self._loop(indent, part)

    def _with(self, ambient: Ambient) -> Iterator[str]:
        items: list[Expr] = []
        if ambient.inference:
            items.append(call("torch.inference_mode"))
        elif not ambient.grad:
            items.append(call("torch.no_grad"))
        elif not self.scope.ambient.grad:
            items.append(call("torch.enable_grad"))
        wanted = dict(ambient.autocast)
        for device, dtype in ambient.autocast:
            items.append(
                call("torch.autocast", self._device_type(device), dotted(f"torch.{dtype}"))
            )
        for device, _ in self.scope.ambient.autocast:
            if device not in wanted:
                off = (("enabled", Text("False")),)
                items.append(Invoke(dotted("torch.autocast"), (self._device_type(device),), off))
        yield from (
            statement(self.indent, "with ", Display("bare", tuple(items)), ":")
            if len(items) > 1
            else statement(self.indent, "with ", items[0], ":")
        )

    def _device_type(self, device: str) -> Expr:
        if self.scope.device_of is None and self.scope.kind != "stage":
            return Text(quote(device))
        return Attribute(self._device(), "type")

    # ------------------------------------------------------------ statements

    def _statement(self, indent: str, part: Statement) -> Iterator[str]:
        if part.place is not None:
            # The place comes second, as in the order in which numbers were collected.
            place = self._fill(part.place)
            yield from statement(indent, f"{show(place)} = ", self._fill(part.expr))
            return
        names = [self.scope.variables[t] if t is not None else "_" for t in part.targets]
        expr = self._fill(part.expr)
        augmented = self._augmented(names, expr)
        if augmented is not None:
            yield from statement(indent, *augmented)
            return
        several = ", ".join(names)
        if len(names) == 1 and self._is_unpacked(part):
            several = f"({several},)"
        yield from statement(indent, f"{several} = " if names else "", expr)

    def _is_unpacked(self, part: Statement) -> bool:
        return isinstance(part.item, str) and part.targets[0] != part.item

    def _augmented(self, names: list[str], expr: Expr) -> tuple[str, Expr] | None:
        """Return ``x += y`` for ``x = x.add_(y)``."""
        match expr:
            case Invoke(Attribute(Text(receiver), method), (operand,), ()):
                if names == [receiver] and method in _AUGMENTED:
                    return f"{receiver} {_AUGMENTED[method]} ", operand
        return None

    # ------------------------------------------------------------ loops

    def _loop(self, indent: str, loop: Loop) -> Iterator[str]:
        for value, initial in loop.copies:
            yield f"{indent}{self.scope.variables[value]} = {self.scope.variables[initial]}"
        head, self.starts = self._loop_head(loop)
        yield from statement(indent, *head, ":")
        for part in loop.body:
            yield from self._statement(indent + STEP, part)
        self.starts = {}

    def _loop_head(self, loop: Loop) -> tuple[tuple[str, Expr], dict[str, Expr]]:
        count = len(loop.rounds)
        if not loop.lists:
            return ("for _ in ", call("range", Text(str(count)))), {}
        lists = [(name[len(self.scope.prefix) :], first) for name, first in loop.lists]
        names: list[str] = []
        items: list[Expr] = []
        for name, first in lists:
            walked = self._walk(name, first, count)
            if walked is None:
                return self._indexed(lists, count)
            items.append(walked)
            names.append(self._item_name(loop, name, names, alone=len(lists) == 1))
        starts: dict[str, Expr] = {
            f"{name}.{first}" if name else str(first): Text(variable)
            for (name, first), variable in zip(lists, names, strict=True)
        }
        head = items[0] if len(items) == 1 else call("zip", *items)
        return (f"for {', '.join(names)} in ", head), starts

    def _container(self, name: str) -> tuple[Expr, str, list[str]]:
        tree = self._definition().tree
        branch = tree.at(name)
        base = path(tree, name, Text("self")) if name else Text("self")
        return base, getattr(branch, "kind", "module"), list(getattr(branch, "children", ()))

    def _walk(self, name: str, first: int, count: int) -> Expr | None:
        """Return what a loop over part of a container runs over, if it is not too odd."""
        base, kind, keys = self._container(name)
        whole = keys == [str(first + at) for at in range(count)]
        if kind in ("dict", "parameter dict") and whole:
            return call_method(base, "values")
        if kind not in ("list", "parameter list"):
            return None
        if whole:
            return base
        stop = "" if first + count == len(keys) else str(first + count)
        return Subscript(base, (Text(f"{first or ''}:{stop}"),))

    def _indexed(
        self, lists: list[tuple[str, int]], count: int
    ) -> tuple[tuple[str, Expr], dict[str, Expr]]:
        firsts = {first for _, first in lists}
        if len(firsts) != 1:
            raise CodegenError("lists that a loop walks begin at different indices")
        (first,) = firsts
        index = self._free_name("i")
        bounds = [str(first), str(first + count)] if first else [str(count)]
        starts: dict[str, Expr] = {}
        for name, _ in lists:
            base, kind, _ = self._container(name)
            at = Text(index) if kind.endswith("list") else call("str", Text(index))
            item: Expr = Subscript(base, (at,))
            if kind == "module":
                item = call("getattr", base, call("str", Text(index)))
            starts[f"{name}.{first}" if name else str(first)] = item
        return (f"for {index} in ", call("range", *map(Text, bounds))), starts

    def _item_name(self, loop: Loop, name: str, names: list[str], *, alone: bool) -> str:
        if loop.variable and (alone or not names):
            wish = loop.variable
        else:
            wish = singular(name.rpartition(".")[2])
        taken = set(self.scope.variables.values()) | set(names)
        if wish == loop.variable and wish not in names:
            taken -= {wish}
        return wish if wish not in taken else self._free_name(wish, names)

    def _free_name(self, wish: str, more: list[str] | None = None) -> str:
        taken = set(self.scope.variables.values()) | set(more or ())
        name, number = wish, 1
        while name in taken:
            number += 1
            name = f"{wish}_{number}"
        return name

    # ------------------------------------------------------------ leaves

    def _definition(self) -> Definition:
        if self.owner is None:
            raise CodegenError("a function has no members")
        return self.owner.first

    def _name(self, value: str) -> Expr:
        return Text(self.scope.variables[value])

    def _device(self) -> Expr:
        if DEVICE in self.scope.variables:
            return self._name(DEVICE)
        if self.scope.device_of is not None:
            return Attribute(self._name(self.scope.device_of), "device")
        for name in self.graph.spec.state:
            if self.owner is not None and self.graph.held_state(name, self.scope.prefix):
                return Attribute(self._state(name), "device")
        return call("torch.get_default_device")

    def _state(self, name: str) -> Expr:
        rel = name[len(self.scope.prefix) :]
        return deep_path(self.classes, self._definition(), rel, self.starts)

    def _fill(self, expr: Expr) -> Expr:
        return transform(expr, self._leaf)

    def _leaf(self, leaf: Leaf) -> Expr:
        match leaf:
            case Value(name) if name == DEVICE:
                return self._device()
            case Value(name):
                return self._name(name)
            case Number():
                return self._number(leaf)
            case ModuleRef(fqn, call_index):
                module = self._state(fqn)
                method = "forward" if call_index is None else self.classes.method(call_index)
                return module if method == "forward" else Attribute(module, method)
            case StateRef(fqn):
                return self._state(fqn)
            case HelperRef(call_index):
                return Text(self.helper(call_index))
        return leaf

    def _number(self, leaf: Number) -> Expr:
        name = None
        if self.owner is not None:
            name = (self.owner.lifted | self.owner.attributes).get(self.slot)
        self.slot += 1
        if name is None:
            return spell(leaf)
        self.uses.add(name)
        return dotted(f"self.{name}")


def call_method(base: Expr, name: str) -> Expr:
    """Return ``base.name()``."""
    return Invoke(Attribute(base, name))
