"""Measure a model that is larger than the device: one layer of each structure.

The model stays on meta. Of layers that are alike the middle one is given real tensors, measured
and freed. Representatives that lie side by side are measured together, in running order, as many
as a budget of memory allows, so that each finds the caches as it would in a step.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from autosplit.errors import DataError
from autosplit.journal import Journal
from autosplit.layers import Grouping, Layer, Work, group
from autosplit.profilers.allocator import keep_freed_memory
from autosplit.profilers.base import PROFILERS, ProfileOptions, Progress
from autosplit.profilers.environment import (
    OutOfMemoryError,
    choose_device,
    describe,
    input_tensors,
    out_of_memory_explained,
    prepared,
)
from autosplit.profilers.flow import returned_values
from autosplit.profilers.passes import Piece, Step
from autosplit.profilers.session import Session, choose_clock, trained
from autosplit.profilers.stand_ins import Scratch, StandIns
from autosplit.profilers.statistics import timings
from autosplit.profilers.summary import Findings, summarise
from autosplit.serialize import digest
from autosplit.tracers.base import Trace
from autosplit.tracers.replay import compile_nodes
from autosplit.types import ModelRef, Profile, Timing


@PROFILERS.register("representatives")
class RepresentativeProfiler:
    """Measures one layer of each structure of a model on meta."""

    def profile(
        self,
        trace: Trace,
        options: ProfileOptions,
        model: ModelRef,
        progress: Progress,
        journal: Journal,
    ) -> Profile:
        """Return time and memory of every layer of ``trace``, measured on its representative.

        Raises
        ------
        DataError
            If the model computes nothing.
        """
        grouping = group(trace.program, granularity=options.granularity)
        if not grouping.layers:
            raise DataError("the model computes nothing that could be planned")
        device = choose_device(options.device)
        measurement = _Measurement(trace, grouping, device, options, progress, journal)
        with prepared(trace, device, threads=options.threads, inference=options.inference):
            findings = measurement.run()
        return summarise(
            trace.program,
            grouping,
            findings,
            model=model,
            fingerprint=digest(trace.program),
            device=describe(device, options.threads, measurement.clock),
            training=not options.inference,
        )


@dataclass(frozen=True)
class _Measured:
    """What was learnt of one representative.

    ``saved`` holds places among the values it takes and gives, or the bytes of a storage that
    lives inside of it; ``value_bytes`` are the bytes of the storage of each such place.
    """

    layer: str
    forward: Timing
    backward: Timing
    workspace_bytes: int
    saved: tuple[tuple[str, int], ...]
    value_bytes: tuple[int, ...]
    notes: tuple[str, ...]


class _Measurement:
    def __init__(
        self,
        trace: Trace,
        grouping: Grouping,
        device: torch.device,
        options: ProfileOptions,
        progress: Progress,
        journal: Journal,
    ) -> None:
        self._trace = trace
        self._program = trace.program
        self._grouping = grouping
        self._device = device
        self._options = options
        self._progress = progress
        self._journal = journal
        self._stand_ins = StandIns(trace, device)
        self._scratch = Scratch(device)
        self._inputs = {
            name: tensor for name, tensor in input_tensors(trace).items() if not tensor.is_meta
        }
        self._returned = returned_values(trace.program) if not options.inference else frozenset()
        self.clock = choose_clock(device, options.threads)

    def run(self) -> Findings:
        """Measure the representatives and let every layer have what its own learnt."""
        members: dict[Hashable, list[int]] = {}
        for index, layer in enumerate(self._grouping.layers):
            members.setdefault(self._key(layer), []).append(index)
        middle = {places[len(places) // 2]: key for key, places in members.items()}
        names = {self._grouping.layers[place].name: key for place, key in middle.items()}
        measured = {names[found.layer]: found for found in self._journal.records(_Measured)}
        missing = [place for place in sorted(middle) if middle[place] not in measured]
        for chunk in self._chunks(missing):
            layers = [self._grouping.layers[place] for place in chunk]
            self._progress(len(measured), len(middle), layers[0].name)
            for found in self._measure_or_part(layers):
                measured[names[found.layer]] = found
                self._journal.append(found)
        self._progress(len(measured), len(middle), "")
        return self._findings([measured[self._key(layer)] for layer in self._grouping.layers])

    def _measure_or_part(self, layers: Sequence[Layer]) -> list[_Measured]:
        """Measure layers together or, if memory does not hold them, each alone."""
        try:
            with (
                out_of_memory_explained(self._device, lambda: f"layer {layers[0].name}"),
                keep_freed_memory(all_sizes=not self._has_giant(layers)),
            ):
                try:
                    return self._measure(layers)
                finally:
                    gc.collect()  # compiled functions hold themselves, and so the stand-ins
        except OutOfMemoryError:
            if len(layers) == 1:
                raise
        return [found for layer in layers for found in self._measure_or_part([layer])]

    def _key(self, layer: Layer) -> Hashable:
        given = self._compile_interface(layer)[1]
        return layer.structure, tuple(name in self._returned for name in given)

    def _compile_interface(self, layer: Layer) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the values that a layer takes and gives, in an order alike layers share."""
        inside = set(layer.nodes)
        taken = {
            name: None
            for node in layer.nodes
            for name in self._program.node[node].inputs()
            if name not in inside and self._program.node[name].op != "state"
        }
        returned = set(self._program.outputs)
        given = tuple(
            name for name in layer.nodes if name in returned or self._readers_outside(name, inside)
        )
        return tuple(taken), given

    def _readers_outside(self, name: str, inside: Collection[str]) -> bool:
        users = self._program.users[name]
        return any(user not in inside and user in self._grouping.layer_of for user in users)

    def _chunks(self, places: Sequence[int]) -> Iterator[list[int]]:
        """Cut the representatives into runs of neighbours whose state fits the budget."""
        chunk: list[int] = []
        held = 0
        for place in places:
            nbytes = self._state_bytes(self._grouping.layers[place])
            if chunk and (held + nbytes > self._options.resident_bytes):
                yield chunk
                chunk, held = [], 0
            chunk.append(place)
            held += nbytes
        if chunk:
            yield chunk

    def _state_bytes(self, layer: Layer) -> int:
        names = self._program.states_in(layer.nodes)
        return sum(self._program.state[name].nbytes for name in names)

    def _has_giant(self, layers: Sequence[Layer]) -> bool:
        """Tell whether a gradient is too large for the process to hold its memory twice."""
        nodes = (name for layer in layers for name in layer.nodes)
        sizes = (self._program.state[name].nbytes for name in self._program.states_in(nodes))
        return 2 * max(sizes, default=0) > self._options.resident_bytes

    def _measure(self, layers: Sequence[Layer]) -> list[_Measured]:
        """Measure some layers with stand-ins for all they use, which are freed afterwards."""
        nodes = [name for layer in layers for name in layer.nodes]
        modules = self._stand_ins.modules(nodes)
        if self._options.inference:
            for module in modules.values():
                module.eval()
        state = self._stand_ins.state(nodes, modules)
        training = not self._options.inference
        pieces = [
            Piece(
                layer,
                compile_nodes(
                    self._trace,
                    layer.nodes,
                    state=state,
                    modules=modules,
                    device=self._device,
                    training=None if training else False,
                    readers=self._grouping.layer_of,
                ),
                trained(self._program.states_in(layer.nodes), state),
            )
            for layer in layers
        ]
        made = {name for piece in pieces for name in piece.compute.outputs}
        taken = dict.fromkeys(name for piece in pieces for name in piece.compute.inputs)
        inputs = {name: self._input(name) for name in taken if name not in made}
        step = Step(pieces, inputs, self._leaving(pieces, made), training, self._scratch)
        there = [*state.values(), self._scratch.buffer]
        session = Session(step, there, None, self._device, self.clock, self._options)
        return self._learn(session)

    def _input(self, name: str) -> Tensor:
        if name in self._inputs:
            return self._inputs[name].to(self._device)
        spec = self._program.node[name].tensors[0]
        return self._stand_ins.tensor(spec).requires_grad_(
            spec.requires_grad and not self._options.inference
        )

    def _leaving(self, pieces: Sequence[Piece], made: set[str]) -> frozenset[str]:
        """Return values whose gradient comes from outside of the chunk."""
        inside = {name for piece in pieces for name in piece.layer.nodes}
        outputs = set(self._program.outputs)
        return frozenset(
            name
            for name in made & self._returned
            if name in outputs or self._readers_outside(name, inside)
        )

    def _learn(self, session: Session) -> list[_Measured]:
        pieces = session.step.pieces
        saved = session.saved()
        workspace = session.workspace_bytes()
        samples = session.times(lambda done, what: None, Journal())
        own = [[place] for place in range(len(pieces))]
        notes = samples.notes(own, self._options)
        forward = timings(np.array(samples.forward), own)
        backward = timings(np.array(samples.backward), own)
        found: list[_Measured] = []
        for index, piece in enumerate(pieces):
            names = [name for part in self._compile_interface(piece.layer) for name in part]
            keys = [saved.value_storage[name] for name in names]
            found.append(
                _Measured(
                    piece.layer.name,
                    forward[index],
                    backward[index],
                    workspace[index],
                    tuple(
                        ("value", keys.index(key))
                        if key in keys
                        else ("inside", saved.storage_bytes(key))
                        for key in saved.saved[index]
                    ),
                    tuple(saved.storage_bytes(key) for key in keys),
                    notes,
                )
            )
        return found

    def _findings(self, measured: Sequence[_Measured]) -> Findings:
        """Give every layer what its representative learnt, storages under its own names."""
        saved: list[tuple[Hashable, ...]] = []
        storage_bytes: dict[Hashable, int] = {}
        value_storage: dict[str, Hashable] = {
            node.name: self._storage(node.name) for node in self._program.nodes if node.tensors
        }
        for layer, found in zip(self._grouping.layers, measured, strict=True):
            names = [name for part in self._compile_interface(layer) for name in part]
            keys: list[Hashable] = []
            for number, (kind, what) in enumerate(found.saved):
                if kind == "value":
                    key, nbytes = value_storage[names[what]], found.value_bytes[what]
                else:
                    key, nbytes = (layer.name, number), what
                keys.append(key)
                storage_bytes[key] = max(nbytes, storage_bytes.get(key, 0))
            saved.append(tuple(dict.fromkeys(keys)))
        work = Work(self._program)
        summary = (
            f"measured on {len({found.layer for found in measured})} layers, one of each "
            f"structure, with made-up values: {len(self._grouping.layers)} layers in all"
        )
        return Findings(
            forward=[found.forward for found in measured],
            backward=[found.backward for found in measured],
            saved=saved,
            value_storage=value_storage,
            storage_bytes=storage_bytes,
            workspace_bytes=[found.workspace_bytes for found in measured],
            flops=[work.layer_flops(layer.nodes) for layer in self._grouping.layers],
            returned=self._returned,
            whole=None,
            notes=(*dict.fromkeys(note for found in measured for note in found.notes), summary),
        )

    def _storage(self, name: str) -> Hashable:
        storage = self._program.node[name].tensors[0].storage
        return storage if storage >= 0 else name
