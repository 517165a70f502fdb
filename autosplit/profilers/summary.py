"""From findings to a profile: names for numbers, storages counted from zero."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from autosplit.layers import Grouping
from autosplit.layers.cache import cache_bytes
from autosplit.layers.estimate import Estimate
from autosplit.layers.late_weights import has_late_weights
from autosplit.program import Program, TensorSpec
from autosplit.serialize import digest
from autosplit.stages.rebuild import makers_of
from autosplit.types import (
    DeviceInfo,
    LayerProfile,
    ModelRef,
    Profile,
    Source,
    StateProfile,
    StorageProfile,
    Timing,
    ValueProfile,
    WholeModel,
)


@dataclass(frozen=True)
class Findings:
    """What was learnt of each layer, in the order of the grouping.

    Parameters
    ----------
    device
        Where that was learnt.
    forward, backward
        Times.
    weight_gradient_s
        Part of each backward that makes gradients of parameters.
    saved
        Keys of the storages kept for backward.
    value_storage
        Key of the storage each value lives in.
    storage_bytes
        Bytes of each kept storage, by key.
    workspace_bytes, flops
        As in ``LayerProfile``.
    returned
        Values to which a gradient comes back.
    whole
        The whole step, where it was run.
    notes
        Remarks on the measurement.
    sources
        As in ``LayerProfile``.
    """

    device: DeviceInfo
    forward: list[Timing]
    backward: list[Timing]
    weight_gradient_s: list[float]
    saved: list[tuple[Hashable, ...]]
    value_storage: dict[str, Hashable]
    storage_bytes: dict[Hashable, int]
    workspace_bytes: list[int]
    flops: list[int]
    returned: frozenset[str]
    whole: WholeModel | None
    notes: tuple[str, ...]
    sources: list[Source]


def summarise(
    program: Program,
    grouping: Grouping,
    findings: Findings,
    *,
    model: ModelRef,
    training: bool,
) -> Profile:
    """Return the profile of a program at its example sizes."""
    estimate = Estimate(program, training=training)
    number = {key: index for index, key in enumerate(findings.storage_bytes)}
    layers = tuple(
        LayerProfile(
            name=layer.name,
            module=layer.module,
            block=layer.block,
            structure=layer.structure,
            nodes=layer.nodes,
            layer=layer.layer,
            forward=findings.forward[index],
            backward=findings.backward[index],
            saved=tuple(number[key] for key in findings.saved[index]),
            workspace_bytes=findings.workspace_bytes[index],
            flops=findings.flops[index],
            work=estimate.layer(layer.nodes),
            cache_bytes=0 if training else cache_bytes(program, layer.nodes),
            weight_gradient_s=findings.weight_gradient_s[index]
            if has_late_weights(program, layer.nodes)
            else 0.0,
            source=findings.sources[index],
        )
        for index, layer in enumerate(grouping.layers)
    )
    storages = tuple(
        StorageProfile(number[key], nbytes) for key, nbytes in findings.storage_bytes.items()
    )
    return Profile(
        model=model,
        fingerprint=digest(program),
        device=findings.device,
        layers=layers,
        values=_values(program, grouping, findings, number),
        states=_states(program, grouping, training),
        storages=storages,
        order_edges=grouping.order,
        whole=findings.whole,
        training=training,
        notes=findings.notes,
        sizes=tuple((symbol.name, symbol.example) for symbol in program.symbols),
    )


def _values(
    program: Program, grouping: Grouping, findings: Findings, number: dict[Hashable, int]
) -> tuple[ValueProfile, ...]:
    """Return model inputs and everything that leaves the layer that made it."""
    outputs = set(program.outputs)
    place = {layer.name: index for index, layer in enumerate(grouping.layers)}
    again = makers_of(program)
    found: list[ValueProfile] = []
    for node in program.nodes:
        producer = grouping.layer_of.get(node.name)
        if not isinstance(node.value, TensorSpec) or (producer is None and node.op != "input"):
            continue
        readers = {
            grouping.layer_of[user]
            for user in program.users[node.name]
            if user in grouping.layer_of
        }
        consumers = tuple(sorted(readers - {producer}, key=place.__getitem__))
        if not consumers and node.name not in outputs and node.op != "input":
            continue
        storage = findings.value_storage.get(node.name)
        found.append(
            ValueProfile(
                name=node.name,
                producer=producer,
                consumers=consumers,
                nbytes=program.nbytes(node.value),
                shape=node.value.shape,
                dtype=node.value.dtype,
                needs_grad=node.name in findings.returned,
                output=node.name in outputs,
                storage=None if storage is None else number.get(storage),
                made_again=node.name in again,
            )
        )
    return tuple(found)


def _states(program: Program, grouping: Grouping, training: bool) -> tuple[StateProfile, ...]:
    users: dict[str, dict[str, None]] = {spec.fqn: {} for spec in program.states}
    for layer in grouping.layers:
        for state in program.states_in(layer.nodes):
            users[state][layer.name] = None
    return tuple(
        StateProfile(
            name=spec.fqn,
            kind=spec.kind,
            nbytes=spec.nbytes,
            trainable=spec.requires_grad and training,
            layers=tuple(users[spec.fqn]),
        )
        for spec in program.states
    )
