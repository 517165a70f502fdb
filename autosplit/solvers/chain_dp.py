"""Dynamic program over boundaries: the best chain through given candidate downsets.

The label of a downset I after s stages is the least, over all ways to fill those stages with the
nodes of I, of the largest load (or of the sum of loads); the next label follows from every pair
of candidates. With a free order of devices the state also counts the devices used per kind and,
where links differ, promises the kind that comes next, since a stage pays for both its links.

With all downsets of the windows of T as candidates (``AllCuts``) the answer is exact: either the
best plan, or the proof that every plan has a load above T.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from autosplit.solvers.cuts import Cut, CutSource, TooManyError, Window, ends
from autosplit.solvers.instance import Bools, Floats, Instance, Ints
from autosplit.solvers.pairs import Pairs

BLOCK = 2_000_000
"""Most pairs that are held at once."""

_MOST_MOVES = 10_000
"""Most moves over a boundary: many devices that all differ can be used in too many ways."""

Counts = tuple[int, ...]
Key = tuple[Counts, int, int]
"""Devices used per kind, promised next kind (-1: any), link of the boundary."""


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """A plan as the solvers hand it among themselves: stages, kinds, and its label."""

    label: float
    stage_of: tuple[int, ...]
    kind_of: tuple[int, ...]


@dataclass(slots=True)
class State:
    """Labels of the downsets of a cut, and the way back."""

    label: Floats
    row: Ints
    key: Ints
    kind: Ints


@dataclass(frozen=True, slots=True)
class Move:
    """From one state to the next by a stage on a device of one kind."""

    source: Key
    kind: int
    target: Key


class ChainSearch:
    """One run of the dynamic program.

    Parameters
    ----------
    inst
        The problem.
    source
        Where candidates come from.
    most
        T: only plans whose every load is at most this.
    memory
        Whether budgets bind; False relaxes them.
    total
        Minimise the sum of loads instead of the largest.
    total_most
        With ``total``: only plans whose sum is at most this.
    deadline
        Value of ``time.monotonic`` at which to give up.
    """

    def __init__(
        self,
        inst: Instance,
        source: CutSource,
        most: float,
        *,
        memory: bool = True,
        total: bool = False,
        total_most: float = np.inf,
        deadline: float = np.inf,
    ) -> None:
        self.inst, self.source = inst, source
        self.most = most * (1 + 1e-10)
        self.memory = memory and inst.memory_may_bind
        self.total, self.total_most, self.deadline = total, total_most * (1 + 1e-10), deadline

    def run(self) -> ChainPlan | None:
        """Return the best plan, or None where no plan keeps every load within T.

        Raises
        ------
        TooManyError
            If candidates are too many or the deadline passes.
        """
        inst = self.inst
        start: Key = ((0,) * len(inst.kinds), -1, 0)
        zero = np.zeros(1, np.int64)
        states: dict[Key, State] = {start: State(np.zeros(1), zero, zero, zero)}
        cuts = [ends(inst, full=False)]
        history: list[dict[Key, State]] = [states]
        for stage in range(inst.num_stages):
            every = (move for key in states for move in self._moves(key, stage))
            moves = list(islice(every, _MOST_MOVES + 1))
            if len(moves) > _MOST_MOVES or time.monotonic() > self.deadline:
                raise TooManyError
            cut = self._candidates(stage + 1, {move.target[0] for move in moves})
            if cut is None:
                return None
            states = self._advance(Pairs(inst, cuts[-1], cut, stage), states, moves)
            if not states:
                return None
            cuts.append(cut)
            history.append(states)
        return self._trace(cuts, history)

    # ------------------------------------------------------------ states

    def _moves(self, key: Key, stage: int) -> Iterator[Move]:
        inst = self.inst
        counts, promised, _ = key
        last = stage == inst.num_stages - 1
        if inst.order is not None:
            kinds = [inst.order[stage]]
        elif promised >= 0:
            kinds = [promised]
        else:
            kinds = [g for g, count in enumerate(inst.counts) if counts[g] < count]
        for kind in kinds:
            used = tuple(count + (g == kind) for g, count in enumerate(counts))
            if last or not inst.linked:
                link = 0 if last else inst.link_after(stage)
                yield Move(key, kind, (used, -1, link))
                continue
            for after, count in enumerate(inst.counts):
                if used[after] < count:
                    yield Move(key, kind, (used, after, inst.link_between(kind, after)))

    def _window(self, counts: Counts) -> Window:
        """Return what any plan with these devices before the boundary satisfies."""
        inst = self.inst
        used = np.array(counts)
        rest = np.array(inst.counts) - used
        capacity = inst.pace * np.maximum(self.most - inst.entry, 0.0)
        flight = inst.in_flight
        stage = int(used.sum())
        budgets = [kind.budget_bytes if self.memory else np.inf for kind in inst.kinds]
        return Window(
            low=float(inst.reference.sum() - rest @ capacity),
            high=float(used @ capacity),
            left=self._crossing_pace(used),
            right=self._crossing_pace(rest),
            crossing=np.inf if inst.per_device else self.most,
            before_bytes=_budget(budgets, used),
            after_bytes=_budget(budgets, rest),
            before_flight=float(flight[:stage].min()),
            after_flight=float(flight[stage:].min()),
        )

    def _crossing_pace(self, counts: Ints) -> float:
        """Return the least pace at which some device among these pays for a crossing net."""
        inst = self.inst
        used = [g for g in range(len(inst.kinds)) if counts[g]]
        if inst.problem.overlap or any(not inst.kinds[g].pays for g in used):
            return 0.0
        return min(float(inst.pace[g]) for g in used)

    def _candidates(self, boundary: int, counts: set[Counts]) -> Cut | None:
        if boundary == self.inst.num_stages:
            return ends(self.inst, full=True)
        windows = {each: self._window(each) for each in sorted(counts)}
        cut = self.source.cut(boundary, list(windows.values()))
        if cut is None:
            return None
        self.fitting = {each: cut.fits(window) for each, window in windows.items()}
        keep = np.logical_or.reduce(list(self.fitting.values()))
        if not keep.any():
            return None
        self.fitting = {each: rows[keep] for each, rows in self.fitting.items()}
        return cut.keep(keep)

    # ------------------------------------------------------------ one stage

    def _advance(
        self, pairs: Pairs, states: dict[Key, State], moves: list[Move]
    ) -> dict[Key, State]:
        inst, lower, upper = self.inst, pairs.lower, pairs.upper
        keys = list(states)
        new = {move.target: _fresh(len(upper)) for move in moves}
        reach = float(max(inst.pace)) * self.most + 1e-9 * (1 + self.most)
        work = [(lower.total(row), upper.total(row)) for row in inst.work]
        step = max(1, BLOCK // max(1, len(lower)))
        for start in range(0, len(upper), step):
            uppers = np.arange(start, min(start + step, len(upper)))
            first = int(np.searchsorted(lower.reference, upper.reference[uppers[0]] - reach))
            lowers = slice(first, len(lower))
            block = _Block(self, pairs, uppers, lowers, work)
            for move in moves:
                if time.monotonic() > self.deadline:
                    raise TooManyError
                self._relax(block, states[move.source], keys.index(move.source), move, new)
        return {key: state for key, state in new.items() if np.isfinite(state.label).any()}

    def _relax(
        self, block: _Block, state: State, key: int, move: Move, new: dict[Key, State]
    ) -> None:
        """Lower the labels of the target by one move."""
        labels = state.label[block.lowers]
        reached = np.flatnonzero(np.isfinite(labels))
        uppers = block.uppers
        wanted = np.arange(len(uppers))
        if not self._last(block.pairs):
            wanted = np.flatnonzero(self.fitting[move.target[0]][uppers])
        if not len(reached) or not len(wanted):
            return
        loads = block.loads(move, np.ix_(wanted, reached))
        value = self._values(block.pairs, uppers[wanted], loads, labels[reached])
        best = value.argmin(axis=1)
        least = value[np.arange(len(wanted)), best]
        target = new[move.target]
        better = least < target.label[uppers[wanted]]
        rows = uppers[wanted[better]]
        target.label[rows] = least[better]
        target.row[rows] = reached[best[better]] + (block.lowers.start or 0)
        target.key[rows] = key
        target.kind[rows] = move.kind

    def _values(self, pairs: Pairs, rows: Ints, loads: Floats, labels: Floats) -> Floats:
        """Return the labels of some upper downsets by way of each lower one."""
        if not self.total:
            return np.maximum(loads, labels[None, :])
        value: Floats = loads + labels[None, :]
        rest = self.inst.reference.sum() - pairs.upper.reference[rows]
        value[value > self.total_most - (rest / self.inst.pace.max())[:, None]] = np.inf
        return value

    def _last(self, pairs: Pairs) -> bool:
        return pairs.stage == self.inst.num_stages - 1

    # ------------------------------------------------------------ the way back

    def _trace(self, cuts: list[Cut], history: list[dict[Key, State]]) -> ChainPlan | None:
        final = history[-1]
        key = min(final, key=lambda each: (final[each].label[0], each))
        label = float(final[key].label[0])
        if not np.isfinite(label):
            return None
        row = 0
        stage_of = np.zeros(self.inst.num_nodes, np.int64)
        kinds: list[int] = []
        for stage in range(self.inst.num_stages - 1, -1, -1):
            state = history[stage + 1][key]
            kinds.append(int(state.kind[row]))
            source = list(history[stage])[int(state.key[row])]
            row = int(state.row[row])
            key = source
            if stage:
                stage_of += ~cuts[stage].members(row)
        return ChainPlan(label, tuple(stage_of.tolist()), tuple(reversed(kinds)))


class _Block:
    """Costs of a block of pairs, shared by all moves through it."""

    def __init__(
        self,
        search: ChainSearch,
        pairs: Pairs,
        uppers: Ints,
        lowers: slice,
        work: list[tuple[Floats, Floats]],
    ) -> None:
        self.search, self.pairs, self.uppers, self.lowers = search, pairs, uppers, lowers
        self.work = work
        inst = search.inst
        self.valid = pairs.valid(uppers, lowers)
        if inst.problem.apart or inst.problem.alone:
            self.valid &= ~pairs.forbidden(uppers, lowers)
        self.paid = pairs.paid(uppers, lowers) if inst.per_device else None
        self.bytes: Floats | None = None
        if search.memory:
            total = pairs.memory(uppers, lowers)
            if inst.workspace.any():
                largest = max(kind.budget_bytes for kind in inst.kinds)
                pairs.add_workspace(total, self.valid & (total <= largest), uppers, lowers)
            self.bytes = total
        self.stages = [self._stages_on(kind) for kind in range(len(inst.kinds))]

    def _stages_on(self, kind: int) -> Bools:
        """Return which pairs are stages that a device of this kind can hold."""
        inst = self.search.inst
        able = self.valid
        if self.bytes is not None:
            able = able & (self.bytes <= inst.kinds[kind].budget_bytes * (1 + 1e-9))
        if inst.excluded[kind].any():
            able = able & ~self.pairs.holds(inst.excluded[kind], self.uppers, self.lowers)
        return able

    def loads(self, move: Move, part: tuple[Ints, ...]) -> Floats:
        """Return the loads of a part of the block; infinite where there is no such stage."""
        search, inst, kind = self.search, self.search.inst, move.kind
        below, above = self.work[kind]
        rows, columns = self.uppers[part[0]], part[1] + (self.lowers.start or 0)
        load: Floats = above[rows] - below[columns]
        if inst.entry[kind]:
            if inst.problem.allow_empty:
                size = self.pairs.upper.size[rows] - self.pairs.lower.size[columns]
                load += inst.entry[kind] * (size > 0)
            else:
                load += inst.entry[kind]
        if self.paid is not None:
            if inst.kinds[kind].pays:
                load = load + self.paid[part]
        elif inst.num_nets:
            self._add_boundaries(load, move, part)
        load[~self.stages[kind][part] | (load > search.most)] = np.inf
        return load

    def _add_boundaries(self, load: Floats, move: Move, part: tuple[Ints, ...]) -> None:
        """Charge loads, in place, with what crosses the boundaries on both sides."""
        rows, columns = part[0][:, 0], part[1][0]
        before = self.pairs.lower.crossing[1][self.lowers][columns, move.source[2]][None, :]
        after = self.pairs.upper.crossing[1][self.uppers[rows], move.target[2]][:, None]
        if self.pairs.stage == self.search.inst.num_stages - 1:
            after = np.zeros_like(after)
        if self.search.inst.problem.overlap:
            np.maximum(load, before, out=load)
            np.maximum(load, after, out=load)
        else:
            load += before
            load += after


def _fresh(size: int) -> State:
    return State(
        np.full(size, np.inf),
        np.full(size, -1, np.int64),
        np.full(size, -1, np.int64),
        np.full(size, -1, np.int64),
    )


def _budget(budgets: list[float], counts: Ints) -> float:
    return sum(budget * int(count) for budget, count in zip(budgets, counts, strict=True) if count)
