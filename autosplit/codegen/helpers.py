"""Python functions of the model that stay functions."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import permutations

from autosplit.codegen.expressions import Number
from autosplit.codegen.names import usable
from autosplit.codegen.scopes import Scope, StageGraph
from autosplit.codegen.skeletons import body_skeleton
from autosplit.codegen.variants import share_function


@dataclass(frozen=True, eq=False)
class Helper:
    """A function of the file; ``scopes`` are its calls, ``scope`` is the one written."""

    name: str
    scopes: list[Scope]

    @property
    def scope(self) -> Scope:
        """The call whose body is written."""
        return self.scopes[0]


@dataclass
class Helpers:
    """Functions of a stage: calls whose bodies agree, numbers included, share one.

    Parameters
    ----------
    distinct
        The functions, inner ones first.
    by_call
        Function that holds each call.
    known
        Functions by name and body.
    same
        Of each call, the call whose body is written.
    """

    distinct: list[Helper] = field(default_factory=list)
    by_call: dict[int, Helper] = field(default_factory=dict)

    known: dict[Hashable, Helper] = field(default_factory=dict)
    same: dict[int, int] = field(default_factory=dict)

    def name(self, call: int) -> str:
        """Return the name of the function that holds a call."""
        return self.by_call[call].name

    def add(self, graph: StageGraph, scope: Scope) -> None:
        """File the body of a call; functions it calls itself have to be there."""
        slots: list[Number] = []
        body = body_skeleton(graph, scope, self.name, slots, lambda call: 0)
        key = (scope.call.name, body, tuple(repr(slot.value) for slot in slots))
        if key not in self.known:
            taken = {helper.name for helper in self.distinct}
            self.known[key] = Helper(_name(scope, taken), [])
            self.distinct.append(self.known[key])
        helper = self.by_call[scope.call.index] = self.known[key]
        helper.scopes.append(scope)
        self.same[scope.call.index] = helper.scope.call.index

    def share(self, graph: StageGraph) -> None:
        """Write functions that differ by an argument that may be left out once."""
        for fuller, lesser in permutations(list(self.distinct), 2):
            if fuller not in self.distinct or lesser not in self.distinct:
                continue
            if fuller.scope.height != lesser.scope.height:
                continue
            if share_function(graph, fuller.scopes, lesser.scopes, self.name):
                self._merge(fuller, lesser)

    def _merge(self, fuller: Helper, lesser: Helper) -> None:
        merged = Helper(min(fuller.name, lesser.name, key=len), [*fuller.scopes, *lesser.scopes])
        self.distinct[self.distinct.index(fuller)] = merged
        self.distinct.remove(lesser)
        self.known = {k: h for k, h in self.known.items() if h not in (fuller, lesser)}
        for scope in merged.scopes:
            self.by_call[scope.call.index] = merged
            self.same[scope.call.index] = merged.scope.call.index


def wished_name(scope: Scope) -> str:
    """Return the function's own name, without leading underscores."""
    name = scope.call.name.lstrip("_")
    return name if usable(name) else "helper"


def _name(scope: Scope, taken: set[str]) -> str:
    stem = wished_name(scope)
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    return name
