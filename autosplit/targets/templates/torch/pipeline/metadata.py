"""Shape, dtype and need of a gradient of every value, found without computing anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from .recompute import buffer_versions, written_buffers
from .routing import Routing


@dataclass(frozen=True)
class Meta:
    """What a receiver must know before a tensor arrives; ``grad``: a gradient goes back."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    grad: bool

    def example(self) -> Tensor:
        """Return a tensor without memory that looks like it."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta", requires_grad=self.grad)


class FakeChain:
    """All stages on fake tensors: every rank knows every shape, and no weight is allocated.

    torch would find shapes by an extra forward on real data, which counts a micro-batch twice
    in BatchNorm statistics.

    Parameters
    ----------
    routing
        The routing table.
    factories
        Constructor of each stage.
    device
        Device on which the pipeline runs.
    autocast
        Makes the context in which stages run.
    """

    def __init__(
        self,
        routing: Routing,
        factories: Sequence[Callable[[], nn.Module]],
        device: torch.device,
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.routing = routing
        self.device = device
        self.autocast = autocast
        self.written: dict[int, tuple[str, ...]] = {}
        self.mode = FakeTensorMode()
        with self.mode, device:
            self.stages = [factory() for factory in factories]

    def run(self, inputs: Mapping[str, Tensor], training: bool) -> dict[str, Meta]:
        """Return the metadata of every value of one micro-batch with these inputs.

        A gradient goes back where a path leads to a floating-point output of the model, whether
        or not the loss uses that output: it may begin to in a later step.
        """
        with self.mode, torch.enable_grad(), self.autocast():
            values = {
                name: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=self.device)
                for name, t in inputs.items()
            }
            for index, (stage, route) in enumerate(
                zip(self.stages, self.routing.stages, strict=True)
            ):
                before = buffer_versions(stage)
                values.update(route.call(stage.train(training), values))
                self.written[index] = written_buffers(stage, before)
            needed = self._needed(values)
        return {
            name: Meta(tuple(value.shape), value.dtype, name in needed)
            for name, value in values.items()
        }

    def _needed(self, values: Mapping[str, Tensor]) -> set[str]:
        roots = [values[name] for name in self.routing.outputs if values[name].requires_grad]
        followed = {name: value for name, value in values.items() if value.requires_grad}
        if not roots:
            return set()
        grads = torch.autograd.grad(
            roots,
            list(followed.values()),
            [torch.ones_like(root) for root in roots],
            allow_unused=True,
        )
        pairs = zip(followed, grads, strict=True)
        return {name for name, grad in pairs if grad is not None}
