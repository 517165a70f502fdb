"""The simulation has the last word: no plan that people make by hand may have a shorter step.

The objective of the solvers is a formula over loads. A step that is played through event by event
can differ from it a little, and so favour a plan that the formula puts second.
"""

from __future__ import annotations

from dataclasses import replace

from autosplit.assign import Answer
from autosplit.baselines import BASELINES
from autosplit.constraints import Constraints
from autosplit.deadline import Deadline
from autosplit.simulate import play
from autosplit.units import format_share


def judged(found: Answer, wishes: Constraints, deadline: Deadline) -> Answer:
    """Return the plan whose simulated step is shortest: the one found, or one made by hand.

    A plan made by hand takes its place only where it grants the wishes and fits; how far it is
    from the bound of the formula is then said as its gap. When the time is over, the plans not yet
    looked at are left out.
    """
    if found.proven and found.cost.objective_s <= 0:
        return found
    first = play(found.model, found.cost).step_s
    best, least = found, first
    for rule in BASELINES:
        if deadline.passed:
            break
        stage_of = BASELINES[rule](found.model)
        if stage_of is None or stage_of == found.stage_of or not wishes.met_by(stage_of):
            continue
        other = replace(
            found, stage_of=stage_of, cost=found.model.evaluate(stage_of, found.recompute)
        )
        step_s = play(other.model, other.cost).step_s
        if step_s < least * (1 - 1e-9) and other.fits:
            best, least = other, step_s
    if best is found:
        return found
    gain = format_share(1 - least / first)
    note = f"the simulated step is {gain} shorter than that of the plan the formula puts first"
    return replace(
        best,
        solution=None,
        stopped=None if best.proven else "simulation",
        notes=(*found.notes, note),
    )
