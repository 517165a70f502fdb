"""Whether the body of one call does what another call does, given other arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from autosplit.codegen.absent import without
from autosplit.codegen.expressions import (
    Expr,
    HelperRef,
    Leaf,
    ModuleRef,
    StateRef,
    Text,
    Value,
    transform,
)
from autosplit.codegen.operators import DEVICE, SYMBOL
from autosplit.codegen.scopes import Scope, StageGraph, Statement

HelperName: TypeAlias = Callable[[int], str]


def roles_of(graph: StageGraph, scope: Scope) -> dict[str, str]:
    """Return the value that seems to be behind each parameter of ``forward``.

    Nothing depends on it but which bodies are compared.
    """
    if scope.roles:
        return scope.roles
    held: dict[str, str] = {}
    for value in scope.inputs:
        names = graph.local_names(scope.call.index, value)
        for name in (*names, scope.variables.get(value, "")):
            if name in scope.call.arg_names:
                held.setdefault(name, value)
    return held


def parameters(graph: StageGraph, scope: Scope) -> dict[str, str] | None:
    """Return the parameter name of each argument; None if there is not one for each."""
    roles = roles_of(graph, scope)
    names = {value: name for name, value in roles.items()}
    return names if set(names) == set(scope.inputs) and len(names) == len(roles) else None


@dataclass
class Match:
    """How a call uses the body of another.

    ``values`` maps values of the model's body to those of the other; None is a value that the
    other does not have. ``guards`` maps statements of the model to the argument they need.
    """

    model: Scope
    scope: Scope
    values: dict[str, str | None]
    guards: dict[int, str] = field(default_factory=dict)

    @property
    def differs(self) -> bool:
        """Whether the call leaves something out or passes one value twice."""
        return None in self.passed or len(set(self.passed)) < len(self.passed)

    @property
    def passed(self) -> list[str | None]:
        """What the call passes for each argument of the model's body."""
        return [self.values.get(value) for value in self.model.inputs]

    @property
    def complete(self) -> bool:
        """Whether each argument is known, and all that the call takes is passed."""
        if not set(self.model.inputs) <= set(self.values):
            return False
        return {each for each in self.passed if each is not None} == set(self.scope.inputs)

    def bind(self, value: str, other: str) -> None:
        """Learn from its first use what the call passes for an argument."""
        if value not in self.values and value in self.model.inputs and other in self.scope.inputs:
            self.values[value] = other


def match_bodies(
    graph: StageGraph, model: Scope, scope: Scope, helper_name: HelperName
) -> Match | None:
    """Return how a call uses the body of another; the fewest arguments that do are passed."""
    if model.call.name != scope.call.name or model.call.arg_names != scope.call.arg_names:
        return None
    names, held = parameters(graph, model), roles_of(graph, scope)
    if model.ambient != scope.ambient or names is None:
        return None
    known = {value: held[name] for value, name in names.items() if name in held}
    open_ = [value for value in model.inputs if value not in known]
    for at in range(len(open_) + 1):
        missing = open_[at:]
        if missing != model.inputs[len(model.inputs) - len(missing) :]:
            continue
        match = Match(model, scope, {**known, **dict.fromkeys(missing)})
        if walk(graph, match, helper_name):
            return match
    return None


def walk(graph: StageGraph, match: Match, helper_name: HelperName) -> bool:
    """Go through both bodies side by side."""
    model, scope, values = match.model, match.scope, match.values
    others = [part for part in scope.body if isinstance(part, Statement)]
    missing = {value for value in model.inputs if value in values and values[value] is None}
    symbols: dict[str, str] = {}
    at = 0
    for position, part in enumerate(model.body):
        assert isinstance(part, Statement)
        plain = replace(part, expr=without(part.expr, missing))
        read = [leaf.name for leaf in plain.leaves() if isinstance(leaf, Value)]
        if any(name in values and values[name] is None for name in read):
            if not _skip(match, position, part, read):
                return False
            continue
        if at == len(others) or not equal(match, plain, others[at], symbols, helper_name):
            return False
        for own, other in zip(part.targets, others[at].targets, strict=True):
            if own is not None:
                values[own] = other
        at += 1
    if at != len(others) or [values[v] for v in model.outputs] != scope.outputs:
        return False
    if not match.complete or (model.device_of in missing and _on_device(model)):
        return False
    return all(_has_size(graph, match, symbols, *pair) for pair in model.sizes.items())


