"""What the methods of a class are called that does several things."""

from __future__ import annotations

from collections.abc import Collection

from autosplit.codegen.scopes import Scope


def method_names(bodies: list[Scope], members: Collection[str]) -> list[str]:
    """Return a name for each body: ``forward``, then what differs from it, else a number.

    Parameters
    ----------
    bodies
        The different bodies of a class.
    members
        Names that the class uses otherwise.
    """
    names: list[str] = []
    for number, body in enumerate(bodies, start=1):
        wish = f"forward_{_difference(bodies[0], body)}" if names else "forward"
        taken = wish.endswith("_") or wish in names or (bool(names) and wish in members)
        names.append(f"forward_{number}" if taken else wish)
    return names


def _difference(first: Scope, other: Scope) -> str:
    """Return the one argument that is there or not, or the result of a body with all of them."""
    before, after = first.argument_names(), other.argument_names()
    more = [name for name in after if name not in before]
    less = [name for name in before if name not in after]
    if len(more) + len(less) == 1:
        return f"with_{more[0]}" if more else f"without_{less[0]}"
    result = _result(other)
    same = before != after or result == _result(first) or result[-1:].isdigit()
    return "" if same else result


def _result(scope: Scope) -> str:
    return scope.variables.get(scope.outputs[0], "") if len(scope.outputs) == 1 else ""
