"""The ``__init__`` of a class: containers, members, lists of equal parts, tied names."""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from autosplit.codegen.constants import spell
from autosplit.codegen.containers import container, repeats, short
from autosplit.codegen.definitions import Classes, ClassGroup, Definition, built
from autosplit.codegen.expressions import (
    Attribute,
    ClassRef,
    Expr,
    Invoke,
    Leaf,
    Number,
    Subscript,
    Text,
    call,
    transform,
)
from autosplit.codegen.layout import statement
from autosplit.codegen.members import Branch, Chain, Child, Layer, Member, State, Tie, frozen_parts
from autosplit.codegen.nouns import singular
from autosplit.codegen.scopes import StageGraph
from autosplit.codegen.spelling import quote, show

INDENT = " " * 8
STEP = " " * 4


def access(base: Expr, kind: str, name: str) -> Expr:
    """Return how a child of a container is reached."""
    if kind in ("list", "parameter list", "sequence"):
        return Subscript(base, (Text(name),))
    if kind in ("dict", "parameter dict"):
        return Subscript(base, (Text(quote(name)),))
    if is_attribute(name):
        return Attribute(base, name)
    return Invoke(Text("getattr"), (base, Text(quote(name))))


def is_attribute(name: str) -> bool:
    """Say whether ``x.name`` reads the attribute of exactly this name.

    Inside a class Python reads ``x.__name`` as ``x._Class__name``.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        return False
    if name.startswith("__") and not name.endswith("__"):
        return False
    return unicodedata.normalize("NFKC", name) == name


def path(tree: Branch, rel: str, base: Expr) -> Expr:
    """Return how a member of a class is reached from ``base`` (``self``)."""
    here: Branch | Member = tree
    expr = base
    for name in rel.split("."):
        if isinstance(here, Branch):
            expr = access(expr, here.kind, name)
            here = here.children[name]
        else:
            expr = access(expr, "module", name)
    return expr


@dataclass
class Init:
    """Writes the ``__init__`` of one class."""

    graph: StageGraph
    classes: Classes
    group: ClassGroup
    class_names: Callable[[int], str]

    def __post_init__(self) -> None:
        self.definition: Definition = self.group.first
        self.slot = 0
        self.indent = INDENT
        self.made: dict[str, Expr] = {}
        for rel, expr in built(self.graph, self.classes.definitions, self.definition):
            if rel in self.definition.members:
                self.made[rel] = self._fill(expr)

    def base(self) -> list[str]:
        """Return the call of the base class's constructor, which gets the layers of a sequence."""
        layers: list[Expr] = []
        if self.definition.tree.kind == "sequence":
            layers = repeats([self.made[name] for name in self.definition.tree.children])
        constructor = Attribute(call("super"), "__init__")
        return statement(self.indent, "", Invoke(constructor, tuple(layers)))

    def lines(self) -> list[str]:
        """Return the statements after ``super().__init__()``."""
        filled = self.definition.tree.kind == "sequence"
        found = list(self._contents(self.definition.tree, Text("self"), "", filled=filled))
        for rel, member in self.definition.members.items():
            if isinstance(member, Layer):
                found += self._frozen(rel, member)
            elif isinstance(member, Tie):
                found += self._tie(rel, member)
        return found

    # ------------------------------------------------------------ numbers and class names

    def _fill(self, expr: Expr) -> Expr:
        def leaf(part: Leaf) -> Expr:
            if isinstance(part, ClassRef):
                return Text(self.class_names(part.index))
            if not isinstance(part, Number):
                return part
            argument = self.group.lifted.get(self.slot)
            self.slot += 1
            return spell(part) if argument is None else Text(argument)

        return short(transform(expr, leaf))

    # ------------------------------------------------------------ containers

    def _branch(self, branch: Branch, target: Expr, rel: str) -> Iterator[str]:
        """Make a container and everything in it."""
        whole = self._whole(branch, rel)
        yield from self._assign(target, self._empty(branch, rel) if whole is None else whole)
        if whole is None:
            yield from self._contents(branch, target, rel, filled=branch.kind != "module")

    def _contents(self, branch: Branch, target: Expr, rel: str, *, filled: bool) -> Iterator[str]:
        """Make what is in a container; ``filled`` says that it holds its direct members."""
        head = f"{rel}." if rel else ""
        if filled:
            yield from self._filled(branch, target, rel)
            return
        for name, child in branch.children.items():
            if isinstance(child, Branch):
                yield from self._branch(child, access(target, branch.kind, name), head + name)
            else:
                yield from self._member(branch, target, name, head + name, child)

    def _filled(self, branch: Branch, target: Expr, rel: str) -> Iterator[str]:
        """Make what is in the members of a container, equal ones in a loop."""
        variable = singular(rel.rpartition(".")[2])
        names = list(branch.children)
        written = [self._inside(branch, name, Text(variable), rel) for name in names]
        start = 0
        while start < len(names):
            stop = start + 1
            while stop < len(names) and written[stop] == written[start]:
                stop += 1
            walked = _walked(branch, target, start, stop)
            if stop - start < 2 or walked is None:
                stop = start + 1
                inner = access(target, branch.kind, names[start])
                yield from self._inside(branch, names[start], inner, rel)
            elif written[start]:
                yield from statement(self.indent, f"for {variable} in ", walked, ":")
                yield from self._inside(branch, names[start], Text(variable), rel, STEP)
            start = stop

    def _inside(
        self, branch: Branch, name: str, target: Expr, rel: str, more: str = ""
    ) -> list[str]:
        """Return the lines that make what is in one member of a container."""
        child, inner = branch.children[name], f"{rel}.{name}" if rel else name
        if not isinstance(child, Branch) or self._whole(child, inner) is not None:
            return []
        self.indent += more
        lines = list(self._contents(child, target, inner, filled=child.kind != "module"))
        self.indent = self.indent.removesuffix(more)
        return lines

    def _member(
        self, branch: Branch, target: Expr, name: str, rel: str, member: Member
    ) -> Iterator[str]:
        if isinstance(member, Tie):
            return
        expr = self.made[rel]
        if isinstance(member, State) and member.spec.kind != "parameter":
            kept = member.spec.persistent and member.spec.kind == "buffer"
            kwargs = () if kept else (("persistent", Text("False")),)
            register = Attribute(target, "register_buffer")
            yield from statement(
                self.indent, "", Invoke(register, (Text(quote(name)), expr), kwargs)
            )
        elif _needs_call(access(target, branch.kind, name)):
            method = "register_parameter" if isinstance(member, State) else "add_module"
            add = Invoke(Attribute(target, method), (Text(quote(name)), expr))
            yield from statement(self.indent, "", add)
        else:
            yield from self._assign(access(target, branch.kind, name), expr)

    def _assign(self, target: Expr, expr: Expr) -> Iterator[str]:
        if _needs_call(target):
            assert isinstance(target, Invoke)
            base, name = target.args
            expr = Invoke(Attribute(base, "add_module"), (name, expr))
            yield from statement(self.indent, "", expr)
            return
        yield from statement(self.indent, f"{show(target)} = ", expr)

    # ------------------------------------------------------------ lists

    def _whole(self, branch: Branch, rel: str) -> Expr | None:
        """Return a container with everything in it, or None if its parts come one by one."""
        if branch.kind == "module":
            return None
        parts = [self._part(child, f"{rel}.{name}") for name, child in branch.children.items()]
        if any(part is None for part in parts):
            return None
        return container(branch.kind, list(branch.children), [p for p in parts if p is not None])

    def _part(self, child: Branch | Member, rel: str) -> Expr | None:
        if isinstance(child, Branch):
            return self._whole(child, rel)
        return None if isinstance(child, Tie) else self.made[rel]

    def _empty(self, branch: Branch, rel: str) -> Expr:
        """Return a container whose parts that have parts of their own are still empty."""
        if branch.kind == "module":
            return call("nn.Module")
        parts = [
            self._part(child, f"{rel}.{name}") or self._placeholder(child, f"{rel}.{name}")
            for name, child in branch.children.items()
        ]
        return container(branch.kind, list(branch.children), parts)

    def _placeholder(self, child: Branch | Member, rel: str) -> Expr:
        return self._empty(child, rel) if isinstance(child, Branch) else call("nn.Module")

    # ------------------------------------------------------------ frozen and tied parts

    def _frozen(self, rel: str, member: Layer) -> Iterator[str]:
        for name in frozen_parts(self.graph, member):
            owner = path(self.definition.tree, rel, Text("self"))
            for part in name.split("."):
                owner = access(owner, "module", part)
            freeze = Invoke(Attribute(owner, "requires_grad_"), (Text("False"),))
            yield from statement(self.indent, "", freeze)

    def _tie(self, rel: str, member: Tie) -> Iterator[str]:
        source = self.deep_path(member.source)
        owner, _, name = member.name.rpartition(".")
        spec = self.graph.program.state.get(member.name)
        if spec is None or spec.kind == "parameter":
            yield from self._assign(self.deep_path(member.name), source)
            return
        register = Attribute(self.deep_path(owner), "register_buffer")
        kwargs = () if spec.persistent else (("persistent", Text("False")),)
        yield from statement(self.indent, "", Invoke(register, (Text(quote(name)), source), kwargs))

    def deep_path(self, name: str) -> Expr:
        """Return how the stage reaches any name, through its classes."""
        return deep_path(self.classes, self.definition, name[len(self.definition.prefix) :])


