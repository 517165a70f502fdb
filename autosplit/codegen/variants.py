"""Calls of one ``forward`` with and without an optional argument, or one tensor in two roles.

Attention over itself passes ``x`` where attention over a memory passes the memory; a decoder
passes a mask and an encoder none. The calls record different operations; where those of one are
those of another but for statements that only a missing argument needs, both share a body: it
runs these statements ``if mask is not None``, and hands None on where an operation takes it.
"""

from __future__ import annotations

from dataclasses import replace

from autosplit.codegen.absent import without
from autosplit.codegen.expressions import Expr, Leaf, Value, leaves, transform
from autosplit.codegen.matches import (
    HelperName,
    Match,
    equal,
    is_plain,
    match_bodies,
    parameters,
    roles_of,
    walk,
)
from autosplit.codegen.scopes import Loop, Rewrite, Scope, StageGraph, Statement
from autosplit.codegen.tree import linked


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
        kinds.setdefault((len(scope.inputs), len(scope.body), *roles_of(graph, scope)), scope)
    plain = [each for each in kinds.values() if parameters(graph, each) is not None]
    if not plain:
        return
    model = max(plain, key=lambda each: len(each.inputs))
    others = [each for each in kinds.values() if each is not model]
    for other in others:
        if match_bodies(graph, model, other, helper_name) is None:
            joined = _join(graph, model, other, helper_name)
            joined = joined or _join(graph, other, model, helper_name)
            model = joined or model
    found = [
        match_bodies(graph, model, scope, helper_name) for scope in group if scope is not model
    ]
    matches = [match for match in found if match is not None]
    if any(match.differs for match in matches):
        for match in matches:
            _adopt(graph, match)


def _chained(graph: StageGraph, parent: Scope) -> list[Scope]:
    """Return the inner scopes of a sequence, which calls them with one value."""
    if parent.kind == "sequence" or (parent.kind == "module" and linked(graph, parent)):
        return [item for item in parent.items if isinstance(item, Scope)]
    return []


def _adopt(graph: StageGraph, match: Match) -> None:
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
        why = f"the body of {model.fqn or model.call.name}"
        why += f" without {names}" if names else ""
        graph.rewrites.append(Rewrite("shared body", scope.fqn or scope.call.name, why))


def share_function(
    graph: StageGraph, models: list[Scope], scopes: list[Scope], helper_name: HelperName
) -> bool:
    """Let calls of a function with one argument less use the body of those that have it.

    The argument becomes the last one of all of ``models``, which are equal.
    """
    model, first = models[0], scopes[0]
    if model.call.name != first.call.name or model.ambient != first.ambient or model.optional:
        return False
    if any(isinstance(part, Loop) for part in (*model.body, *first.body)):
        return False
    quantities = {value: value for value in model.inputs if value.startswith("$")}
    for at, value in enumerate(model.inputs):
        matches = [Match(model, scope, {**quantities, value: None}) for scope in scopes]
        if value in quantities or not all(walk(graph, m, helper_name) for m in matches):
            continue
        for each in models:
            each.inputs.append(each.inputs.pop(at))
        for match in matches:
            _adopt(graph, match)
        return True
    return False


# ---------------------------------------------------------------- two bodies into one


def _join(graph: StageGraph, base: Scope, other: Scope, helper_name: HelperName) -> Scope | None:
    """Return the body of one call with what another adds for an argument of its own."""
    roles, held = roles_of(graph, base), roles_of(graph, other)
    names = parameters(graph, base)
    if names is None:
        return None
    values: dict[str, str | None] = {v: held[n] for v, n in names.items() if n in held}
    extras = {v: n for n, v in held.items() if v not in values.values()}
    order = base.call.arg_names.index
    if len(extras) != 1 or base.optional:
        return None
    ((extra, role),) = extras.items()
    variable = other.variables[extra]
    if variable in base.variables.values() or order(role) < max(map(order, roles), default=-1):
        return None
    match = Match(base, other, values)
    body = _joined(match, extra, helper_name)
    if body is None or set(other.inputs) - {extra} != set(match.passed):
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


def _joined(match: Match, extra: str, helper_name: HelperName) -> list[Statement] | None:
    base, other, values = match.model, match.scope, match.values
    rest = [part for part in base.body if isinstance(part, Statement)]
    symbols: dict[str, str] = {}
    renamed: dict[str, str] = {}
    found: list[Statement] = []
    for part in other.body:
        assert isinstance(part, Statement)
        plain = replace(part, expr=without(part.expr, {extra}))
        if Value(extra) in plain.leaves():
            added = _added(match, part, extra, renamed)
            if added is None:
                return None
            found.append(added)
            continue
        if not rest or not equal(match, rest[0], plain, symbols, helper_name):
            return None
        own = _given(rest.pop(0), part, extra)
        values.update(
            {t: o for t, o in zip(own.targets, part.targets, strict=True) if t is not None}
        )
        found.append(_renamed(own, renamed))
    return None if rest or set(renamed).intersection(base.outputs) else found


def _given(own: Statement, part: Statement, extra: str) -> Statement:
    """Return a statement with an argument that ``part``, the same without it, passes."""
    if Value(extra) not in part.leaves():
        return own
    mine = leaves(own.expr)
    expr = transform(part.expr, lambda leaf: leaf if leaf == Value(extra) else next(mine))
    return replace(own, expr=expr)


def _added(match: Match, part: Statement, extra: str, renamed: dict[str, str]) -> Statement | None:
    """Return a statement of the other call with the values of the model."""
    base, other, values = match.model, match.scope, match.values
    plain = all(map(is_plain, part.leaves()))
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
