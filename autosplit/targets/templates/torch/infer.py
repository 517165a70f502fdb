"""Run the pipeline forward over a set of rows, in order, and write what the model returns."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pipeline import (
    Microbatch,
    Pipeline,
    PipelineError,
    Processes,
    Routing,
    draw,
    hand_over,
    load_stage,
    merge_outputs,
    read_routing,
    split_batch,
    start,
)
from pipeline.feed import takes_replica
from pipeline.options import Parser, add_run_options, output_file, positive, rows_of, run_main
from pipeline.source import read_inputs
from safetensors.torch import save_file

HERE = Path(__file__).parent


def parse(routing: Routing) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(description=__doc__)
    add_run_options(parser, routing)
    parser.add_argument(
        "--inputs",
        type=Path,
        metavar="FILE",
        help="safetensors with one tensor per input of the model, of any number of rows: "
        f"{', '.join(routing.inputs)} (default: batches of data.py)",
    )
    parser.add_argument(
        "--steps",
        type=positive,
        default=1,
        help="batches of data.py, where no file is given (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=output_file, metavar="FILE", help="write the outputs as safetensors"
    )
    parser.add_argument(
        "--output-rank",
        type=int,
        metavar="RANK",
        help="process that gets the outputs and writes them (default: that of the last stage)",
    )
    return parser.parse_args()


def main() -> None:
    """Infer."""
    routing = read_routing(HERE / "routing.json")
    options = parse(routing)
    with start(
        routing, device=options.device, threads=options.threads, timeout_s=options.timeout
    ) as processes:
        infer(routing, options, processes)


def infer(routing: Routing, options: argparse.Namespace, processes: Processes) -> None:
    """Run inference on one rank."""
    # Here, so that a mistake in them is told once for all ranks, with its line.
    import data
    from stages import STAGES

    stages = {index: STAGES[index]().to(processes.device) for index in processes.stages}
    for index, stage in stages.items():
        load_stage(stage, index, options.weights)
    replicas = processes.replicas
    pipeline = Pipeline(
        routing,
        stages,
        STAGES,
        device=processes.device,
        schedule=options.schedule,
        replicas=replicas,
    )
    if options.output_rank is not None and not 0 <= options.output_rank < processes.world:
        raise PipelineError(
            f"--output-rank {options.output_rank} is none of ranks 0 to {processes.world - 1}"
        )
    pipeline.train(False)
    if routing.mode == "train" and processes.rank == 0:
        print(
            "warning: the model's forward does other operations in eval() than in train(), and "
            "the stages do those of train()",
            file=sys.stderr,
        )
    begin = time.perf_counter()
    found: list[list[dict[str, torch.Tensor]]] = []
    rows = 0
    for number, microbatches in enumerate(steps(routing, options, data.batches)):
        if number % replicas.count == replicas.index:  # runs are dealt out in turn
            found.append(pipeline.infer(microbatches))
        rows += sum(part.rows for part in microbatches)
    runs = replicas.collect(found) if pipeline.has_last else []
    seconds = time.perf_counter() - begin
    last = routing.run.ranks[-1]
    wanted = last if options.output_rank is None else options.output_rank
    merged = {}
    if pipeline.speaks:
        merged = merge_outputs(routing, [output for run in runs for output in run])
    merged = hand_over(merged, last, wanted, processes.device)
    if processes.rank == wanted:
        for name, tensor in merged.items():
            print(f"{name}: {tuple(tensor.shape)} {tensor.dtype}")
        print(f"{rows} rows in {seconds:.3f} s: {rows / seconds:.1f} rows/s", flush=True)
        if options.output:
            save_file(merged, options.output)
    dist.barrier()


def steps(
    routing: Routing, options: argparse.Namespace, source: Callable[..., Iterable[Any]]
) -> Iterator[tuple[Microbatch, ...]]:
    """Yield the micro-batches of one run of the pipeline after the other."""
    rows = rows_of(options, routing, 1)
    if options.inputs is None:
        alone = {"replica": 0, "replicas": 1} if takes_replica(source) else {}
        batches = draw(partial(source, rows, **alone), seed=0)
        for _ in range(options.steps):
            inputs, _ = next(batches)
            yield split_batch(routing, inputs, (), options.microbatches)
        return
    if rows % options.microbatches:
        raise PipelineError(f"{rows} rows do not divide into {options.microbatches} micro-batches")
    size = rows // options.microbatches
    parts = split_batch(routing, read_inputs(routing, options.inputs), (), size=size)
    for first in range(0, len(parts), options.microbatches):
        yield parts[first : first + options.microbatches]


if __name__ == "__main__":
    run_main(main)
