"""The text of a stage file: docstring, imports, helper functions, classes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autosplit.codegen.bodies import Body
from autosplit.codegen.constants import spell
from autosplit.codegen.definitions import Classes, ClassGroup
from autosplit.codegen.describe import describe_class, describe_helper, describe_stage, docstring
from autosplit.codegen.helpers import Helper, Helpers
from autosplit.codegen.layout import signature
from autosplit.codegen.lists import PACKED
from autosplit.codegen.modules import Init
from autosplit.codegen.originals import IMPORT, is_original
from autosplit.codegen.scopes import Scope, StageGraph
from autosplit.codegen.spelling import show
from autosplit.program import ORIGINAL

_BASES = {"dict": "nn.ModuleDict", "sequence": "nn.Sequential"}
_STRING = re.compile(r'"""[\s\S]*?"""|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'')


@dataclass
class Source:
    """Writes one stage file."""

    graph: StageGraph
    classes: Classes
    helpers: Helpers

    def text(self) -> str:
        """Return the whole file."""
        parts = [self._helper(helper) for helper in self.helpers.distinct]
        parts += [self._class(group) for group in self.classes.groups]
        code = "\n\n\n".join("\n".join(part) for part in parts)
        head = docstring("", describe_stage(self.graph, self.classes))
        return (
            "\n".join(head)
            + "\n\n"
            + _imports(code, _foreign(self.graph, self.classes))
            + "\n\n\n"
            + code
            + "\n"
        )

    def _helper(self, helper: Helper) -> list[str]:
        scope = helper.scope
        body = self._body(scope, None, 0, "    ")
        return [
            *signature("", helper.name, _parameters(scope)),
            *docstring("    ", describe_helper(self.graph, helper.scopes)),
            *body.lines(),
        ]

    def _class(self, group: ClassGroup) -> list[str]:
        definition = group.first
        init = Init(self.graph, self.classes, group, self._class_name)
        made = init.lines()
        layers = definition.tree.kind == "sequence"
        used: set[str] = set()
        methods: list[str] = []
        bodies = [] if layers else definition.bodies
        for (scope, first_slot), name in zip(bodies, definition.methods(), strict=False):
            body = self._body(scope, group, first_slot, " " * 8)
            parameters = ["self", *_parameters(scope)]
            methods += ["", *signature("    ", name, parameters), *body.lines()]
            used |= body.uses
        kept = [f"        self.{name} = {name}" for name in group.arguments if name in used]
        kept += self._attributes(group, used)
        base = _BASES.get(definition.tree.kind, "nn.Module")
        lines = [
            f"class {group.name}({base}):",
            *docstring("    ", describe_class(self.graph, self.classes, group)),
        ]
        if made or kept or layers:
            given = [] if definition.given is None else [definition.given]
            parameters = ["self", *group.arguments, *given]
            head = signature("    ", "__init__", parameters)
            lines += ["", *head, *init.base(), *kept, *made]
        return lines + methods

    def _attributes(self, group: ClassGroup, used: set[str]) -> list[str]:
        """Set the numbers that bodies read, in the order of the program."""
        slots = {name: group.first.slots[at] for at, name in group.attributes.items()}
        order = self.graph.program.module[group.first.fqn].attributes if slots else ()
        names = [name for name, _ in order if name in slots and name in used]
        return [f"        self.{name} = {show(spell(slots[name]))}" for name in names]

    def _body(self, scope: Scope, owner: ClassGroup | None, first_slot: int, indent: str) -> Body:
        name = self.helpers.name
        return Body(self.graph, scope, owner, first_slot, name, self.classes, indent)

    def _class_name(self, index: int) -> str:
        return self.classes.groups[index].name


def _parameters(scope: Scope) -> list[str]:
    if scope.packed is not None:
        return [f"*{scope.variables[PACKED]}"]
    return [
        scope.variables[value] + ("=None" if value in scope.optional else "")
        for value in scope.inputs
    ]


def _imports(code: str, foreign: set[str]) -> str:
    """Return the imports that the code needs, sorted as linters like them."""
    bare = _STRING.sub('""', code)
    lines = {f"import {module}" for module in foreign}
    if re.search(r"(?<![\w.])torch\.", bare):
        lines.add("import torch")
    if re.search(r"(?<![\w.])F\.", bare):
        lines.add("import torch.nn.functional as F")
    ordered = sorted(lines, key=lambda line: line.split()[1])
    groups = ["\n".join([*ordered, "from torch import nn"])]
    if re.search(r"(?<![\w.])math\.", bare):
        groups.insert(0, "import math")
    if re.search(rf"(?<![\w.]){ORIGINAL}\(", bare):
        groups.append(IMPORT)
    return "\n\n".join(groups)


def _foreign(graph: StageGraph, classes: Classes) -> set[str]:
    """Return the modules outside torch whose functions or layers the stage calls."""
    paths = [node.target for node in graph.nodes.values() if node.op == "function"]
    layers = [layer.spec for layer in classes.layers()]
    paths += [spec.qualified for spec in layers if not is_original(spec)]
    owners = {path.rpartition(".")[0] for path in paths}
    return {name for name in owners if name.split(".")[0] not in ("torch", "operator", "math", "")}
