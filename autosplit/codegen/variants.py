"""Calls of one ``forward`` with and without an optional argument, or one tensor in two roles.

Attention over itself passes ``x`` where attention over a memory passes the memory; a decoder
passes a mask and an encoder none. The calls record different operations; where those of one are
those of another but for statements that only a missing argument needs, both share a body: it
runs these statements ``if mask is not None``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

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
from autosplit.codegen.operators import SYMBOL
from autosplit.codegen.scopes import Loop, Rewrite, Scope, StageGraph, Statement
from autosplit.codegen.tree import linked

HelperName: TypeAlias = Callable[[int], str]


def share_bodies(
    graph: StageGraph,
    root: Scope,
    scopes: list[Scope],
    helper_name: HelperName,
) -> None:
    """Let calls of one height in the call tree use the body of a call with more arguments."""
    chained = {id(item) for parent in [*root.scopes(), root] for item in _chained(graph, parent)}
    fit = [scope for scope in scopes if scope.kind == "module" and id(scope) not in chained]
    fit = [scope for scope in fit if not any(isinstance(part, Loop) for part in scope.body)]
    groups: dict[tuple[object, ...], list[Scope]] = {}
    for scope in fit:
        if scope.call.arg_names and not scope.part:
            groups.setdefault((scope.call.name, scope.call.arg_names), []).append(scope)
    for group in groups.values():
        _share(graph, group, helper_name)


def _share(graph: StageGraph, group: list[Scope], helper_name: HelperName) -> None:
    """Find the body that most calls of one module class can use."""
    kinds: dict[tuple[object, ...], Scope] = {}
    for scope in group:
        kinds.setdefault((len(scope.inputs), len(scope.body), *_roles(graph, scope)), scope)
    plain = [each for each in kinds.values() if _parameters(graph, each) is not None]
    if not plain:
        return
    model = max(plain, key=lambda each: len(each.inputs))
    others = [each for each in kinds.values() if each is not model]
    for other in others:
        if _match(graph, model, other, helper_name) is None:
            joined = _join(graph, model, other, helper_name)
            joined = joined or _join(graph, other, model, helper_name)
            model = joined or model
    found = [_match(graph, model, scope, helper_name) for scope in group if scope is not model]
    matches = [match for match in found if match is not None]
    if any(match.differs for match in matches):
        for match in matches:
            _adopt(graph, match)


def _roles(graph: StageGraph, scope: Scope) -> dict[str, str]:
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


def _parameters(graph: StageGraph, scope: Scope) -> dict[str, str] | None:
    """Return the parameter name of each argument; None if there is not one for each."""
    roles = _roles(graph, scope)
    names = {value: name for name, value in roles.items()}
    return names if set(names) == set(scope.inputs) and len(names) == len(roles) else None


def _chained(graph: StageGraph, parent: Scope) -> list[Scope]:
    """Return the inner scopes of a sequence, which calls them with one value."""
    if parent.kind == "sequence" or (parent.kind == "module" and linked(graph, parent)):
        return [item for item in parent.items if isinstance(item, Scope)]
    return []


@dataclass
class _Match:
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
        return [self.values[value] for value in self.model.inputs]


def _adopt(graph: StageGraph, match: _Match) -> None:
    model, scope = match.model, match.scope
    scope.model, scope.passed = model, match.passed
    missing = [value for value in model.inputs if match.values[value] is None]
    model.optional.update(missing)
    for at, argument in match.guards.items():
        statement = model.body[at]
        assert isinstance(statement, Statement)
        statement.guard = argument
    if match.differs:
        names = " and ".join(model.variables[value] for value in missing)
        why = f"the body of {model.fqn}" + (f" without {names}" if names else "")
        graph.rewrites.append(Rewrite("shared body", scope.fqn, why))


def _match(graph: StageGraph, model: Scope, scope: Scope, helper_name: HelperName) -> _Match | None:
    if model.call.name != scope.call.name or model.call.arg_names != scope.call.arg_names:
        return None
    if model.ambient != scope.ambient:
        return None
    arguments = _arguments(graph, model, scope)
    if arguments is None:
        return None
    match = _Match(model, scope, arguments)
    return match if _walk(graph, match, helper_name) else None


def _arguments(graph: StageGraph, model: Scope, scope: Scope) -> dict[str, str | None] | None:
    """Return what the other call passes for each argument, optional ones last."""
    held = _roles(graph, scope)
    names = _parameters(graph, model)
    if names is None:
        return None
    found: dict[str, str | None] = {}
    for value in model.inputs:
        if None in found.values() and names[value] in held:
            return None
        found[value] = held.get(names[value])
    return found if set(scope.inputs) <= set(found.values()) else None


def _walk(graph: StageGraph, match: _Match, helper_name: HelperName) -> bool:
    """Go through both bodies side by side."""
    model, scope, values = match.model, match.scope, match.values
    others = [part for part in scope.body if isinstance(part, Statement)]
    symbols: dict[str, str] = {}
    at = 0
    for position, part in enumerate(model.body):
        assert isinstance(part, Statement)
        read = [leaf.name for leaf in part.leaves() if isinstance(leaf, Value)]
        if any(name in values and values[name] is None for name in read):
            if not _skip(match, position, part, read):
                return False
            continue
        if at == len(others) or not _equal(match, part, others[at], symbols, helper_name):
            return False
        for own, other in zip(part.targets, others[at].targets, strict=True):
            if own is not None:
                values[own] = other
        at += 1
    if at != len(others) or [values[v] for v in model.outputs] != scope.outputs:
        return False
    return all(_has_size(graph, match, symbols, *pair) for pair in model.sizes.items())


def _has_size(
    graph: StageGraph,
    match: _Match,
    symbols: dict[str, str],
    symbol: str,
    place: tuple[str, int],
) -> bool:
    """Say whether a size that the model reads is there in the other call, and is the same."""
    value = match.values.get(place[0])
    tensor = None if value is None else graph.tensor(value)
    return tensor is not None and tensor.shape[place[1]] == symbols.get(symbol)


def _skip(match: _Match, position: int, part: Statement, read: list[str]) -> bool:
    """Leave out a statement that needs a missing argument; what it changes stays as it was."""
    model, values = match.model, match.values
    plain = all(isinstance(leaf, Value | Text) or _is_number(leaf) for leaf in part.leaves())
    if part.place is not None or len(part.targets) != 1 or not plain:
        return False
    if part.ambient != model.ambient or part.targets[0] is None:
        return False
    target = part.targets[0]
    missing = [name for name in model.inputs if name in read and values[name] is None]
    kept = [name for name in dict.fromkeys(read) if values.get(name) is not None]
    name = model.variables[target]
    before = [value for value in kept if model.variables[value] == name]
    if len(missing) != 1 or len(before) != 1 or target in model.outputs:
        return False
    values[target] = values[before[0]]
    match.guards[position] = missing[0]
    return True


def _is_number(leaf: Leaf) -> bool:
    return not isinstance(leaf, ModuleRef | StateRef | HelperRef)


def _equal(
    match: _Match,
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


# ---------------------------------------------------------------- two bodies into one


def _join(graph: StageGraph, base: Scope, other: Scope, helper_name: HelperName) -> Scope | None:
    """Return the body of one call with what another adds for an argument of its own."""
    roles, held = _roles(graph, base), _roles(graph, other)
    names = _parameters(graph, base)
    if names is None:
        return None
    values: dict[str, str | None] = {v: held[n] for v, n in names.items() if n in held}
    extras = {v: n for n, v in held.items() if v not in values.values()}
    order = base.call.arg_names.index
    if len(values) != len(base.inputs) or len(extras) != 1 or base.optional:
        return None
    ((extra, role),) = extras.items()
    variable = other.variables[extra]
    if set(other.inputs) - {extra} - set(values.values()) or variable in base.variables.values():
        return None
    if order(role) < max(map(order, roles), default=-1):
        return None
    match = _Match(base, other, values)
    body = _joined(match, extra, helper_name)
    if body is None:
        return None
    made = {value: base.variables.get(value, "") for part in body for value in part.made()}
    made |= {str(p.targets[0]): other.variables[str(p.targets[0])] for p in body if p.guard}
    return replace(
        base,
        inputs=[*base.inputs, extra],
        variables={**base.variables, **made, extra: variable},
        optional={extra},
        roles={**roles, role: extra},
        body=list(body),
    )


def _joined(match: _Match, extra: str, helper_name: HelperName) -> list[Statement] | None:
    base, other, values = match.model, match.scope, match.values
    rest = [part for part in base.body if isinstance(part, Statement)]
    symbols: dict[str, str] = {}
    renamed: dict[str, str] = {}
    found: list[Statement] = []
    for part in other.body:
        assert isinstance(part, Statement)
        if extra in [leaf.name for leaf in part.leaves() if isinstance(leaf, Value)]:
            added = _added(match, part, extra, renamed)
            if added is None:
                return None
            found.append(added)
            continue
        if not rest or not _equal(match, rest[0], part, symbols, helper_name):
            return None
        own = rest.pop(0)
        values.update(
            {t: o for t, o in zip(own.targets, part.targets, strict=True) if t is not None}
        )
        found.append(_renamed(own, renamed))
    return None if rest or set(renamed).intersection(base.outputs) else found


def _added(match: _Match, part: Statement, extra: str, renamed: dict[str, str]) -> Statement | None:
    """Return a statement of the other call with the values of the model."""
    base, other, values = match.model, match.scope, match.values
    plain = all(isinstance(leaf, Value | Text) or _is_number(leaf) for leaf in part.leaves())
    if part.place is not None or len(part.targets) != 1 or not plain or part.targets[0] is None:
        return None
    target = part.targets[0]
    read = [leaf.name for leaf in part.leaves() if isinstance(leaf, Value)]
    before = [v for v in dict.fromkeys(read) if other.variables.get(v) == other.variables[target]]
    if len(before) != 1 or part.ambient != base.ambient:
        return None
    back = {theirs: mine for mine, theirs in values.items() if theirs is not None}
    if not set(read) <= {extra, *back} or before[0] in other.inputs:
        return None
    mine = back[before[0]]
    if base.variables[mine] != other.variables[target] or mine in renamed:
        return None
    names = {**back, extra: extra}
    expr = transform(part.expr, lambda e: Value(names[e.name]) if isinstance(e, Value) else e)
    renamed[mine] = target
    values[mine] = target
    return replace(part, expr=expr, guard=extra)


def _renamed(part: Statement, names: dict[str, str]) -> Statement:
    def leaf(each: Leaf) -> Expr:
        return Value(names.get(each.name, each.name)) if isinstance(each, Value) else each

    place = None if part.place is None else transform(part.place, leaf)
    return replace(part, place=place, expr=transform(part.expr, leaf))
