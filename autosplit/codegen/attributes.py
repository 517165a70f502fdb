"""Numbers of a body under the name that the original module has for them.

``x.view(batch, seq, self.heads, self.head_width)`` says what ``4, 12`` does not. A number gets
a name only where it is a size or a factor, and only if one attribute alone has its value in
every module of the class.
"""

from __future__ import annotations

from autosplit.codegen.definitions import ClassGroup
from autosplit.codegen.modules import is_attribute
from autosplit.codegen.scopes import Rewrite, StageGraph

_MEANINGS = {"size", "sizes", "split_size_or_sections", "chunks", "scale", "p", "dropout_p"}
_POSITIONS = {"training", "layer_idx", "layer_index", "index"}


def name_numbers(graph: StageGraph, group: ClassGroup) -> None:
    """Fill in the attributes of a class."""
    first = group.first
    if first.fqn == "" or first.tree.kind != "module":
        return
    found: dict[str, str] = {}
    for at, slot in enumerate(first.slots):
        if at in group.lifted or slot.hint not in _MEANINGS or slot.value in (0, 1, -1):
            continue
        names = _attributes(graph, group, repr(slot.value))
        if len(names) == 1 and names[0] not in group.arguments:
            group.attributes[at] = names[0]
            found[names[0]] = repr(slot.value)
    for name, text in found.items():
        why = f"{name} is {text} in the original, and no other attribute is"
        graph.rewrites.append(Rewrite("named number", first.fqn, why))


def _attributes(graph: StageGraph, group: ClassGroup, text: str) -> list[str]:
    """Return the attributes that have a value, written out, in all modules of a class."""
    rows = [dict(graph.program.module[each.fqn].attributes) for each in group.definitions]
    return [
        name
        for name, value in rows[0].items()
        if not isinstance(value, str)
        and is_attribute(name)
        and name.isascii()
        and not name.startswith("_")
        and name not in _POSITIONS
        and name not in group.first.tree.children
        and all(repr(row.get(name)) == text for row in rows)
    ]
