"""What a stage costs: its time, what crosses its boundaries, and its peak memory.

The only place that knows. Solvers get these numbers through ``chain.problem``; every plan, by
whomever it was found, is judged by ``CostModel.evaluate``.

Time of a stage is the sum over its layers less what entering each layer alone has cost the
measurement: ``sum - (layers - 1) * offset``. What crosses a boundary is every value alive across
it, once (model inputs are looked up by each rank and never cross), and its gradient back.
"""

from autosplit.cost.memory import OPTIMIZER_COPIES, MemoryModel
from autosplit.cost.model import BoundaryCost, CostModel, Place, PlanCost, StageCost, all_reduce_s
from autosplit.cost.times import LayerTimes

__all__ = [
    "OPTIMIZER_COPIES",
    "BoundaryCost",
    "CostModel",
    "LayerTimes",
    "MemoryModel",
    "Place",
    "PlanCost",
    "StageCost",
    "all_reduce_s",
]
