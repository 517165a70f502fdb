"""Parameters that several stages hold: one gradient, summed over all copies."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .replicas import Replicas
from .routing import Routing
from .sharding import local


class SharedGradients:
    """Sums the gradients of tied and multi-use parameters after a step.

    Every process constructs it at the same time, because it makes process groups.

    Parameters
    ----------
    routing
        The routing table.
    stages
        Stages of this rank by number.
    """

    def __init__(
        self,
        routing: Routing,
        stages: Mapping[int, nn.Module],
        device: torch.device,
        replicas: Replicas,
    ) -> None:
        self.copies: list[list[nn.Parameter]] = []
        self.groups: list[dist.ProcessGroup | None] = []
        self.device = device
        self.pipeline = replicas.pipeline
        made: dict[tuple[int, ...], dist.ProcessGroup] = {}
        for shared in routing.shared:
            ranks = tuple(sorted({routing.run.ranks[stage] for stage, _ in shared.holders}))
            if len(ranks) > 1 and ranks not in made:
                made[ranks] = replicas.new_group(ranks)
            self.groups.append(made.get(ranks))
            held = (
                stages[stage].get_parameter(name)
                for stage, name in shared.holders
                if stage in stages
            )
            self.copies.append(list(dict.fromkeys(held)))
        self._earlier: list[Tensor | None] = []

    def set_aside(self) -> None:
        """Keep what earlier steps accumulated out of the next sum: it has been summed."""
        self._earlier = [copies[0].grad if copies else None for copies in self.copies]
        for copies in self.copies:
            for copy in copies:
                copy.grad = None

    def reduce(self) -> None:
        """Give every copy the sum over all copies; None stays None where no copy has one."""
        if not self.copies:
            return
        counts = torch.tensor(
            [sum(copy.grad is not None for copy in copies) for copies in self.copies],
            device=self.device,
        )
        dist.all_reduce(counts, group=self.pipeline)
        for copies, group, earlier, count in zip(
            self.copies, self.groups, self._earlier, counts.tolist(), strict=True
        ):
            if copies:
                total = self._sum(copies, group) if count else None
                if total is not None and earlier is not None:
                    total += earlier
                for copy in copies:
                    grad = total if total is not None else earlier
                    copy.grad = grad if grad is None or len(copies) == 1 else grad.clone()

    @staticmethod
    def _sum(copies: list[nn.Parameter], group: dist.ProcessGroup | None) -> Tensor:
        total = torch.zeros_like(copies[0])
        for copy in copies:
            if copy.grad is not None:
                total += copy.grad
        if group is not None:
            # Copies are of one shape, so that where replicas divide them the same parts meet.
            dist.all_reduce(local(total), group=group)
        return total
