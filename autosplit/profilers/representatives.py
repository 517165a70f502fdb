"""Measure a model that is larger than the device: one layer of each structure.

The model stays on meta. Of layers that are alike the middle one is given real tensors, measured
and freed. Representatives that lie side by side are measured together, in running order, as many
as a budget of memory allows, so that each finds the caches as it would in a step.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Collection, Hashable, Iterator, Sequence

import torch
from torch import Tensor

from autosplit.errors import UsageError
from autosplit.journal import Journal
from autosplit.layers import Grouping, Layer, Work
from autosplit.profilers.allocator import keep_freed_memory
from autosplit.profilers.alone import LayerFindings, at_more_rows, from_work
from autosplit.profilers.analytic import LayerModel, roofline_of
from autosplit.profilers.base import PROFILERS, ProfileOptions, Progress
from autosplit.profilers.compiling import compiler
from autosplit.profilers.environment import (
    OutOfMemoryError,
    autocast_region,
    choose_device,
    describe,
    input_tensors,
    out_of_memory_explained,
    prepared,
)
from autosplit.profilers.flow import returned_values
from autosplit.profilers.passes import Piece, Step
from autosplit.profilers.quality import remarks
from autosplit.profilers.resizing import resized
from autosplit.profilers.session import Session, choose_clock, trained
from autosplit.profilers.stand_ins import Scratch, StandIns
from autosplit.profilers.statistics import timings
from autosplit.profilers.summary import Findings
from autosplit.tracers.base import Trace
from autosplit.tracers.replay import compile_nodes
from autosplit.types import Source

_NAMED = 3
"""Layers that a remark names."""


@PROFILERS.register("representatives")
class RepresentativeProfiler:
    """Measures one layer of each structure of a model on meta."""

    def findings(
        self,
        trace: Trace,
        grouping: Grouping,
        options: ProfileOptions,
        progress: Progress,
        journal: Journal,
    ) -> Findings:
        """Return time and memory of every layer of ``grouping``, measured on its representative.

        Raises
        ------
        OutOfMemoryError
            If the device holds no micro-batch of a layer, and the table does not know the device.
        """
        device = choose_device(options.device)
        measurement = _Measurement(trace, grouping, device, options)
        with prepared(trace, device, threads=options.threads, inference=options.inference):
            return measurement.run(progress, journal)


class _Measurement:
    def __init__(
        self,
        trace: Trace,
        grouping: Grouping,
        device: torch.device,
        options: ProfileOptions,
    ) -> None:
        self._trace = trace
        self._program = trace.program
        self._grouping = grouping
        self._device = device
        self._options = options
        self._stand_ins = StandIns(trace, device)
        self._scratch = Scratch(device)
        self._inputs = {
            name: tensor for name, tensor in input_tensors(trace).items() if not tensor.is_meta
        }
        self._returned = returned_values(trace.program) if not options.inference else frozenset()
        self._clock = choose_clock(device, options.threads)
        self._finish = compiler(options, device)

    def run(self, progress: Progress, journal: Journal) -> Findings:
        """Measure the representatives and let every layer have what its own learnt."""
        members: dict[Hashable, list[int]] = {}
        for index, layer in enumerate(self._grouping.layers):
            members.setdefault(self._key(layer), []).append(index)
        middle = {places[len(places) // 2]: key for key, places in members.items()}
        names = {self._grouping.layers[place].name: key for place, key in middle.items()}
        measured = {names[found.layer]: found for found in journal.records(LayerFindings)}
        missing = [place for place in sorted(middle) if middle[place] not in measured]
        for chunk in self._chunks(missing):
            layers = [self._grouping.layers[place] for place in chunk]
            progress(len(measured), len(middle), layers[0].name)
            for found in self._measure_or_part(layers):
                measured[names[found.layer]] = found
                journal.append(found)
        progress(len(measured), len(middle), "")
        return self._findings([measured[self._key(layer)] for layer in self._grouping.layers])

    def _measure_or_part(self, layers: Sequence[Layer]) -> list[LayerFindings]:
        """Measure layers together or, if memory does not hold them, each alone."""
        try:
            return self._measure_and_free(layers)
        except OutOfMemoryError as error:
            if len(layers) == 1:
                return [self._with_fewer_rows(layers[0]) or self._from_work(layers[0], error)]
        return [found for layer in layers for found in self._measure_or_part([layer])]

    def _measure_and_free(self, layers: Sequence[Layer]) -> list[LayerFindings]:
        with (
            out_of_memory_explained(self._device, lambda: f"layer {layers[0].name}"),
            keep_freed_memory(all_sizes=not self._has_giant(layers)),
        ):
            try:
                return self._measure(layers)
            finally:
                gc.collect()  # compiled functions hold themselves, and so the stand-ins

    def _with_fewer_rows(self, layer: Layer) -> LayerFindings | None:
        """Halve the micro-batch until memory holds it, and once more for the slope."""
        rows = {symbol.name: symbol.example for symbol in self._program.symbols}.get("batch", 1)
        found: list[tuple[int, LayerFindings]] = []
        fewer = rows // 2
        while fewer and len(found) < 2:
            smaller = _Measurement(
                resized(self._trace, {"batch": fewer}), self._grouping, self._device, self._options
            )
            with contextlib.suppress(OutOfMemoryError):
                found += [(fewer, each) for each in smaller._measure_and_free([layer])]
            fewer //= 2
        return at_more_rows(found, rows) if found else None

    def _from_work(self, layer: Layer, error: OutOfMemoryError) -> LayerFindings:
        """Model a layer of which memory holds not even one row."""
        name = "cpu" if self._device.type == "cpu" else torch.cuda.get_device_name(self._device)
        try:
            roofline = roofline_of(name, self._options)
        except UsageError:
            raise error from None
        model = LayerModel(self._program, roofline, training=not self._options.inference)
        return from_work(
            layer.name,
            model.layer(layer.nodes),
            self._values(layer),
            self._program,
            lambda value: sum(map(self._program.nbytes, self._program.node[value].tensors)),
        )

    def _values(self, layer: Layer) -> list[str]:
        """Return the values that a layer takes and gives, in an order alike layers share."""
        return [name for part in self._compile_interface(layer) for name in part]

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

    def _measure(self, layers: Sequence[Layer]) -> list[LayerFindings]:
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
                self._finish(
                    compile_nodes(
                        self._trace,
                        layer.nodes,
                        state=state,
                        modules=modules,
                        device=self._device,
                        training=None if training else False,
                        readers=self._grouping.layer_of,
                    )
                ),
                trained(self._program.states_in(layer.nodes), state),
            )
            for layer in layers
        ]
        made = {name for piece in pieces for name in piece.compute.outputs}
        taken = dict.fromkeys(name for piece in pieces for name in piece.compute.inputs)
        inputs = {name: self._input(name) for name in taken if name not in made}
        region = autocast_region(self._program, self._device)
        leaving = self._leaving(pieces, made)
        step = Step(pieces, inputs, leaving, training, self._scratch, region)
        there = [*state.values(), self._scratch.buffer]
        session = Session(step, there, None, self._device, self._clock, self._options)
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

    def _learn(self, session: Session) -> list[LayerFindings]:
        pieces = session.step.pieces
        saved = session.saved()
        workspace = session.workspace_bytes()
        samples = session.times(lambda done, what: None, Journal())
        own = [[place] for place in range(len(pieces))]
        quality = samples.quality(own)
        forward, backward = timings(samples.forward, own), timings(samples.backward, own)
        trains = [bool(piece.parameters) for piece in pieces]
        weights = samples.weight_gradient_s(backward, own, trains)
        found: list[LayerFindings] = []
        for index, piece in enumerate(pieces):
            keys = [saved.value_storage[name] for name in self._values(piece.layer)]
            found.append(
                LayerFindings(
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
                    quality,
                    weights[index],
                )
            )
        return found

    def _findings(self, measured: Sequence[LayerFindings]) -> Findings:
        """Give every layer what its representative learnt, storages under its own names."""
        saved: list[tuple[Hashable, ...]] = []
        storage_bytes: dict[Hashable, int] = {}
        value_storage: dict[str, Hashable] = {
            node.name: self._storage(node.name) for node in self._program.nodes if node.tensors
        }
        for layer, found in zip(self._grouping.layers, measured, strict=True):
            names = self._values(layer)
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
        return Findings(
            device=describe(self._device, self._options, self._clock),
            forward=[found.forward for found in measured],
            backward=[found.backward for found in measured],
            weight_gradient_s=[found.weight_gradient_s for found in measured],
            saved=saved,
            value_storage=value_storage,
            storage_bytes=storage_bytes,
            workspace_bytes=[found.workspace_bytes for found in measured],
            flops=[work.layer_flops(layer.nodes) for layer in self._grouping.layers],
            returned=self._returned,
            whole=None,
            notes=self._notes(measured),
            sources=[found.source for found in measured],
        )

    def _notes(self, measured: Sequence[LayerFindings]) -> tuple[str, ...]:
        qualities = [found.quality for found in measured if found.quality is not None]
        sources = {found.layer: found.source for found in measured}
        return (
            *remarks(list(dict.fromkeys(qualities)), self._options.precision),
            *_too_large(sources, "scaled", "their costs are scaled from smaller micro-batches"),
            *_too_large(sources, "modelled", "their costs are modelled from their work"),
            f"measured on {len(sources)} layers, one of each structure, with made-up values: "
            f"{len(measured)} layers in all",
        )

    def _storage(self, name: str) -> Hashable:
        storage = self._program.node[name].tensors[0].storage
        return storage if storage >= 0 else name


def _too_large(sources: dict[str, Source], source: Source, so: str) -> list[str]:
    """Return a remark on the layers that memory does not hold as they are."""
    names = [name for name, known in sources.items() if known == source]
    shown = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    return [f"memory does not hold a micro-batch of {shown}: {so}"] if names else []
