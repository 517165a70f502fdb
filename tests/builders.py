"""Profiles for tests, made from a few numbers instead of a model."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from autosplit.types import (
    DeviceInfo,
    LayerProfile,
    ModelRef,
    Profile,
    StateProfile,
    StorageProfile,
    Timing,
    ValueProfile,
    WholeModel,
)

DEVICE = DeviceInfo(kind="cpu", name="test", threads=1, torch_version="0", clock="thread")


def profile(
    forward_s: Sequence[float],
    edges: Mapping[tuple[int, ...], int] | None = None,
    *,
    backward_s: Sequence[float] | None = None,
    saved_bytes: Sequence[int] | None = None,
    param_bytes: Sequence[int] | None = None,
    workspace_bytes: Sequence[int] | None = None,
    shared: Sequence[tuple[int, Sequence[int]]] = (),
    outputs: Sequence[int] = (),
    saved_values: bool = False,
    offset_s: float = 0.0,
    training: bool = True,
) -> Profile:
    """Return a profile of layers ``l0``, ``l1``, ….

    Parameters
    ----------
    forward_s
        One entry per layer; backward takes twice as long unless ``backward_s`` says otherwise.
    edges
        ``(producer, consumer, ...) -> bytes``; a chain of values of one byte by default.
    saved_bytes
        Memory that each layer keeps for backward, seen by no other layer.
    param_bytes
        Bytes of a parameter of each layer.
    shared
        ``(bytes, layers)`` of parameters that several layers use.
    saved_values
        Whether the layers that read a value keep it for backward.
    outputs
        Layers whose value the model returns (default: the last); their bytes are those of
        their edge, or one.
    """
    count = len(forward_s)
    if edges is None:
        edges = {(index, index + 1): 1 for index in range(count - 1)}
    returned = set(outputs or (count - 1,))
    made = {pins[0] for pins in edges}
    values = dict(edges)
    values.update({(index,): 1 for index in sorted(returned - made)})
    names = [f"l{index}" for index in range(count)]
    back = [2 * t for t in forward_s] if backward_s is None else list(backward_s)
    saved = list(saved_bytes) if saved_bytes is not None else [0] * count
    params = list(param_bytes) if param_bytes is not None else [0] * count
    space = list(workspace_bytes) if workspace_bytes is not None else [0] * count
    states = [
        StateProfile(f"{names[index]}.weight", "parameter", nbytes, True, (names[index],))
        for index, nbytes in enumerate(params)
        if nbytes
    ]
    states += [
        StateProfile(f"shared{number}", "parameter", nbytes, True, tuple(names[i] for i in users))
        for number, (nbytes, users) in enumerate(shared)
    ]
    storages = [StorageProfile(index, nbytes) for index, nbytes in enumerate(saved)]
    storage_of: dict[tuple[int, ...], int] = {}
    if saved_values:
        for pins, nbytes in values.items():
            storage_of[pins] = len(storages)
            storages.append(StorageProfile(len(storages), nbytes))
    total = sum(forward_s) + sum(back)
    return Profile(
        model=ModelRef(spec="model.py:build"),
        fingerprint="0" * 16,
        device=DEVICE,
        layers=tuple(
            LayerProfile(
                name=name,
                module=name,
                block=None,
                structure=name,
                nodes=(f"{name}_op",),
                forward=Timing(forward_s[index]),
                backward=Timing(back[index]),
                saved=(
                    *([index] if saved[index] else []),
                    *(storage for pins, storage in storage_of.items() if index in pins[1:]),
                ),
                workspace_bytes=space[index],
                flops=None,
            )
            for index, name in enumerate(names)
        ),
        values=tuple(
            ValueProfile(
                name="_".join(["v", *map(str, pins)]),
                producer=names[pins[0]],
                consumers=tuple(names[pin] for pin in pins[1:]),
                nbytes=nbytes,
                shape=(nbytes,),
                dtype="uint8",
                needs_grad=training,
                output=pins[0] in returned,
                storage=storage_of.get(pins),
            )
            for pins, nbytes in values.items()
        ),
        states=tuple(states),
        storages=tuple(storages),
        whole=WholeModel(sum(forward_s), sum(back), 1.0 if total else 0.0, offset_s),
        training=training,
    )


def random_profile(seed: int, count: int, *, memory: bool = False) -> Profile:
    """Return a profile of a random directed acyclic graph, integer-valued seconds."""
    rng = random.Random(seed)
    edges: dict[tuple[int, ...], int] = {}
    for index in range(count - 1):
        later = range(index + 1, count)
        readers = sorted(rng.sample(later, rng.randint(0, min(3, len(later)))))
        if readers:
            edges[(index, *readers)] = rng.randint(1, 20)
    return profile(
        [float(rng.randint(1, 10)) for _ in range(count)],
        edges,
        saved_bytes=[rng.randint(0, 50) if memory else 0 for _ in range(count)],
        param_bytes=[rng.randint(0, 50) if memory else 0 for _ in range(count)],
        workspace_bytes=[rng.randint(0, 10) if memory else 0 for _ in range(count)],
        saved_values=memory,
    )
