"""One rank's part of the pipeline: training steps and inference over micro-batches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from .batches import Microbatch
from .clock import Clock
from .errors import PipelineError
from .gradients import gradient_norm, scale_gradients
from .metadata import FakeChain, Meta
from .recompute import compute_again, is_within
from .relay import Relay
from .replicas import Replicas
from .routing import Routing
from .schedules import Schedule, find_schedule, make_schedule
from .sharding import DividedStage, Reduction, is_divided
from .shared import SharedGradients
from .torch_stage import TorchStage
from .tree import rebuild
from .weight_gradients import LaterWeightGradients

KEPT_SCHEDULES = 16
"""Shapes whose schedules, with their receive buffers, stay in memory."""


class Pipeline:
    """Runs the stages of this rank together with the other ranks.

    All ranks of a pipeline call the same methods with the same micro-batches; each one looks up
    the inputs and targets it needs itself. ``step`` may be called several times before the
    optimizer, and gradients add up. Replicas call the same methods with micro-batches of their
    own, one at least.

    Parameters
    ----------
    routing
        The routing table.
    stages
        Stages of this rank by number, on ``device``.
    factories
        Constructor of every stage of the pipeline.
    loss
        ``loss(output, *targets)``, a scalar; None for inference.
    schedule
        A name in ``schedules.SCHEDULES``.
    split_backward
        Whether a zero-bubble schedule computes gradients of weights later than those of inputs,
        for stages whose parameters are whole.
    autocast
        dtype of autocast for stages and loss; None for none.
    recompute
        By stage, modules whose activations are computed again in backward; "" is all of it.
    replicas
        The copies of the pipeline.
    """

    def __init__(
        self,
        routing: Routing,
        stages: Mapping[int, nn.Module],
        factories: Sequence[Callable[[], nn.Module]],
        *,
        device: torch.device,
        loss: Callable[..., Tensor] | None = None,
        schedule: str = "1f1b",
        split_backward: bool = True,
        autocast: torch.dtype | None = None,
        recompute: Mapping[int, Collection[str]] = MappingProxyType({}),
        replicas: Replicas = Replicas(),  # noqa: B008 (never changed)
    ) -> None:
        self.routing = routing
        self.stages = dict(stages)
        self.device = device
        self.loss = loss
        self.schedule = schedule
        self.replicas = replicas
        self.training = True
        self._autocast = partial(
            torch.autocast, device.type, dtype=autocast, enabled=autocast is not None
        )
        self._recompute = {k: recompute[k] for k in self.stages if recompute.get(k)}
        self._reductions = {
            k: Reduction(stage)
            for k, stage in self.stages.items()
            if any(map(is_divided, stage.parameters()))
        }
        later = split_backward and find_schedule(schedule, routing.run.ranks).split
        self._relays = {
            k: Relay(
                stage,
                k,
                routing,
                self._autocast,
                "" in self._recompute.get(k, ()),
                # Parts of a gradient are summed in backward, so that it must be there by then.
                LaterWeightGradients() if later and k not in self._reductions else None,
            )
            for k, stage in self.stages.items()
        }
        for k, modules in self._recompute.items():
            later_gradients = self._relays[k].later or nullcontext()
            compute_again(self.stages[k], filter(None, modules), later_gradients)
        self._clocks = {k: Clock(device) for k in self.stages}
        self._chain = FakeChain(routing, factories, device, self._autocast)
        self._shared = SharedGradients(routing, self.stages, device, replicas)
        self._schedules: OrderedDict[Any, tuple[Schedule, dict[str, Meta]]] = OrderedDict()
        self._running: Sequence[Microbatch] = ()
        self._weights: Sequence[float] = ()
        self._losses: list[Tensor] = []
        self.train()

    @property
    def has_last(self) -> bool:
        """Whether the last stage, and with it losses and outputs, is on this rank."""
        return len(self.routing.stages) - 1 in self.stages

    @property
    def speaks(self) -> bool:
        """Whether this rank is the one that tells losses and writes outputs."""
        return self.has_last and self.replicas.index == 0

    def train(self, mode: bool = True) -> None:
        """Switch dropout, BatchNorm and the like, as ``nn.Module.train`` does."""
        self.training = mode
        for stage in self.stages.values():
            stage.train(mode)

    def parameters(self) -> list[nn.Parameter]:
        """Return the trainable parameters of this rank, each once."""
        found = (p for stage in self.stages.values() for p in stage.parameters())
        return [p for p in dict.fromkeys(found) if p.requires_grad]

    def computed_s(self) -> dict[int, float]:
        """Return how long each stage of this rank has computed in training since the last call."""
        return {k: clock.read() for k, clock in self._clocks.items()}

    def gradient_norm(self) -> float:
        """Return the norm of the model's gradients, the same on every rank; all ranks call it.

        A parameter that several stages hold counts once.
        """
        again = {
            id(self.stages[stage].get_parameter(name))
            for shared in self.routing.shared
            for stage, name in shared.holders[1:]
            if stage in self.stages
        }
        counted = (p for p in self.parameters() if id(p) not in again)
        return gradient_norm(counted, self.device, self.replicas.count)

    def align_buffers(self, *, mean: bool = False) -> None:
        """Give all replicas the buffers of the first, or means; all ranks call it."""
        # All of them: BatchNorm writes to its statistics without a new version.
        buffers = (buffer for stage in self.stages.values() for buffer in stage.buffers())
        self.replicas.align(buffers, mean=mean)

    def zero_grad(self) -> None:
        """Drop the gradients of this rank."""
        for stage in self.stages.values():
            stage.zero_grad(set_to_none=True)

    def step(
        self, microbatches: Sequence[Microbatch], weight: float = 1.0, *, last: bool = True
    ) -> list[Tensor]:
        """Run forward and backward; add to ``grad`` of the parameters.

        The loss of the step is the mean over the micro-batches, weighted by their rows, times
        ``weight``. The ``last`` step before the optimizer sums gradients over the replicas.

        Returns
        -------
        list
            The loss of each micro-batch, without weight, on the rank with the last stage; else
            an empty list.
        """
        if self.loss is None:
            raise PipelineError("training needs a loss")
        rows = sum(part.rows for part in microbatches) or 1
        self._losses = []
        self._shared.set_aside()
        for reduction in self._reductions.values():
            reduction.begin(len(microbatches) if last else 0)
        for parts in _alike(microbatches):
            self._weights = [weight * part.rows / rows for part in parts]
            self._run(parts, backward=True)
        self._shared.reduce()
        if last:
            self._sum_over_replicas()
        return self._losses

    def _sum_over_replicas(self) -> None:
        """Sum gradients; those of divided parameters are means already, of this rank's part."""
        self._release()
        count = self.replicas.count
        divided = [p for p in self.parameters() if is_divided(p)]
        scale_gradients(divided, float(count))
        self.replicas.sum_gradients([p for p in self.parameters() if not is_divided(p)])

    def _release(self) -> None:
        for reduction in self._reductions.values():
            reduction.release()

    @torch.no_grad()
    def infer(self, microbatches: Sequence[Microbatch]) -> list[dict[str, Tensor]]:
        """Run forward alone.

        Returns
        -------
        list
            The output tensors of each micro-batch by name, on the rank with the last stage;
            else an empty list.
        """
        outputs: list[dict[str, Tensor]] = []
        for parts in _alike(microbatches):
            self._run(parts, backward=False)
            outputs += (self._named(sent) for sent in self._last_sent())
        self._release()
        return outputs

    @torch.no_grad()
    def evaluate(self, microbatches: Sequence[Microbatch]) -> list[Tensor]:
        """Run forward alone; return losses as ``step`` does."""
        outputs = self.infer(microbatches)
        return [
            self._loss_of(output, part.targets)
            for output, part in zip(outputs, microbatches, strict=bool(outputs))
        ]

    def _last_sent(self) -> list[tuple[Tensor, ...]]:
        last = self._relays.get(len(self.routing.stages) - 1)
        return last.kept if last is not None else []

    # ------------------------------------------------------------ one run of a schedule

    def _run(self, parts: Sequence[Microbatch], *, backward: bool) -> None:
        schedule, metas = self._schedule(parts, backward)
        self._running = parts
        for index, relay in self._relays.items():
            wanted = self.routing.local_inputs(index)
            relay.prepare([self._local(part, wanted) for part in parts], metas, keep=not backward)
        numbers = torch.arange(len(parts))
        run = schedule.step if backward else schedule.eval
        run(number=numbers, target=numbers, return_outputs=False)

    def _local(self, part: Microbatch, wanted: frozenset[str]) -> dict[str, Tensor]:
        return {name: part.inputs[name].to(self.device) for name in sorted(wanted)}

    def _schedule(
        self, parts: Sequence[Microbatch], backward: bool
    ) -> tuple[Schedule, dict[str, Meta]]:
        """Return the schedule for micro-batches of this shape; buffers belong to one shape."""
        key = (backward, self.training, len(parts), parts[0].signature)
        if key not in self._schedules:
            metas = self._chain.run(parts[0].inputs, self.training)
            self._check_recompute()
            stages = [self._torch_stage(relay, metas) for relay in self._relays.values()]
            loss = self._weighted_loss if backward else None
            self._schedules[key] = make_schedule(self.schedule, stages, len(parts), loss), metas
            if len(self._schedules) > KEPT_SCHEDULES:
                self._schedules.popitem(last=False)
        self._schedules.move_to_end(key)
        return self._schedules[key]

    def _torch_stage(self, relay: Relay, metas: Mapping[str, Meta]) -> TorchStage:
        reduction = self._reductions.get(relay.index)
        kind = TorchStage if reduction is None else partial(DividedStage, reduction)
        stage = kind(
            relay,
            relay.index,
            len(self.routing.stages),
            self.device,
            input_args=tuple(metas[name].example() for name in relay.received),
            output_args=tuple(metas[name].example() for name in relay.sent),
            group=self.replicas.pipeline,
            # torch's own split loses gradients of some stages.
            dw_builder=_nothing_later if relay.later is None else relay.later.take,
        )
        stage.clock = self._clocks[relay.index]
        return stage

    def _named(self, output: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return dict(zip(self.routing.outputs, output, strict=True))

    def _weighted_loss(self, output: tuple[Tensor, ...], number: Tensor) -> Tensor:
        """Return the weighted loss of one micro-batch, for torch to run backward from."""
        index = int(number)
        with self._clocks[len(self.routing.stages) - 1].running():
            loss = self._loss_of(self._named(output), self._running[index].targets)
        if not loss.requires_grad:
            raise PipelineError("the loss does not depend on any trainable parameter")
        self._losses.append(loss.detach().clone())
        # A scaled loss exceeds what fp16 can hold.
        wide = torch.promote_types(loss.dtype, torch.float32)
        return loss.to(wide) * self._weights[index]

    def _loss_of(self, output: Mapping[str, Tensor], targets: Sequence[Any]) -> Tensor:
        assert self.loss is not None
        there = (_to_device(target, self.device) for target in targets)
        with self._autocast():
            loss = self.loss(rebuild(self.routing.output_tree, output), *there)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise PipelineError(f"the loss must be a scalar tensor, not {loss!r}")
        return loss

    def _check_recompute(self) -> None:
        for index, modules in sorted(self._recompute.items()):
            for name in self._chain.written[index]:
                if is_within(name, modules):
                    raise PipelineError(
                        f"stage {index} writes to its buffer {name!r} in forward, and computing "
                        "that again would give something else: pass --recompute none"
                    )


def _alike(microbatches: Sequence[Microbatch]) -> Iterator[list[Microbatch]]:
    """Yield runs of neighbouring micro-batches that have the same shapes."""
    for _, parts in groupby(microbatches, key=lambda part: part.signature):
        yield list(parts)


def _nothing_later() -> Callable[[], None]:
    return lambda: None


def _to_device(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value
