"""Train the pipeline; ``launch.sh`` starts the processes."""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path

import data
import torch
import torch.distributed as dist
from pipeline import (
    Pipeline,
    Processes,
    Routing,
    check_alike,
    draw,
    load_stage,
    mean_loss,
    read_routing,
    save_checkpoint,
    save_dump,
    split_batch,
    start,
)
from pipeline.options import add_run_options, positive, rows_of, run_main
from stages import STAGES

HERE = Path(__file__).parent


def parse(routing: Routing) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_run_options(parser, routing)
    parser.add_argument("--steps", type=positive, default=10, help="(default: %(default)s)")
    parser.add_argument("--lr", type=float, default=1e-3, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument(
        "--checkpoint-dir", type=Path, metavar="DIR", help="write weights to DIR/step_N"
    )
    parser.add_argument(
        "--save-every",
        type=positive,
        metavar="N",
        help="steps from one checkpoint to the next (default: after the last step alone)",
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write losses and step times as JSON"
    )
    parser.add_argument(
        "--dump",
        type=Path,
        metavar="DIR",
        help="write losses, gradients and buffers of the last step, one file per rank",
    )
    return parser.parse_args()


def main() -> None:
    """Train."""
    routing = read_routing(HERE / "routing.json")
    options = parse(routing)
    with start(
        routing, device=options.device, threads=options.threads, timeout_s=options.timeout
    ) as processes:
        train(routing, options, processes)


def train(routing: Routing, options: argparse.Namespace, processes: Processes) -> None:
    """Run the training loop of one rank."""
    # Stages draw dropout masks of their own; data is drawn alike by `draw`.
    torch.manual_seed(options.seed + processes.rank)
    stages = {index: STAGES[index]().to(processes.device) for index in processes.stages}
    for index, stage in stages.items():
        load_stage(stage, index, options.weights)
    pipeline = Pipeline(
        routing,
        stages,
        STAGES,
        device=processes.device,
        loss=data.loss,
        schedule=options.schedule,
    )
    parameters = pipeline.parameters()
    # A stage may have nothing to train, and an optimizer refuses an empty list.
    optimizer = data.optimizer(parameters, options.lr) if parameters else None
    batches = draw(partial(data.batches, rows_of(options, routing)), options.seed)
    record: dict[str, list[float]] = {"losses": [], "step_s": []}

    for step in range(1, options.steps + 1):
        begin = time.perf_counter()
        inputs, targets = next(batches)
        microbatches = split_batch(routing, inputs, targets, options.microbatches)
        check_alike(microbatches, processes.device)
        pipeline.zero_grad()
        losses = pipeline.step(microbatches)
        if optimizer is not None:
            optimizer.step()
        if pipeline.has_last:
            record["losses"].append(mean_loss(losses, microbatches))
            record["step_s"].append(time.perf_counter() - begin)
            print(
                f"step {step}/{options.steps}  loss {record['losses'][-1]:.6f}  "
                f"{record['step_s'][-1]:.3f} s",
                flush=True,
            )
        if options.checkpoint_dir and (
            step == options.steps or (options.save_every and step % options.save_every == 0)
        ):
            save_checkpoint(stages, options.checkpoint_dir / f"step_{step}", processes.rank)

    if options.dump:
        save_dump(stages, losses, options.dump, processes.rank)
    if options.report and pipeline.has_last:
        options.report.write_text(json.dumps(record) + "\n", encoding="utf-8")
    dist.barrier()


if __name__ == "__main__":
    run_main(main)
