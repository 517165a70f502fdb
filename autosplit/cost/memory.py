"""Peak memory of stages.

A stage holds its state, gradients and optimizer state, the activations of the micro-batches in
flight, the buffers in which the runtime receives every micro-batch of a step, and the largest
workspace of a layer. When activations are gone the optimizer takes its step, and what that needs
for a moment can be more than they were.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from autosplit.graph import Graph, State, Value

OPTIMIZER_COPIES: dict[str, int] = {
    "sgd": 0,
    "momentum": 1,
    "adagrad": 1,
    "rmsprop": 1,
    "adam": 2,
    "adamw": 2,
}
"""Tensors of the size of each trained parameter that an optimizer keeps."""

_UPDATE_COPIES: dict[str, tuple[int, int]] = {
    "sgd": (0, 0),
    "momentum": (0, 0),
    "adagrad": (1, 2),
    "rmsprop": (1, 1),
    "adam": (2, 1),
    "adamw": (2, 1),
}
"""Tensors that a step of torch's optimizers makes for a moment: of the size of the parameter at
hand where they update one after another (CPU), of all of them where all at once (``foreach``)."""


@dataclass(frozen=True)
class MemoryModel:
    """What layers and stages hold.

    Parameters
    ----------
    graph
        The layers.
    optimizer
        Name in ``OPTIMIZER_COPIES``.
    shards
        Replicas over which parameters and optimizer state are divided (FSDP). During a step
        each of them holds its stages' parameters and gradients whole all the same: they are
        gathered for the first micro-batch and reduced after the last.
    """

    graph: Graph
    optimizer: str
    shards: int = 1

    # ------------------------------------------------------------ state

    def state_bytes(self, states: Collection[State]) -> tuple[int, int, int]:
        """Return the bytes of states, of their gradients, and of their optimizer state."""
        trained = sum(state.nbytes for state in states if state.trainable)
        # Divided parameter by parameter, so that stages add up.
        part = sum(-(-state.nbytes // self.shards) for state in states if state.trainable)
        held = sum(state.nbytes for state in states) + (part if self.shards > 1 else 0)
        return held, trained, OPTIMIZER_COPIES[self.optimizer] * part

    def states_by_stage(self, stage_of: Sequence[int], count: int) -> list[list[State]]:
        """Return the states each stage holds; what no layer uses is carried by stage 0."""
        held: list[list[State]] = [[] for _ in range(count)]
        for state in self.graph.states:
            for stage in sorted({stage_of[layer] for layer in state.layers} or {0}):
                held[stage].append(state)
        return held

    @cached_property
    def _states_by_layer(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for number, state in enumerate(self.graph.states):
            for layer in state.layers:
                found.setdefault(layer, []).append(number)
        return found

    def states_of(self, layers: Iterable[int]) -> list[State]:
        """Return the states that some layers use, each once."""
        used = {number for layer in layers for number in self._states_by_layer.get(layer, ())}
        return [self.graph.states[number] for number in sorted(used)]

    @property
    def updates_together(self) -> bool:
        """Whether the optimizer updates all parameters at once, as torch does on a GPU."""
        return self.graph.device != "cpu"

    def update_bytes(self, states: Collection[State]) -> int:
        """Return what the optimizer needs for a moment to update some states."""
        trained = [state.nbytes for state in states if state.trainable]
        each, together = _UPDATE_COPIES[self.optimizer]
        if self.updates_together:
            return together * -(-sum(trained) // self.shards)
        return each * -(-max(trained, default=0) // self.shards)

    # ------------------------------------------------------------ activations

    @cached_property
    def owner(self) -> dict[int, int]:
        """Layer that is charged for each saved storage; storages of model inputs have none.

        It is the layer that makes the memory: a stage that reads it from elsewhere holds its
        own copy in a receive buffer. What stages make again is held where it is saved alone.
        """
        makers: dict[int, int] = {}
        inputs: set[int] = set()
        for value in self.graph.values:
            if value.storage is None:
                continue
            if value.producer is None:
                inputs.add(value.storage)
            elif not value.made_again:
                first = makers.get(value.storage, value.producer)
                makers[value.storage] = min(first, value.producer)
        owner: dict[int, int] = {}
        for index, layer in enumerate(self.graph.layers):
            for storage in layer.saved:
                if storage not in inputs:
                    owner.setdefault(storage, makers.get(storage, index))
        return owner

    @cached_property
    def saved_bytes(self) -> tuple[int, ...]:
        """Bytes that backward keeps of what each layer makes, per micro-batch."""
        charged = [0] * len(self.graph)
        if self.graph.training:
            for storage, owner in self.owner.items():
                charged[owner] += self.graph.storage_bytes[storage]
        return tuple(charged)

    def activation_bytes(
        self,
        layers: Collection[int],
        recompute: Collection[int],
        received: Sequence[Value],
        sent: Sequence[Value],
    ) -> int:
        """Return the bytes that a stage keeps for each micro-batch in flight.

        That is the union of the storages its layers save, what goes into recomputed layers,
        what it has sent (torch keeps it until backward), and a copy of what it only hands on.
        What it has received lies in receive buffers and is counted there.
        """
        if not self.graph.training:
            return 0
        members = set(layers)
        elsewhere = {value.storage for value in received}
        kept = {
            storage
            for layer in members.difference(recompute)
            for storage in self.graph.layers[layer].saved
            if storage in self.owner and storage not in elsewhere
        }
        again = members.intersection(recompute)
        loose: dict[str, int] = {}
        made_and_read = [value for value in self._read_by(again) if value.producer in members]
        for value in (*made_and_read, *sent):
            if value.producer in members and value.storage in self.owner:
                kept.add(value.storage)
            else:
                loose[value.name] = value.nbytes
        return sum(loose.values()) + sum(self.graph.storage_bytes[storage] for storage in kept)

    @cached_property
    def _reads(self) -> dict[int, list[int]]:
        """Numbers of the values that each layer reads."""
        found: dict[int, list[int]] = {}
        for number, value in enumerate(self.graph.values):
            for layer in value.consumers:
                found.setdefault(layer, []).append(number)
        return found

    def _read_by(self, layers: Iterable[int]) -> list[Value]:
        read = {number for layer in layers for number in self._reads.get(layer, ())}
        return [self.graph.values[number] for number in sorted(read)]

    def input_bytes(self, layers: Collection[int]) -> int:
        """Return the bytes of the model inputs that layers read, per micro-batch."""
        return sum(value.nbytes for value in self._read_by(layers) if value.producer is None)

    def workspace_bytes(self, layers: Collection[int], recompute: Collection[int]) -> int:
        """Return the largest transient memory; a recomputed layer needs its activations too."""
        return max(
            (
                self.graph.layers[layer].workspace_bytes
                + (self.saved_bytes[layer] if layer in recompute else 0)
                for layer in layers
            ),
            default=0,
        )

    def transient_bytes(
        self,
        layers: Collection[int],
        recompute: Collection[int],
        states: Collection[State],
        activations: int,
    ) -> int:
        """Return what a stage needs for a moment beyond its activations.

        It is the largest workspace, or what the optimizer needs beyond the memory that
        activations have left.
        """
        workspace = self.workspace_bytes(layers, recompute)
        return max(workspace, self.update_bytes(states) - activations)

    def least_bytes(self, layer: int, in_flight: int) -> int:
        """Return what a stage of this layer alone needs, transfers and inputs left out."""
        states = self.states_of([layer])
        activations = in_flight * self.saved_bytes[layer]
        transient = self.transient_bytes([layer], (), states, activations)
        return sum(self.state_bytes(states)) + activations + transient
