"""Random chain problems, and their answer by trying every plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from hypothesis import strategies as st

from autosplit.solvers.base import ChainProblem, DeviceKind, Link, Net, Shared
from autosplit.solvers.evaluate import evaluate

UNIT = 0.25
"""Numbers are multiples of this, so that sums are exact and ties are common."""


def plans(problem: ChainProblem) -> Iterator[tuple[int, ...]]:
    """Yield every assignment of stages that follows the edges."""
    before: list[list[int]] = [[] for _ in range(problem.num_nodes)]
    for a, b in problem.edges:
        before[b].append(a)
    stage_of: list[int] = []

    def place(node: int) -> Iterator[tuple[int, ...]]:
        if node == problem.num_nodes:
            yield tuple(stage_of)
            return
        first = max((stage_of[other] for other in before[node]), default=0)
        for stage in range(first, problem.num_stages):
            stage_of.append(stage)
            yield from place(node + 1)
            stage_of.pop()

    yield from place(0)


def kind_orders(problem: ChainProblem) -> list[tuple[int, ...]]:
    """Return every order of the devices."""
    devices = [g for g, kind in enumerate(problem.kinds) for _ in range(kind.count)]
    return sorted(set(itertools.permutations(devices)))


def recomputations(problem: ChainProblem) -> list[tuple[int, ...]]:
    """Return every choice of nodes to recompute."""
    useful = [node for node, spared in enumerate(problem.recompute_bytes) if spared > 0]
    return [
        chosen for size in range(len(useful) + 1) for chosen in itertools.combinations(useful, size)
    ]


def brute_force(problem: ChainProblem) -> float:
    """Return the least objective over all valid plans; infinite if there is none."""
    best = math.inf
    for stage_of in plans(problem):
        for kinds in kind_orders(problem):
            for recompute in recomputations(problem):
                result = evaluate(problem, stage_of, kinds, recompute)
                if not result.violations:
                    best = min(best, result.objective_s)
    return best


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    least_nodes: int = 2,
    most_nodes: int = 7,
    most_stages: int = 3,
    memory: bool = True,
    per_device: bool | None = None,
    kinds: bool = False,
    recompute: bool = False,
    step: bool = True,
) -> ChainProblem:
    """Draw a small problem that may use every feature."""
    count = draw(st.integers(least_nodes, most_nodes))
    stages = draw(st.integers(1, min(most_stages, count)))

    def number(most: int = 12) -> float:
        return draw(st.integers(0, most)) * UNIT

    def numbers(size: int, most: int = 12) -> tuple[float, ...]:
        return tuple(number(most) for _ in range(size))

    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2 * count))
    single = draw(st.booleans()) if per_device is None else per_device
    readers: dict[int, list[int]] = {}
    for a, b in sorted(edges):
        readers.setdefault(a, []).append(b)
    nets = []
    for producer in range(count):
        to_end = not single and draw(st.integers(0, 5)) == 0
        pins = (producer, *readers.get(producer, ()))
        if len(pins) + to_end > 1:
            volume = number()
            returned = volume if draw(st.booleans()) else 0.0
            nets.append(Net(pins, volume, draw(st.integers(0, 2)), returned, to_end))
    link = st.builds(Link, st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.sampled_from([0.0, 0.25]))
    options: dict[str, object] = {}
    if single or kinds:
        options["links"] = (draw(link),) * (stages - 1)
    elif draw(st.booleans()):
        options["links"] = tuple(draw(link) for _ in range(stages - 1))
    speeds = st.sampled_from([0.5, 1.0, 2.0])
    budgets = st.sampled_from([4.0, 8.0, 16.0, 64.0]) if memory else st.just(math.inf)
    if kinds:
        options |= _kinds(draw, stages, count, single, speeds, budgets, link)
    else:
        if draw(st.booleans()):
            options["speeds"] = tuple(draw(speeds) for _ in range(stages))
        if memory:
            options["budget_bytes"] = tuple(draw(budgets) for _ in range(stages))
    if memory:
        options["static_bytes"] = numbers(count)
        options["saved_bytes"] = numbers(count)
        options["workspace_bytes"] = numbers(count)
        options["in_flight"] = tuple(range(stages, 0, -1))
        options["boundary_factor"] = numbers(stages, 4)
        if draw(st.booleans()):
            tied = draw(st.lists(st.integers(0, count - 1), unique=True, min_size=1))
            options["shared"] = (Shared(tuple(sorted(tied)), number()),)
    if recompute:
        options["recompute_s"] = numbers(count)
        options["recompute_bytes"] = options["saved_bytes"]
    options |= _neighbours(draw, count)
    if draw(st.integers(0, 3)) == 0:
        node = draw(st.integers(0, count - 1))
        options["fixed"] = ((node, draw(st.integers(0, stages - 1))),)
    if step and draw(st.booleans()):
        options["objective"] = "step"
        options["microbatches"] = draw(st.integers(1, 6))
    return ChainProblem(
        num_stages=stages,
        work_s=numbers(count),
        edges=tuple(sorted(edges)),
        nets=tuple(nets),
        communication="per_device" if single else "pass_through",
        overlap=not single and draw(st.booleans()),
        entry_s=draw(st.sampled_from([0.0, 0.0, 0.5])),
        allow_empty=draw(st.booleans()),
        **options,  # type: ignore[arg-type]
    )


def _neighbours(draw: st.DrawFn, count: int) -> dict[str, object]:
    """Draw, now and then, nodes that stay apart and one that stays alone."""
    options: dict[str, object] = {}
    if draw(st.integers(0, 2)) == 0:
        chosen = draw(st.lists(st.integers(0, count - 1), unique=True, min_size=2, max_size=4))
        split = draw(st.integers(1, len(chosen) - 1))
        options["apart"] = ((tuple(sorted(chosen[:split])), tuple(sorted(chosen[split:]))),)
    if draw(st.integers(0, 3)) == 0:
        options["alone"] = (draw(st.integers(0, count - 1)),)
    return options


def _kinds(
    draw: st.DrawFn,
    stages: int,
    count: int,
    single: bool,
    speeds: st.SearchStrategy[float],
    budgets: st.SearchStrategy[float],
    link: st.SearchStrategy[Link],
) -> dict[str, object]:
    sizes = draw(st.lists(st.integers(1, stages), min_size=1, max_size=3))
    sizes = [size for index, size in enumerate(sizes) if sum(sizes[:index]) + size <= stages]
    if sum(sizes) < stages:
        sizes.append(stages - sum(sizes))
    kinds = []
    for index, size in enumerate(sizes):
        own = index > 0 and draw(st.integers(0, 3)) == 0
        excluded = draw(st.integers(0, 4 * count))
        kinds.append(
            DeviceKind(
                count=size,
                speed=draw(speeds),
                budget_bytes=draw(budgets),
                work_s=tuple(draw(st.integers(0, 12)) * UNIT for _ in range(count)) if own else (),
                excluded=(excluded,) if index and excluded < count else (),
                pays=not (single and index > 0 and draw(st.booleans())),
            )
        )
    options: dict[str, object] = {"kinds": tuple(kinds)}
    if not single and draw(st.booleans()):
        options["kind_links"] = tuple(tuple(draw(link) for _ in kinds) for _ in kinds)
    return options
