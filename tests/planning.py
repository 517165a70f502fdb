"""Short ways to ask for plans in tests."""

import itertools

from autosplit import planner
from autosplit.types import PlanRequest


def plan(measured, stages, microbatches=8, **request):
    """Return the plan of a profile."""
    return planner.plan(measured, PlanRequest(stages, microbatches, **request))


def stage_of(found):
    """Return the stage of each layer, by name."""
    return {name: number for number, stage in enumerate(found.stages) for name in stage.layers}


def every_plan(built, stages):
    """Yield every assignment without empty stages in which no edge points backwards."""
    for assignment in itertools.product(range(stages), repeat=len(built)):
        if len(set(assignment)) == stages and all(
            assignment[a] <= assignment[b] for a, b in built.edges
        ):
            yield assignment
