"""One process of an export under verification: ``torchrun -m autosplit.verification.rank REQUEST``.

It does what the folder's ``train.py`` and ``infer.py`` do, with the folder's own stages and
runtime, on the micro-batches of the request, and writes every tensor it ends up with.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from autosplit.modelspec.python import import_source, split_spec
from autosplit.verification.determinism import fixed_randomness
from autosplit.verification.folder import modules_of, read_plan
from autosplit.verification.reference import loss_of

TIMEOUT_S = 120.0


def main(path: Path) -> None:
    """Run the steps of the request in the file ``path``."""
    request = torch.load(path, weights_only=True)
    folder = Path(request["folder"])
    loss = partial(loss_of, _own_loss(read_plan(folder).model.spec))
    with modules_of(folder):
        pipeline = importlib.import_module("pipeline")
        routing = pipeline.read_routing(folder / "routing.json")
        makers = [_maker(index) for index in range(len(routing.stages))]
        with pipeline.start(
            routing, device="cpu", threads=1, timeout_s=TIMEOUT_S, replicas=1
        ) as processes:
            for number, step in enumerate(request["steps"]):
                stages = {index: makers[index]() for index in processes.stages}
                for index, stage in stages.items():
                    pipeline.load_stage(stage, index, folder / "weights")
                runner = pipeline.Pipeline(
                    routing,
                    stages,
                    makers,
                    device=processes.device,
                    loss=loss,
                    schedule=step["schedule"],
                )
                batches = [pipeline.Microbatch(**each) for each in step["microbatches"]]
                found = dict((_train if step["train"] else _infer)(runner, batches))
                save_file(found, path.parent / f"step_{number}_rank_{processes.rank}.safetensors")


def _train(runner: Any, batches: list[Any]) -> Iterator[tuple[str, Tensor]]:
    with fixed_randomness():
        losses = runner.step(batches)
    yield from ((f"loss:{index}", _plain(loss)) for index, loss in enumerate(losses))
    for index, stage in runner.stages.items():
        for name, parameter in stage.named_parameters():
            if parameter.grad is not None:
                yield f"gradient:{index}:{name}", _plain(parameter.grad)
        for name, buffer in stage.named_buffers():
            yield f"buffer:{index}:{name}", _plain(buffer)


def _infer(runner: Any, batches: list[Any]) -> Iterator[tuple[str, Tensor]]:
    runner.train(False)
    with fixed_randomness():
        outputs = runner.infer(batches)
    for index, tensors in enumerate(outputs):
        yield from ((f"output:{index}:{name}", _plain(each)) for name, each in tensors.items())


def _maker(index: int) -> type[nn.Module]:
    found: type[nn.Module] = getattr(
        importlib.import_module(f"stages.stage_{index}"), f"Stage{index}"
    )
    return found


def _own_loss(spec: str) -> Any:
    """Return the loss defined beside the model, if there is one."""
    if spec.startswith("hf:"):
        return None
    return getattr(import_source(split_spec(spec)[0]), "loss", None)


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
