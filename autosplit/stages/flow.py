"""Which values each stage takes and gives, and which cross each cut."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autosplit.errors import AutosplitError
from autosplit.program import Mapping, Sequence, Size, Slice, TensorSpec
from autosplit.sizes import symbols_in
from autosplit.stages.placement import Placement

_LOCAL = -1
"""Stage in which model inputs are born: every stage looks them up where it runs."""


@dataclass(frozen=True)
class Flow:
    """The way of every value through the stages.

    Parameters
    ----------
    take, give, clone
        Names per stage, in running order of the program.
    sizes
        Per stage ``(symbol, value, dimension)``.
    cuts
        Names per boundary.
    """

    take: tuple[tuple[str, ...], ...]
    give: tuple[tuple[str, ...], ...]
    clone: tuple[tuple[str, ...], ...]
    sizes: tuple[tuple[tuple[str, str, int], ...], ...]
    cuts: tuple[tuple[str, ...], ...]


class _Readers:
    """Who reads and who rewrites each value that can cross a cut.

    The model's output reads in the imaginary stage after the last one.
    """

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        program = placement.program
        self.born = {spec.name: _LOCAL for spec in program.inputs} | placement.stage_of
        self.stages: dict[str, set[int]] = {name: set() for name in self.born}
        self.rewritten: dict[str, set[int]] = defaultdict(set)
        for stage in range(placement.count):
            for node in placement.nodes(stage):
                for source in node.inputs():
                    if source in self.born and not placement.runs_again(source, stage):
                        self.stages[source].add(stage)
        for name in program.outputs:
            if name in self.born:
                self.stages[name].add(placement.count)

    def after(self, name: str, stage: int) -> bool:
        """Whether anything after ``stage`` reads the value."""
        return any(reader > stage for reader in self.stages[name])

    def since(self, name: str, stage: int) -> bool:
        """Whether ``stage`` or anything after it reads the value."""
        return any(reader >= stage for reader in self.stages[name])

    def makers(self, name: str) -> Iterator[int]:
        """Yield the stages that make the value or a new content of it."""
        if self.born[name] != _LOCAL:
            yield self.born[name]
        yield from self.rewritten[name]

    def crosses(self, name: str, cut: int) -> bool:
        """Whether the value is sent from stage ``cut`` to the next."""
        return self.after(name, cut) and any(stage <= cut for stage in self.makers(name))


def trace_flow(placement: Placement) -> Flow:
    """Find what each stage takes, gives, clones and sends on.

    Raises
    ------
    AutosplitError
        If a cut would part two names of one memory before a write, put a reader of a value on
        the wrong side of a write, or carry a tuple.
    """
    readers = _Readers(placement)
    _check_order_of_writes(placement)
    clones = _clones(placement, readers)
    sizes = tuple(_sizes(placement, readers, stage) for stage in range(placement.count))
    _refuse_tuples(placement, readers)
    stages = range(placement.count)
    return Flow(
        take=tuple(_take(placement, readers, stage) for stage in stages),
        give=tuple(_give(placement, readers, stage, clones[stage]) for stage in stages),
        clone=tuple(clones),
        sizes=sizes,
        cuts=tuple(
            _ordered(placement, (name for name in readers.born if readers.crosses(name, cut)))
            for cut in stages[:-1]
        ),
    )


# ---------------------------------------------------------------- in-place writes


def _check_order_of_writes(placement: Placement) -> None:
    """Refuse a reader that would see a value before or after a write wrongly."""
    program = placement.program
    readers: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for name, stage in placement.stage_of.items():
        for source in program.node[name].inputs():
            readers[source].append((program.position[name], stage, name))
    for name, stage in placement.stage_of.items():
        for written in program.node[name].mutates:
            for position, reader_stage, reader in readers[written]:
                before = position < program.position[name]
                if reader_stage > stage if before else reader_stage < stage:
                    raise AutosplitError(
                        f"operation {reader!r} in stage {reader_stage} reads {written!r} "
                        f"{'before' if before else 'after'} {name!r} in stage {stage} "
                        "writes to it",
                        cause="the cut would change the order of the two",
                        hint="keep both in one stage",
                    )


def _clones(placement: Placement, readers: _Readers) -> list[tuple[str, ...]]:
    """Find, per stage, the values from outside that it writes to; note who rewrites what."""
    found: list[dict[str, None]] = [{} for _ in range(placement.count)]
    for name, stage in placement.stage_of.items():
        written = [
            value
            for value in dict.fromkeys(placement.program.node[name].mutates)
            if value in readers.born and readers.born[value] < stage and readers.since(value, stage)
        ]
        if len(written) > 1:
            raise AutosplitError(
                f"{_listed(written)} share memory, and {name!r} in stage {stage} writes to it "
                "in place",
                cause="the cut before that stage would copy them apart",
                hint=f"cut before the first of them is made, or after {name!r}",
            )
        found[stage].update(dict.fromkeys(written))
    for stage, values in enumerate(found):
        for value in values:
            if readers.after(value, stage):
                readers.rewritten[value].add(stage)
    return [_ordered(placement, values) for values in found]


# ---------------------------------------------------------------- take and give


def _take(placement: Placement, readers: _Readers, stage: int) -> tuple[str, ...]:
    """Return what a stage reads from outside; what it clones is among that."""
    return _ordered(
        placement,
        (n for n, users in readers.stages.items() if stage in users and readers.born[n] < stage),
    )


def _give(
    placement: Placement, readers: _Readers, stage: int, clone: Iterable[str]
) -> tuple[str, ...]:
    made = (name for name, born in readers.born.items() if born == stage)
    wanted = [name for name in made if readers.after(name, stage)]
    return _ordered(placement, (*wanted, *(v for v in clone if stage in readers.rewritten[v])))


def _refuse_tuples(placement: Placement, readers: _Readers) -> None:
    for name, born in readers.born.items():
        value = placement.program.node[name].value
        if readers.after(name, born) and born != _LOCAL and not isinstance(value, TensorSpec):
            raise AutosplitError(
                f"{name!r} in stage {born} is not a tensor, and a later stage reads it",
                cause="tensors alone cross a cut",
                hint=f"keep {name!r} and its users in one stage",
            )


def _ordered(placement: Placement, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(dict.fromkeys(names), key=placement.program.position.__getitem__))


def _listed(names: list[str]) -> str:
    quoted = [repr(name) for name in names]
    return f"{', '.join(quoted[:-1])} and {quoted[-1]}"


# ---------------------------------------------------------------- sizes


def _sizes(placement: Placement, readers: _Readers, stage: int) -> tuple[tuple[str, str, int], ...]:
    """Find where a stage reads each size it uses; a model input may be taken for that alone."""
    wanted = {
        symbol
        for node in placement.nodes(stage)
        for expression in _expressions((node.args, node.kwargs))
        for symbol in symbols_in(expression)
    }
    found = []
    for symbol in sorted(wanted):
        value, dimension = _source_of(placement, readers, stage, symbol)
        readers.stages[value].add(stage)
        found.append((symbol, value, dimension))
    return tuple(found)


def _source_of(placement: Placement, readers: _Readers, stage: int, symbol: str) -> tuple[str, int]:
    program = placement.program
    for name in _take(placement, readers, stage):
        value = program.node[name].value
        if isinstance(value, TensorSpec) and symbol in value.shape:
            return name, value.shape.index(symbol)
    sources = program.symbol[symbol].sources if symbol in program.symbol else ()
    if sources:
        # An input that no stage rewrites need not be sent.
        return min(sources, key=lambda source: bool(readers.rewritten[source[0]]))
    raise AutosplitError(
        f"size {symbol!r} cannot be read from any input of stage {stage}",
        hint="move the cut",
    )


def _expressions(arg: object) -> Iterator[str]:
    """Yield every size expression in an argument."""
    if isinstance(arg, Size):
        yield arg.expression
    elif isinstance(arg, Slice):
        yield from _expressions((arg.start, arg.stop, arg.step))
    elif isinstance(arg, Sequence):
        yield from _expressions(arg.items)
    elif isinstance(arg, Mapping):
        yield from _expressions(tuple(item for _, item in arg.items))
    elif isinstance(arg, tuple):
        for item in arg:
            yield from _expressions(item)
