"""Train a model in one process with one thread: what the demo compares the pipeline with.

It does what the exported ``train.py`` does: the same batches in the same micro-batches, the
same optimizer, and memory kept in the process as the export's launcher keeps it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from autosplit.modelspec import load_model
from autosplit.profilers.allocator import keep_freed_memory
from autosplit.types import ModelRef


def main() -> None:
    """Train and report losses and step times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="FILE.py:NAME; the file defines batches and loss too")
    parser.add_argument("--microbatch-size", type=int, default=8, metavar="ROWS")
    parser.add_argument("--microbatches", type=int, default=8, metavar="M")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--report", type=Path, required=True, metavar="FILE")
    options = parser.parse_args()

    torch.set_num_threads(1)
    with keep_freed_memory():
        record = train(
            ModelRef(options.model, options.microbatch_size), options.microbatches, options.steps
        )
    options.report.write_text(json.dumps(record) + "\n", encoding="utf-8")


def train(ref: ModelRef, microbatches: int, steps: int) -> dict[str, list[float]]:
    """Return the loss and the seconds of every step."""
    loaded = load_model(ref)
    if loaded.batches is None or loaded.loss is None or ref.batch_size is None:
        raise SystemExit(f"{ref.spec} defines no batches or no loss")
    optimizer = torch.optim.AdamW(loaded.model.parameters(), lr=1e-3)
    batches = iter(loaded.batches(microbatches * ref.batch_size))
    record: dict[str, list[float]] = {"losses": [], "step_s": []}
    for step in range(1, steps + 1):
        begin = time.perf_counter()
        inputs, targets = next(batches)
        optimizer.zero_grad()
        mean = 0.0
        chunks = [tensor.chunk(microbatches) for tensor in (*inputs, *targets)]
        for parts in zip(*chunks, strict=True):
            output = loaded.model(*parts[: len(inputs)])
            loss = loaded.loss(output, *parts[len(inputs) :]) / microbatches
            loss.backward()
            mean += loss.item()
        optimizer.step()
        record["losses"].append(mean)
        record["step_s"].append(time.perf_counter() - begin)
        print(f"step {step}/{steps}  loss {mean:.6f}  {record['step_s'][-1]:.3f} s", flush=True)
    return record


if __name__ == "__main__":
    main()
