"""A stage as the schedules of torch want it: a flat tuple comes in, a flat tuple goes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from .metadata import Meta
from .recompute import call_again
from .routing import Routing
from .weight_gradients import LaterWeightGradients


class Relay(nn.Module):
    """Calls a stage with the values it takes and passes the others on.

    Through torch go the values of the cut and the number of the micro-batch alone; inputs of
    the model are looked up here by that number.

    Parameters
    ----------
    stage
        The stage, a pure function of what it takes.
    index
        Its position.
    autocast
        Makes the context in which the stage runs.
    recompute
        Whether backward computes all activations of the stage again.
    later
        Keeps gradients of weights for later; None computes them in backward.
    """

    def __init__(
        self,
        stage: nn.Module,
        index: int,
        routing: Routing,
        autocast: Callable[[], AbstractContextManager[object]],
        recompute: bool,
        later: LaterWeightGradients | None = None,
    ) -> None:
        super().__init__()
        self.stage = stage
        self.index = index
        self.later = later
        self.route = routing.stages[index]
        self.received = routing.received(index)
        self.sent = routing.sent(index)
        self.kept: list[tuple[Tensor, ...]] = []
        self._autocast = autocast
        self._recompute = recompute
        self._keep = False
        self._inputs: Sequence[Mapping[str, Tensor]] = ()
        self._metas: Mapping[str, Meta] = {}
        self._held: frozenset[int] = frozenset()

    def prepare(
        self, inputs: Sequence[Mapping[str, Tensor]], metas: Mapping[str, Meta], *, keep: bool
    ) -> None:
        """Set the inputs of every micro-batch and the metadata of every value for one run.

        With ``keep``, what is sent is also kept in ``kept``, micro-batch by micro-batch.
        """
        self.kept = []
        self._keep = keep
        self._inputs = inputs
        self._metas = metas
        held = (*self.stage.parameters(), *self.stage.buffers())
        self._held = frozenset(id(tensor) for tensor in held)

    def forward(self, *received: Tensor, number: Tensor) -> tuple[Tensor, ...]:
        """Run one micro-batch."""
        values = dict(self._inputs[int(number)])
        values.update(zip(self.received, received, strict=True))
        foreign = self._held.union(id(value) for value in values.values())
        with self._autocast():
            again = self._recompute and torch.is_grad_enabled()
            inside = self.later or nullcontext()
            with inside:
                values.update(
                    call_again(self.stage, self.route, values, inside)
                    if again
                    else self.route.call(self.stage, values)
                )
        sent = tuple(self._outgoing(name, values[name], foreign) for name in self.sent)
        if self._keep:
            self.kept.append(sent)
        return sent

    def _outgoing(self, name: str, value: Tensor, foreign: frozenset[int]) -> Tensor:
        """Return a tensor that may be sent while the stage goes on.

        Where no gradient comes back the graph ends here: torch would send zeros back, and a
        parameter without a gradient would get one. Backends send dense memory, and torch
        detaches in place what it has sent, so that views, received tensors, inputs and state
        are copied.
        """
        if value.requires_grad and not self._metas[name].grad:
            value = value.detach()
        if value._is_view() or not value.is_contiguous() or id(value) in foreign:
            return value.clone(memory_format=torch.contiguous_format)
        return value
