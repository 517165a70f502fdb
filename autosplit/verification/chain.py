"""Run the stages of an export one after another in one process, following the routing table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from autosplit.errors import DataError, VerificationError
from autosplit.modelspec.structure import Path, dotted, map_tensors, walk, walk_inputs
from autosplit.program import Tree
from autosplit.stages.types import Routing
from autosplit.verification.reference import MicroBatch, first_names, parameters


def run_chain(stages: list[nn.Module], routing: Routing, batch: MicroBatch) -> dict[Path, Tensor]:
    """Return the model's output tensors by their place in the output.

    Raises
    ------
    VerificationError
        If a stage fails, or gives another number of values than the routing table says.
    DataError
        If the inputs are not those that the model was traced with.
    """
    values = read_inputs(routing, batch)
    for index, (stage, route) in enumerate(zip(stages, routing.stages, strict=True)):
        taken = [
            values[name].clone() if name in route.clone else values[name] for name in route.take
        ]
        given = _call(stage, taken, index)
        if len(given) != len(route.give):
            raise VerificationError(
                f"stage {index} gives {len(given)} values, routing.json says {len(route.give)}"
            )
        values.update(zip(route.give, given, strict=True))
    return {path: values[name] for path, name in output_places(routing)}


def read_inputs(routing: Routing, batch: MicroBatch) -> dict[str, Tensor]:
    """Return the tensors of the inputs by their names in the routing table."""
    args, kwargs = batch.copy()
    found = dict(walk_inputs(args, kwargs))
    traced = {spec.path: spec.name for spec in routing.inputs}
    if set(found) != set(traced):
        odd = sorted(dotted(path) for path in set(found) ^ set(traced))
        raise DataError(
            f"the inputs are not those that the model was traced with: {', '.join(odd)}",
            hint="let batches() and example_inputs() give inputs of one structure",
        )
    return {traced[path]: tensor for path, tensor in found.items()}


def output_places(routing: Routing) -> Iterator[tuple[Path, str]]:
    """Yield the place of each tensor in the model's output, and its name."""
    yield from _leaves(routing.output_tree)


def like(original: Any, outputs: dict[Path, Tensor]) -> Any:
    """Return ``original``, an output of the model, with the tensors of ``outputs`` in it.

    Raises
    ------
    VerificationError
        If the two do not have the same places.
    """
    expected = {path for path, _ in walk(original)}
    if expected != set(outputs):
        odd = sorted(dotted(path) for path in expected ^ set(outputs))
        raise VerificationError(f"only one of export and original model returns {', '.join(odd)}")
    return map_tensors(original, lambda path, _: outputs[path])


def gradients(stages: list[nn.Module], model: nn.Module) -> dict[str, Tensor | None]:
    """Return the gradient of each parameter of the model, summed over the stages that hold it."""
    first = first_names(parameters(model))
    total: dict[str, Tensor | None] = {}
    for stage in stages:
        for name, parameter in stage.named_parameters():
            name = first.get(name, name)
            seen, added = total.get(name), parameter.grad
            total[name] = added if seen is None else seen if added is None else seen + added
    return total


def _call(stage: nn.Module, taken: list[Tensor], index: int) -> tuple[Tensor, ...]:
    try:
        result = stage(*taken)
    except Exception as error:
        raise VerificationError(
            f"stage {index} of the export fails where the original model runs",
            cause=f"{type(error).__name__}: {' '.join(str(error).split())}",
        ) from error
    return (result,) if isinstance(result, Tensor) else tuple(result)


def _leaves(tree: Tree, path: Path = ()) -> Iterator[tuple[Path, str]]:
    if tree.kind == "value":
        yield path, str(tree.value)
    keys = tree.keys or tuple(range(len(tree.items)))
    for key, item in zip(keys, tree.items, strict=True):
        yield from _leaves(item, (*path, key))
