"""Modules that a stage calls as they are, instead of their operations.

A module that is not torch's own, and all of whose calls stand whole in a stage, becomes one
operation of the program: everything after this pass treats it as any layer of ``torch.nn``.
Of modules inside one another the outermost is taken.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from autosplit.program import (
    ORIGINAL,
    Arg,
    CallInterface,
    Constructor,
    ModuleSpec,
    Node,
    Program,
    Ref,
    Sequence,
    TensorSpec,
    refs,
)


@dataclass(frozen=True)
class Whole:
    """A program in which modules are operations.

    Parameters
    ----------
    program, stage_of
        The program, and the stage of each operation.
    kept
        Stage of each call that became an operation: ``(stage, name of the module)``.
    parted
        ``(name of the module, why its operations are written out)``, outermost ones alone.
    """

    program: Program
    stage_of: dict[str, int]
    kept: tuple[tuple[int, str], ...]
    parted: tuple[tuple[str, str], ...]


def keep_modules(
    program: Program,
    interfaces: Mapping[int, CallInterface | None],
    stage_of: Mapping[str, int],
) -> Whole:
    """Make operations of the modules that may be called as they are.

    Parameters
    ----------
    program
        A traced model.
    interfaces
        What its module calls took and returned, by their place in ``program.calls``.
    stage_of
        Stage of each operation; dead operations may be missing.
    """
    calls = _Calls(program, interfaces, stage_of)
    reasons: dict[str, str] = {}
    own = [index for index in calls.inside if calls.is_own(index) and calls.is_live(index)]
    for index in own:
        if (reason := calls.refusal(index)) is not None:
            reasons.setdefault(calls.fqn(index), reason)
    chosen = {index for index in own if calls.fqn(index) not in reasons}
    chosen = {index for index in chosen if not chosen.intersection(calls.around(index))}
    return _collapse(calls, sorted(chosen), reasons)


class _Calls:
    """The module calls of a program, and whether each may become an operation."""

    def __init__(
        self,
        program: Program,
        interfaces: Mapping[int, CallInterface | None],
        stage_of: Mapping[str, int],
    ) -> None:
        self.program = program
        self.interfaces = interfaces
        self.stage_of = stage_of
        self.inside: dict[int, list[str]] = defaultdict(list)
        for node in program.operations:
            for index in node.calls:
                if program.calls[index].kind == "module" and index:
                    self.inside[index].append(node.name)

    def fqn(self, index: int) -> str:
        """Return the first name of the module."""
        return self.program.module[self.program.calls[index].fqn or ""].fqn

    def is_own(self, index: int) -> bool:
        """Whether the module is the model's own rather than a layer of torch."""
        spec = self.program.module[self.fqn(index)]
        return not spec.leaf and not spec.qualified.startswith("torch.")

    def is_live(self, index: int) -> bool:
        """Whether anybody reads what the call makes."""
        return bool(self._stages(index))

    def around(self, index: int) -> Iterator[int]:
        """Yield the calls in which a call was made."""
        parent = self.program.calls[index].parent
        while parent is not None:
            yield parent
            parent = self.program.calls[parent].parent

    def stage(self, index: int) -> int:
        """Return the stage of a call that stands whole in one."""
        return next(iter(self._stages(index)))

    def results(self, index: int) -> list[str]:
        """Return the values made inside that the call returns."""
        interface = self.interfaces.get(index)
        found = [] if interface is None else list(refs(interface.result))
        return [name for name in dict.fromkeys(found) if name in self.inside[index]]

    def refusal(self, index: int) -> str | None:
        """Return why a call cannot be one operation; None if it can."""
        interface = self.interfaces.get(index)
        if interface is None:
            return "it takes or returns more than tensors and plain values"
        if len(self._stages(index)) != 1:
            return "a cut goes through it"
        if not _is_simple(interface.result) or not self.results(index):
            return "it returns another structure than a tensor or a tuple of tensors"
        return self._reach(index) or self._arguments(index, interface)

    def _stages(self, index: int) -> set[int]:
        names = self.inside[index]
        return {self.stage_of[name] for name in names if name in self.stage_of}

    def _reach(self, index: int) -> str | None:
        """Return what ties the operations of a call to others."""
        inside, results = set(self.inside[index]), set(self.results(index))
        for name in inside:
            readers = self.program.users[name]
            seen = name in self.program.outputs or not inside.issuperset(readers)
            if seen and name not in results:
                return "a value of it is read from outside"
            if not inside.issuperset(self.program.node[name].mutates):
                return "it writes to what it is given"
        return self._foreign_state(index) or self._made_again(index)

    def _foreign_state(self, index: int) -> str | None:
        spec = self.program.module[self.fqn(index)]
        heads = tuple(f"{name}." for name in (spec.fqn, *spec.aliases))
        given = set(self._given(index))
        for name in self.inside[index]:
            for value in self.program.node[name].inputs():
                node = self.program.node[value]
                if node.op != "state" or value in given:
                    continue
                state = self.program.state[node.target]
                if state.kind == "constant":
                    return "it uses a tensor that is neither parameter nor buffer"
                if not any(each.startswith(heads) for each in (state.fqn, *state.aliases)):
                    return f"it uses {state.fqn}, which is not its own"
        return None

    def _made_again(self, index: int) -> str | None:
        """Tables that follow from sizes are cheaper to make again than to send."""
        spec, stage = self.program.module[self.fqn(index)], self.stage(index)
        if any(name for name in _parameters(self.program, spec)):
            return None
        readers = (user for name in self.results(index) for user in self.program.users[name])
        later = any(self.stage_of.get(user, stage) != stage for user in readers)
        return "it has no parameters, and other stages make its result again" if later else None

    def _given(self, index: int) -> Iterator[str]:
        interface = self.interfaces.get(index)
        if interface is not None:
            for arg in (*interface.args, *(arg for _, arg in interface.kwargs)):
                yield from refs(arg)

    def _arguments(self, index: int, interface: CallInterface) -> str | None:
        for name in self._given(index):
            node = self.program.node[name]
            if node.op in ("input", "state"):
                continue
            if self.stage_of.get(name, self.stage(index) + 1) > self.stage(index):
                return f"it takes {name}, which is not there in its stage"
        return None


