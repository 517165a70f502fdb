"""Plans of two stages, cut where a wanted share of the work is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path

from autosplit import codegen, graph, planner, stages, weights, workflow
from autosplit.targets import TARGETS
from autosplit.tracers import Trace
from autosplit.types import Plan, PlanRequest, Profile


def plans(profile: Profile, shares: Iterable[float], microbatches: int) -> Iterator[Plan]:
    """Yield one plan for each share of the first stage, each place once."""
    layers = graph.build(profile).layers
    done = list(accumulate(layer.forward.median_s + layer.backward.median_s for layer in layers))
    places = {sum(each < share * done[-1] for each in done) for share in shares}
    for place in sorted(min(max(place, 1), len(layers) - 1) for place in places):
        request = PlanRequest(2, microbatches, boundaries=(layers[place].name,))
        yield workflow.plan(profile, request)


def stage_seconds(profile: Profile, plan: Plan) -> list[float]:
    """Return what the stages of a plan take for one micro-batch after another profile."""
    answer = planner.Task(graph.build(profile), {}).given(plan.request, plan)
    return [stage.forward_s + stage.backward_s for stage in answer.cost.stages]


def export(plan: Plan, traced: Trace, folder: Path) -> None:
    """Write the export of a plan without tracing its model again."""
    specs, routing = stages.split(traced.program, plan.stage_of_node, len(plan.stages))
    sources = codegen.generate(traced.program, specs)
    artifacts = TARGETS["torch"].emit(plan, traced.program, routing, sources)
    weights.write_export(folder, artifacts, traced, routing)