def deep_path(
    classes: Classes,
    definition: Definition,
    rel: str,
    starts: Mapping[str, Expr] | None = None,
) -> Expr:
    """Return how a class reaches a name that may belong to a class inside it.

    Parameters
    ----------
    starts
        Relative name to the variable of a loop that holds it.
    """
    expr: Expr = Text("self")
    here: Branch | Member = definition.tree
    walked = ""
    for name in rel.split(".") if rel else ():
        walked = f"{walked}.{name}" if walked else name
        if isinstance(here, Branch):
            expr = access(expr, here.kind, name)
            below = here.children.get(name)
        elif isinstance(here, Chain):
            expr, below = Subscript(expr, (Text(name),)), None
            items = {str(index): item for index, item in enumerate(here.items)}
            below = items.get(name)
        else:
            expr, below = access(expr, "module", name), None
        if isinstance(below, Child):
            below = classes.definitions[below.fqn].tree
        here = below if below is not None else Branch()
        if starts and walked in starts:
            expr = starts[walked]
    return expr


def _walked(branch: Branch, target: Expr, start: int, stop: int) -> Expr | None:
    """Return what a loop over members of a container runs over."""
    count = len(branch.children)
    if branch.kind == "dict" and (start, stop) == (0, count):
        return Invoke(Attribute(target, "values"))
    if branch.kind != "list":
        return None
    if (start, stop) == (0, count):
        return target
    return Subscript(target, (Text(f"{start or ''}:{stop if stop < count else ''}"),))


def _needs_call(target: Expr) -> bool:
    return isinstance(target, Invoke)
