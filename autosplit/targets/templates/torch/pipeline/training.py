"""Options of training and the parts of its loop that need no reading."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .batches import Microbatch, mean_loss
from .errors import PipelineError
from .feed import Feed
from .options import Parser, add_run_options, output_file, output_folder, positive
from .precision import AUTOCAST
from .rates import SCHEDULES
from .recompute import WHOLE
from .routing import Routing
from .runner import Pipeline
from .sharding import SHARDINGS


def training_options(routing: Routing, description: str | None) -> argparse.Namespace:
    """Parse the command line of training."""
    parser = Parser(description=description)
    add_run_options(parser, routing)
    add = parser.add_argument
    add("--steps", type=positive, default=10, help="(default: %(default)s)")
    add("--lr", type=float, default=1e-3, help="learning rate (default: %(default)s)")
    add(
        "--lr-schedule",
        choices=SCHEDULES,
        default="constant",
        help="what the rate does until the last step (default: %(default)s)",
    )
    add("--warmup", type=int, default=0, metavar="N", help="steps of a rising rate (default: 0)")
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add(
        "--accumulate",
        type=positive,
        default=1,
        metavar="N",
        help="batches whose gradients make one step (default: %(default)s)",
    )
    add("--clip", type=float, metavar="NORM", help="largest norm of all gradients together")
    add(
        "--autocast",
        type=lambda name: {"bfloat16": "bf16", "float16": "fp16"}.get(name, name),
        choices=tuple(AUTOCAST),
        default="none",
        help="dtype of autocast; fp16 scales the loss (default: %(default)s)",
    )
    add(
        "--recompute",
        choices=("plan", "none", "all"),
        default="plan",
        help="what computes activations again in backward; plan: the modules that the plan "
        "recomputes; all: each stage as a whole (default: %(default)s)",
    )
    add(
        "--full-backward",
        action="store_true",
        help="under zero-bubble schedules compute gradients of weights at once, not later",
    )
    add(
        "--sharding",
        choices=SHARDINGS,
        default=routing.run.sharding,
        help="whether replicas hold parameters, gradients and optimizer state whole, or each a "
        "part (FSDP) (default: %(default)s)",
    )
    add(
        "--buffers",
        choices=("first", "mean"),
        default="first",
        help="which statistics (BatchNorm) of the replicas are evaluated with and saved: those of "
        "the first, or means (default: %(default)s)",
    )
    add(
        "--eval-every",
        type=positive,
        metavar="N",
        help="evaluate on eval_batches() of data.py every N steps",
    )
    add(
        "--eval-batches",
        type=positive,
        default=10,
        metavar="N",
        help="at most so many of them, from the first (default: %(default)s)",
    )
    add(
        "--checkpoint-dir",
        type=output_folder,
        metavar="DIR",
        help="write checkpoints to DIR/step_N, after the last step or when asked to stop",
    )
    add("--save-every", type=positive, metavar="N", help="and after every N steps")
    add(
        "--async-save",
        action="store_true",
        help="write checkpoints while training goes on, from a copy in the memory of the host",
    )
    add("--keep", type=positive, metavar="N", help="keep the last N checkpoints alone")
    add(
        "--resume",
        metavar="auto|DIR",
        help="go on from a checkpoint; auto: the last in --checkpoint-dir, if there is one",
    )
    add("--allow-nan", action="store_true", help="train on where the loss is no finite number")
    add("--log-every", type=positive, default=10, metavar="N", help="(default: %(default)s)")
    add("--log-dir", type=output_folder, metavar="DIR", help="JSON lines, and TensorBoard's logs")
    add("--report", type=output_file, metavar="FILE", help="write losses and step times as JSON")
    add(
        "--dump",
        type=output_folder,
        metavar="DIR",
        help="write losses, gradients and buffers of the last step, one file per rank",
    )
    options = parser.parse_args()
    if (options.save_every or options.keep) and not options.checkpoint_dir:
        parser.error("--save-every and --keep need --checkpoint-dir")
    return options


def restarted() -> bool:
    """Return whether torchrun has started this process again."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def modules_to_recompute(asked: str, routing: Routing) -> dict[int, tuple[str, ...]]:
    """Return the modules of each stage whose activations are computed again."""
    if asked == "plan":
        return dict(enumerate(routing.run.recompute))
    return dict.fromkeys(range(len(routing.stages)), WHOLE) if asked == "all" else {}


def seed_step(seed: int, step: int, rank: int) -> None:
    """Begin the random numbers of a step (dropout): they need not be saved to resume."""
    torch.manual_seed((seed * 1_000_003 + step) * 65_536 + rank)


def run_step(
    pipeline: Pipeline, drawn: list[tuple[Microbatch, ...]], scale: float
) -> tuple[int, float, list[torch.Tensor]]:
    """Run forward and backward over the batches of a step.

    Returns
    -------
    tuple
        The rows of all replicas, their mean loss, and the losses of the micro-batches; on a rank
        without the last stage the loss is 0 and there are none.
    """
    flat = [part for parts in drawn for part in parts]
    (rows,) = pipeline.replicas.totals(sum(part.rows for part in flat))
    losses: list[torch.Tensor] = []
    for number, parts in enumerate(drawn, start=1):
        share = sum(part.rows for part in parts) / rows
        losses += pipeline.step(parts, share * scale, last=number == len(drawn))
    loss = mean_loss(losses, flat, pipeline.replicas) if losses else 0.0
    return int(rows), loss, losses


def check_loss(loss: float, step: int, options: argparse.Namespace) -> None:
    """Refuse a loss that is no finite number, before it reaches the weights.

    Under fp16 the step is left out and the scale lowered instead.

    Raises
    ------
    PipelineError
        Naming the step.
    """
    if not (math.isfinite(loss) or options.allow_nan or options.autocast == "fp16"):
        raise PipelineError(f"the loss is {loss} in step {step}; --allow-nan trains on")


def evaluate(
    pipeline: Pipeline, feed: Feed, batches: Iterator[tuple[Any, tuple[Any, ...]]], most: int
) -> float:
    """Return the mean loss over the rows of at most so many batches, in eval mode.

    Ranks without the last stage return 0.
    """
    pipeline.train(False)
    flat: list[Microbatch] = []
    losses: list[torch.Tensor] = []
    for parts in feed.once(batches, most):
        losses += pipeline.evaluate(parts)
        flat += parts
    pipeline.train(True)
    return mean_loss(losses, flat, pipeline.replicas) if losses else 0.0


def evaluation_batches(data: Any) -> Callable[..., Iterable[Any]]:
    """Return ``eval_batches`` of data.py.

    Raises
    ------
    PipelineError
        If it has none.
    """
    found: Callable[..., Iterable[Any]] | None = getattr(data, "eval_batches", None)
    if found is None:
        raise PipelineError("--eval-every needs eval_batches(batch_size) in data.py")
    return found
