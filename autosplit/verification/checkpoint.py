"""The stages' weight files, merged, against the original model's ``state_dict``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from autosplit.stages.types import Routing
from autosplit.types import Comparison
from autosplit.verification.compare import compare
from autosplit.verification.folder import Export


def load_merged(export: Export, model: nn.Module) -> Comparison:
    """Load the merged checkpoint strictly into ``model`` and compare what it then holds.

    Every parameter and buffer must be held by one stage, or by exactly those that the routing
    table declares to share it; copies must be equal bit by bit.
    """
    faults = [*_undeclared(export.saved, export.routing), *_unequal(export.saved, export.routing)]
    if isinstance(export.merged, str):
        return Comparison("checkpoint", 0, 0.0, None, (*faults, export.merged))
    try:
        model.load_state_dict(export.merged, strict=True)
    except RuntimeError as error:
        faults.append(" ".join(str(error).split()))
    outcome = compare("checkpoint", model.state_dict(), export.merged)
    return replace(outcome, faults=(*faults, *outcome.faults))


def _undeclared(saved: Sequence[dict[str, Tensor]], routing: Routing) -> Iterator[str]:
    """Name state that several stages hold without the routing table saying so."""
    first = dict(routing.aliases)
    declared = {
        first.get(each.name, each.name): {stage for stage, _ in each.holders}
        for each in (*routing.shared, *routing.replicated)
    }
    holders: dict[str, set[int]] = {}
    for stage, tensors in enumerate(saved):
        for name in tensors:
            holders.setdefault(first.get(name, name), set()).add(stage)
    for name, stages in holders.items():
        if len(stages) > 1 and not stages <= declared.get(name, set()):
            listed = ", ".join(map(str, sorted(stages)))
            yield f"{name} is held by stages {listed}, which routing.json does not declare"


def _unequal(saved: Sequence[dict[str, Tensor]], routing: Routing) -> Iterator[str]:
    """Name declared copies that are missing or differ."""
    for each in (*routing.shared, *routing.replicated):
        copies = [saved[stage].get(name) for stage, name in each.holders]
        tensors = [copy for copy in copies if copy is not None]
        if len(tensors) not in (0, len(copies)):
            yield f"{each.name} is missing from a stage that should hold it"
        elif any(not torch.equal(tensors[0], other) for other in tensors[1:]):
            yield f"the copies of {each.name} differ"