def _parameters(program: Program, spec: ModuleSpec) -> Iterator[str]:
    head = f"{spec.fqn}." if spec.fqn else ""
    for name in spec.state:
        if program.state[head + name].kind == "parameter":
            yield head + name
    for child in spec.children:
        yield from _parameters(program, program.module[head + child])


def _is_simple(result: Arg) -> bool:
    """Whether a result is a value, or a tuple or list of values and None."""
    items = result.items if isinstance(result, Sequence) else (result,)
    return all(isinstance(item, Ref) or item is None for item in items)


# ---------------------------------------------------------------- the new program


def _collapse(calls: _Calls, chosen: list[int], reasons: Mapping[str, str]) -> Whole:
    program = calls.program
    stage_of = dict(calls.stage_of)
    last = {calls.inside[index][-1]: index for index in chosen}
    gone = {name for index in chosen for name in calls.inside[index]}
    taken = {node.name for node in program.nodes} - gone
    nodes: list[Node] = []
    for node in program.nodes:
        if node.name not in gone:
            nodes.append(node)
        if node.name in last:
            made = _operations(calls, last[node.name], taken)
            stage_of.update((each.name, calls.stage(last[node.name])) for each in made)
            taken.update(each.name for each in made)
            nodes += made
    read = {name for node in nodes for name in node.inputs()} | set(program.outputs)
    nodes = [node for node in nodes if node.op != "state" or node.name in read]
    kept = {calls.fqn(index) for index in chosen}
    modules = tuple(
        _as_layer(calls, spec) if spec.fqn in kept else spec for spec in program.modules
    )
    return Whole(
        replace(program, nodes=tuple(nodes), modules=modules),
        {node.name: stage_of[node.name] for node in nodes if node.name in stage_of},
        tuple((calls.stage(index), calls.fqn(index)) for index in chosen),
        tuple(_parted(calls, set(chosen), reasons)),
    )


def _parted(
    calls: _Calls, chosen: set[int], reasons: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the model's own modules that are written out although no inner one had to be."""
    seen: set[str] = set()
    for index in sorted(calls.inside):
        fqn = calls.fqn(index)
        if index in chosen or chosen.intersection(calls.around(index)) or fqn in seen:
            continue
        if fqn in reasons:
            seen.add(fqn)
            yield fqn, reasons[fqn]


def _operations(calls: _Calls, index: int, taken: set[str]) -> list[Node]:
    """Return the call as an operation, and the elements of its result that are read."""
    program, interface = calls.program, calls.interfaces[index]
    assert interface is not None
    inside = [program.node[name] for name in calls.inside[index]]
    path = inside[0].calls[: inside[0].calls.index(index) + 1]
    whole = interface.result
    single = whole.name if isinstance(whole, Ref) else None
    call = Node(
        single or _free_name(re.sub(r"\W", "_", f"{calls.fqn(index)}_{index}"), taken),
        "module",
        calls.fqn(index),
        interface.args,
        interface.kwargs,
        _value(program, whole),
        calls=path,
        ambient=interface.ambient,
        writes_state=tuple(dict.fromkeys(name for node in inside for name in node.writes_state)),
        random=any(node.random for node in inside),
        source_names=program.node[single].source_names if single else (),
        location=inside[-1].location,
    )
    if single:
        return [call]
    elements = []
    for name in calls.results(index):
        assert isinstance(whole, Sequence)
        node = program.node[name]
        elements.append(
            Node(
                name,
                "function",
                "operator.getitem",
                (Ref(call.name), whole.items.index(Ref(name))),
                value=node.value,
                calls=path[:-1],
                ambient=interface.ambient,
                source_names=node.source_names,
                location=node.location,
            )
        )
    return [call, *elements]


def _value(program: Program, result: Arg) -> TensorSpec | tuple[TensorSpec | None, ...] | None:
    if isinstance(result, Ref):
        return program.node[result.name].value
    assert isinstance(result, Sequence)
    values = (program.node[i.name].value if isinstance(i, Ref) else None for i in result.items)
    return tuple(value if isinstance(value, TensorSpec) else None for value in values)


def _free_name(wish: str, taken: set[str]) -> str:
    name = wish
    while name in taken:
        name += "_"
    return name


def _as_layer(calls: _Calls, spec: ModuleSpec) -> ModuleSpec:
    """Return a module as one that is called and built as a whole."""
    program = calls.program
    inner = [
        program.module[program.node[name].target]
        for index, names in calls.inside.items()
        if calls.fqn(index) == spec.fqn
        for name in names
        if program.node[name].op == "module"
    ]
    return replace(
        spec,
        leaf=True,
        constructor=Constructor(ORIGINAL),
        random=any(each.random for each in inner),
        training_state=any(each.training_state for each in inner),
    )
