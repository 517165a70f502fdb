"""Train the pipeline; launch.sh starts the processes."""

from __future__ import annotations

import argparse
import math
import time
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from pipeline import (
    Pipeline,
    PipelineError,
    Processes,
    Routing,
    draw,
    load_stage,
    read_routing,
    save_dump,
    start,
)
from pipeline.checkpoints import Checkpoints, resume_point
from pipeline.feed import Feed
from pipeline.gradients import clip_factor, scale_gradients
from pipeline.options import rows_of, run_main
from pipeline.precision import AUTOCAST, LossScale
from pipeline.progress import Progress, comparable
from pipeline.rates import rate_factor, set_rate
from pipeline.sharding import build_stages
from pipeline.signals import Stop
from pipeline.training import (
    check_loss,
    evaluate,
    evaluation_batches,
    modules_to_recompute,
    restarted,
    run_step,
    seed_step,
    training_options,
)

HERE = Path(__file__).parent


def main() -> None:
    """Train."""
    routing = read_routing(HERE / "routing.json")
    options = training_options(routing, __doc__)
    with start(
        routing, device=options.device, threads=options.threads, timeout_s=options.timeout
    ) as processes:
        train(routing, options, processes)


def train(routing: Routing, options: argparse.Namespace, processes: Processes) -> None:
    """Run the training loop of one rank."""
    # Here, so that a mistake in them is told once for all ranks, with its line.
    import data
    from stages import STAGES

    evaluation = evaluation_batches(data) if options.eval_every else None
    resume = resume_point(options.checkpoint_dir, options.resume, restarted())
    torch.manual_seed(options.seed)
    replicas = processes.replicas
    stages = build_stages(STAGES, processes.stages, processes.device, replicas, options.sharding)
    pipeline = Pipeline(
        routing,
        stages,
        STAGES,
        device=processes.device,
        loss=data.loss,
        schedule=options.schedule,
        split_backward=not options.full_backward,
        autocast=AUTOCAST[options.autocast],
        recompute=modules_to_recompute(options.recompute, routing),
        replicas=replicas,
    )
    parameters = pipeline.parameters()
    # A stage may have nothing to train, and an optimizer refuses an empty list.
    optimizer = data.optimizer(parameters, options.lr) if parameters else None
    scale = LossScale() if options.autocast == "fp16" else LossScale(1.0, interval=2**62)
    checkpoints = Checkpoints(
        stages,
        optimizer,
        processes.rank,
        options.keep,
        replicas,
        background=options.async_save,
    )
    first, drawn_before = 1, 0
    if resume is None:
        for index, stage in stages.items():
            load_stage(stage, index, options.weights)
    else:
        state = checkpoints.load(resume)
        first, drawn_before = state["step"] + 1, state["batches"]
        scale.value, scale.good = state["loss_scale"], state["good_steps"]
        if processes.rank == 0:
            print(f"resumed from {resume} after step {first - 1}", flush=True)

    rows = rows_of(options, routing, replicas.count)
    size = (rows, options.microbatches, routing, replicas, processes.device)
    feed = Feed(data.batches, *size)
    batches = draw(feed.source, options.seed)
    # Drawn again and left aside, so that data goes on where it stopped.
    next(islice(batches, drawn_before, drawn_before), None)
    steps = feed.steps(batches, options.accumulate)
    alike = comparable(routing, rows, options.microbatches, options.accumulate, replicas.count)
    progress = Progress(pipeline, HERE / "plan.json", options.log_dir, comparable=alike)
    stop = Stop(processes.device)

    for step in range(first, options.steps + 1):
        begin = time.perf_counter()
        checkpoints.check()
        seed_step(options.seed, step, processes.rank)
        pipeline.zero_grad()
        trained, loss, losses = run_step(pipeline, next(steps), scale.value)
        check_loss(loss, step, options)
        update(pipeline, optimizer, options, scale, step)
        seconds = time.perf_counter() - begin
        progress.step(step, options.steps, loss, seconds, trained)
        if evaluation and step % options.eval_every == 0:
            pipeline.align_buffers(mean=options.buffers == "mean")
            others = Feed(evaluation, *size)
            found = draw(others.source, options.seed, again=False)
            progress.evaluated(step, evaluate(pipeline, others, found, options.eval_batches))
        stopping = stop.asked()
        last = stopping or step == options.steps
        if last or step % options.log_every == 0:
            progress.summary()
        saved = options.save_every and step % options.save_every == 0
        if options.checkpoint_dir and (last or saved):
            state = {
                "step": step,
                "batches": drawn_before + (step - first + 1) * options.accumulate,
                "loss_scale": scale.value,
                "good_steps": scale.good,
            }
            pipeline.align_buffers(mean=options.buffers == "mean")
            checkpoints.save(options.checkpoint_dir / f"step_{step}", state)
        if stopping:
            if pipeline.speaks:
                print(f"stopped as asked after step {step}", flush=True)
            break

    checkpoints.wait()
    if options.dump and first <= options.steps:
        save_dump(stages, losses, options.dump, processes.rank)
    progress.write(options.report)
    dist.barrier()


def update(
    pipeline: Pipeline,
    optimizer: torch.optim.Optimizer | None,
    options: argparse.Namespace,
    scale: LossScale,
    step: int,
) -> None:
    """Clip, and take the optimizer's step; under fp16 leave out a step that overflowed."""
    factor = 1 / scale.value
    finite = True
    if options.clip is not None or options.autocast == "fp16":
        norm = pipeline.gradient_norm() / scale.value
        finite = math.isfinite(norm)
        if not finite and options.autocast != "fp16":
            raise PipelineError(f"the norm of the gradients is {norm} in step {step}")
        factor *= clip_factor(norm, options.clip) if finite else 1.0
    if finite and optimizer is not None:
        scale_gradients(pipeline.parameters(), factor)
        set_rate(
            optimizer,
            rate_factor(step, options.steps, options.lr_schedule, options.warmup),
        )
        optimizer.step()
    scale.update(finite)


if __name__ == "__main__":
    run_main(main)
