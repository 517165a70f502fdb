"""Runs the stages of this folder as a pipeline on ``torch.distributed.pipelining`` schedules."""

from .agreement import check_alike, draw
from .batches import Microbatch, mean_loss, split_batch
from .errors import PipelineError
from .merge import hand_over, merge_outputs
from .processes import Processes, start
from .results import save_dump
from .routing import Routing, read_routing
from .runner import Pipeline
from .weights import load_stage, stage_tensors

__all__ = [
    "Microbatch",
    "Pipeline",
    "PipelineError",
    "Processes",
    "Routing",
    "check_alike",
    "draw",
    "hand_over",
    "load_stage",
    "mean_loss",
    "merge_outputs",
    "read_routing",
    "save_dump",
    "split_batch",
    "stage_tensors",
    "start",
]
