"""One rank of an export: trains a few steps under a tracker and says how much memory it took.

Arguments are the folder of the export and a list of ``[schedule, micro-batches]`` as JSON; every
rank writes the bytes of each into ``memory_RANK.json`` in the folder.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.distributed._tools.mem_tracker import MemTracker

STEPS = 2
"""In the first one there are no gradients and no optimizer state yet."""


class Tracker(MemTracker):  # type: ignore[misc]
    """Counts storages alone: counts by module refuse a module that is called again."""

    def _nothing(self, *_: Any) -> None:
        pass

    _pre_fw_hook = _post_fw_hook = _pre_bw_hook = _post_bw_hook = _nothing


def main() -> None:
    """Train with every schedule and number of micro-batches asked for."""
    folder, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
    sys.path.insert(0, str(folder))
    from pipeline import read_routing, start

    routing = read_routing(folder / "routing.json")
    with start(routing, device="cpu", threads=1) as processes:
        peaks = [peak_bytes(routing, processes, *each) for each in asked]
        (folder / f"memory_{processes.rank}.json").write_text(json.dumps(peaks))


def peak_bytes(routing: Any, processes: Any, schedule: str, microbatches: int) -> int:
    """Return the peak of training steps: state, gradients and inputs included."""
    import data
    from pipeline import Pipeline, split_batch
    from stages import STAGES

    torch.manual_seed(0)
    stages = {index: STAGES[index]() for index in processes.stages}
    pipeline = Pipeline(
        routing, stages, STAGES, device=processes.device, loss=data.loss, schedule=schedule
    )
    optimizer = data.optimizer(pipeline.parameters(), 1e-3)
    tracker = Tracker()
    tracker.track_external(*stages.values())
    with tracker:
        batches = data.batches(microbatches * routing.run.microbatch_size)
        for inputs, targets in islice(batches, STEPS):
            parts = split_batch(routing, inputs, targets, microbatches)
            pipeline.zero_grad()
            pipeline.step(parts)
            optimizer.step()
    return int(tracker.get_tracker_snapshot("peak")[processes.device]["Total"])


if __name__ == "__main__":
    main()
