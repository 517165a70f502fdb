"""Classes whose modules differ by one layer, which becomes an argument of their constructor.

Some residual blocks have a projection as their shortcut where others have an identity.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Hashable
from dataclasses import replace

from autosplit.codegen.definitions import Definition, member_expr, method_of
from autosplit.codegen.expressions import Expr, Number, Text, transform
from autosplit.codegen.members import Chain, Layer, Member, frozen_parts
from autosplit.codegen.originals import is_original
from autosplit.codegen.scopes import StageGraph
from autosplit.codegen.skeletons import body_skeleton

_CONVOLUTION = re.compile(r"(Conv|ConvTranspose)\dd")


def share_members(
    graph: StageGraph,
    definitions: dict[str, Definition],
    level: list[Definition],
    helper_key: Callable[[int], str],
) -> None:
    """Find definitions of one name that do the same with one layer that differs."""
    groups: dict[Hashable, list[Definition]] = {}
    for definition in level:
        bodies = tuple(
            body_skeleton(graph, scope.text, helper_key, [], lambda at: method_of(definitions, at))
            for scope in definition.scopes
        )
        if definition.fqn and definition.tree.kind == "module":
            key = (definition.name, tuple(definition.members), tuple(dict.fromkeys(bodies)))
            groups.setdefault(key, []).append(definition)
    for same in groups.values():
        _align(graph, definitions, same)


def _align(graph: StageGraph, definitions: dict[str, Definition], same: list[Definition]) -> None:
    def differ(members: list[Member]) -> bool:
        return len({_blank(member_expr(graph, definitions, each)) for each in members}) > 1

    columns = {rel: [each.members[rel] for each in same] for rel in same[0].members}
    odd = {rel: members for rel, members in columns.items() if differ(members)}
    strided = {rel: [_with_stride(each) for each in members] for rel, members in odd.items()}
    strided = {rel: members for rel, members in strided.items() if not differ(members)}
    given = [rel for rel in odd if rel not in strided]
    if len(given) > 1 or not all(_may_be_given(graph, rel, odd[rel]) for rel in given):
        return
    for at, definition in enumerate(same):
        definition.members |= {rel: members[at] for rel, members in strided.items()}
        definition.given = given[0] if given else None


def _may_be_given(graph: StageGraph, rel: str, members: list[Member]) -> bool:
    layers = [
        item for each in members for item in (each.items if isinstance(each, Chain) else [each])
    ]
    plain = [each for each in layers if isinstance(each, Layer) and not is_original(each.spec)]
    name = rel.isidentifier() and not keyword.iskeyword(rel) and not rel.startswith("__")
    return name and len(plain) == len(layers) and not any(frozen_parts(graph, p) for p in plain)


def _with_stride(member: Member) -> Member:
    """Return a convolution that says its stride, which is left out where it is 1."""
    if not isinstance(member, Layer) or not _CONVOLUTION.fullmatch(member.spec.class_name):
        return member
    return replace(member, stride=True)


def _blank(expr: Expr) -> Expr:
    return transform(expr, lambda leaf: Text("#") if isinstance(leaf, Number) else leaf)
