"""Micro-batches for training from what data.py yields; each replica takes its rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from .agreement import agree, check_alike
from .batches import Microbatch, Share, divide, whole_batch
from .errors import PipelineError
from .replicas import Replicas
from .routing import Routing


@dataclass(frozen=True)
class Feed:
    """Makes micro-batches of what data.py yields, the same on every rank of a pipeline.

    Parameters
    ----------
    make
        ``batches(batch_size)``, which yields the rows of all replicas; or one that takes
        ``replica`` and ``replicas`` too, and yields those of one.
    rows
        Rows of all replicas together.
    microbatches
        How many micro-batches each replica makes of its rows.
    """

    make: Callable[..., Iterable[Any]]
    rows: int
    microbatches: int
    routing: Routing
    replicas: Replicas
    device: torch.device

    @property
    def own(self) -> bool:
        """Whether the source yields the rows of one replica."""
        return takes_replica(self.make)

    def source(self) -> Iterable[Any]:
        """Return the batches of data.py from their beginning.

        Raises
        ------
        PipelineError
            If a source of one replica's rows is to yield none.
        """
        if not self.own:
            return self.make(self.rows)
        index, count = self.replicas.index, self.replicas.count
        if self.rows < count:
            raise PipelineError(f"{self.rows} rows are too few for {count} replicas")
        rows = Share(index, count).span(self.rows)[1]
        return self.make(rows, replica=index, replicas=count)

    def steps(
        self, batches: Iterator[tuple[Any, tuple[Any, ...]]], accumulate: int
    ) -> Iterator[list[tuple[Microbatch, ...]]]:
        """Yield the micro-batches of one step after another, checked to be alike."""
        while True:
            drawn = [
                whole_batch(self.routing, inputs, targets)
                for inputs, targets in islice(batches, accumulate)
            ]
            check_alike(drawn, self.device, self.replicas.pipeline if self.own else None)
            yield [self._divided(batch) for batch in drawn]

    def once(
        self, batches: Iterator[tuple[Any, tuple[Any, ...]]], most: int
    ) -> Iterator[tuple[Microbatch, ...]]:
        """Yield the micro-batches of one batch after another, until they end or are enough."""
        for _ in range(most):
            found = next(batches, None)
            if not agree(found is not None, self.device):
                return
            assert found is not None
            batch = whole_batch(self.routing, *found)
            check_alike([batch], self.device, self.replicas.pipeline if self.own else None)
            yield self._divided(batch)

    def _divided(self, batch: Microbatch) -> tuple[Microbatch, ...]:
        share = Share() if self.own else Share(self.replicas.index, self.replicas.count)
        return divide(self.routing, batch, self.microbatches, share=share)


def takes_replica(make: Callable[..., Iterable[Any]]) -> bool:
    """Return whether a source of batches yields the rows of one replica when it is told which."""
    return {"replica", "replicas"} <= set(inspect.signature(make).parameters)