def _on_device(scope: Scope) -> bool:
    return Value(DEVICE) in scope.leaves()


def _has_size(
    graph: StageGraph,
    match: Match,
    symbols: dict[str, str],
    symbol: str,
    place: tuple[str, int],
) -> bool:
    """Say whether a size that the model reads is there in the other call, and is the same."""
    value = match.values.get(place[0])
    tensor = None if value is None else graph.tensor(value)
    return tensor is not None and tensor.shape[place[1]] == symbols.get(symbol)


def _skip(match: Match, position: int, part: Statement, read: list[str]) -> bool:
    """Leave out a statement that needs a missing argument; what it changes stays as it was."""
    model, values = match.model, match.values
    plain = all(map(is_plain, part.leaves()))
    if part.place is not None or len(part.targets) != 1 or not plain:
        return False
    if part.ambient != model.ambient or part.targets[0] is None:
        return False
    target = part.targets[0]
    absent = [name for name in model.inputs if values.get(name, name) is None]
    missing = [name for name in absent if name in read]
    kept = [name for name in dict.fromkeys(read) if values.get(name) is not None]
    name = model.variables[target]
    before = [value for value in kept if model.variables[value] == name]
    if len(missing) != 1 or len(before) != 1 or target in model.outputs:
        return False
    values[target] = values[before[0]]
    match.guards[position] = missing[0]
    return True


def is_plain(leaf: Leaf) -> bool:
    """Say whether a leaf is neither a module nor state nor a helper function."""
    return not isinstance(leaf, ModuleRef | StateRef | HelperRef)


def equal(
    match: Match,
    part: Statement,
    other: Statement,
    symbols: dict[str, str],
    helper_name: HelperName,
) -> bool:
    """Say whether two statements are one, given what is known of their values."""
    if part.ambient != other.ambient or (part.place is None) != (other.place is None):
        return False
    if [target is None for target in part.targets] != [t is None for t in other.targets]:
        return False
    found = iter([leaf.name for leaf in other.leaves() if isinstance(leaf, Value)])

    def mine(leaf: Leaf) -> Expr:
        if isinstance(leaf, Value):
            theirs = next(found, "")
            if leaf.name.startswith(SYMBOL) and theirs.startswith(SYMBOL):
                known = symbols.setdefault(
                    leaf.name.removeprefix(SYMBOL), theirs.removeprefix(SYMBOL)
                )
                return Value(SYMBOL + known)
            match.bind(leaf.name, theirs)
            return Value(match.values.get(leaf.name) or leaf.name)
        return _relative(leaf, match.model.prefix, helper_name)

    def its(leaf: Leaf) -> Expr:
        return _relative(leaf, match.scope.prefix, helper_name)

    # The place comes first, as in the order of leaves.
    pairs = [(part.place, other.place), (part.expr, other.expr)]
    return all(
        transform(own, mine) == transform(theirs, its)
        for own, theirs in pairs
        if own is not None and theirs is not None
    )


def _relative(leaf: Leaf, prefix: str, helper_name: HelperName) -> Expr:
    """Return a leaf without the name of its module; a call of an inner class is its own kind."""
    match leaf:
        case ModuleRef(fqn, call):
            return Text(f".{fqn[len(prefix) :]}" + ("" if call is None else f":{call}"))
        case StateRef(fqn):
            return Text(f".{fqn[len(prefix) :]}")
        case HelperRef(call):
            return Text(helper_name(call))
    return leaf
