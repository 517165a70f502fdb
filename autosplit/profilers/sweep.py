"""One profile of several input sizes: the same layers, measured or modelled at each of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from autosplit.errors import AutosplitError, UsageError
from autosplit.journal import Journal
from autosplit.layers import Grouping, Work, group
from autosplit.profilers import Progress, profile
from autosplit.profilers.base import ProfileOptions
from autosplit.profilers.resizing import resized
from autosplit.program import Program
from autosplit.tracers.base import Trace
from autosplit.types import LayerSample, ModelRef, Profile, SweepPoint

_OPTIONS = {"batch": "--batch-size", "seq": "--seq-len"}


def sweep(
    trace: Trace,
    sizes: Mapping[str, Sequence[int]],
    options: ProfileOptions,
    progress: Progress | None = None,
    *,
    model: ModelRef,
    journal: Journal | None = None,
) -> Profile:
    """Profile a model at all combinations of some sizes.

    Layers are formed once, at the largest sizes, so that every size has the same ones.

    Parameters
    ----------
    trace
        The model and what its forward does.
    sizes
        Values of symbols of the program: ``{"batch": (1, 2, 4), "seq": (128, 256)}``.
    options
        What is measured; its time limit is shared by all sizes.
    progress
        Called with steps done, steps in all and what is being done.
    model
        How to build the model again.
    journal
        Results of a run of the same kind that was cut short; those of this one are added.

    Returns
    -------
    Profile
        The profile at the largest sizes, with all of them in ``sweep``.

    Raises
    ------
    UsageError
        If the trace has fixed one of the sizes, or the model does not run at one of them.
    """
    _check(trace, sizes)
    points = list(_combinations(trace.program, sizes))
    share = dataclasses.replace(options, max_seconds=options.max_seconds / len(points))
    at_largest = resized(trace, points[-1])
    grouping = group(at_largest.program, granularity=options.granularity)
    kept = Journal() if journal is None else journal
    found: list[Profile] = []
    for place, point in enumerate(points):
        part = kept.part(_text(point))
        known = part.records(Profile)
        if not known:
            report = _part(progress, place, len(points), point)
            known = [_profile_at(trace, point, grouping, share, report, model, part)]
            part.append(known[0])
        found.append(known[0])
    largest = found[-1]
    samples = [
        _sample(at_largest.program, point, each, largest)
        for point, each in zip(points, found, strict=True)
    ]
    strange = [dict(point.sizes) for point, same in samples if not same]
    return dataclasses.replace(
        largest,
        model=dataclasses.replace(model, batch_size=points[-1].get("batch", model.batch_size)),
        sweep=tuple(point for point, _ in samples),
        notes=(*largest.notes, *map(_note, strange)),
    )


def _check(trace: Trace, sizes: Mapping[str, Sequence[int]]) -> None:
    known = trace.program.symbol
    for name in sizes:
        if name not in known:
            raise UsageError(
                f"{_OPTIONS.get(name, name)} cannot vary: the trace has fixed this size",
                cause="; ".join(trace.program.warnings) or None,
                hint=f"sizes that can: {', '.join(known) or 'none'}",
            )


def _combinations(program: Program, sizes: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """Yield the value of every symbol at each point, the largest last."""
    values = [sorted(set(sizes.get(symbol.name, (symbol.example,)))) for symbol in program.symbols]
    names = [symbol.name for symbol in program.symbols]
    for chosen in itertools.product(*values):
        yield dict(zip(names, chosen, strict=True))


def _profile_at(
    trace: Trace,
    sizes: Mapping[str, int],
    grouping: Grouping,
    options: ProfileOptions,
    progress: Progress,
    model: ModelRef,
    journal: Journal,
) -> Profile:
    """Profile at some sizes with the layers of the largest ones."""
    at = resized(trace, sizes)
    try:
        return profile(at, options, progress, model=model, journal=journal, grouping=grouping)
    except AutosplitError:
        raise
    except (RuntimeError, IndexError, ValueError) as error:
        raise UsageError(
            f"the model does not run at {_text(sizes)}",
            cause=str(error).strip().split("\n")[0],
        ) from error


def _sample(
    program: Program, sizes: Mapping[str, int], found: Profile, largest: Profile
) -> tuple[SweepPoint, bool]:
    """Return a point of the sweep, and whether backward keeps the same storages there."""
    symbols = tuple(
        dataclasses.replace(symbol, example=sizes[symbol.name]) for symbol in program.symbols
    )
    work = Work(dataclasses.replace(program, symbols=symbols))
    layers = tuple(
        LayerSample(
            layer.forward.median_s,
            layer.backward.median_s,
            layer.workspace_bytes,
            work.layer_flops(layer.nodes),
            layer.weight_gradient_s,
        )
        for layer in found.layers
    )
    same = [layer.saved for layer in found.layers] == [layer.saved for layer in largest.layers]
    storages = tuple(storage.nbytes for storage in found.storages)
    if not same:
        total = sum(storage.nbytes for storage in largest.storages)
        scale = sum(storages) / total if total else 0.0
        storages = tuple(round(scale * storage.nbytes) for storage in largest.storages)
    return SweepPoint(tuple(sizes.items()), layers, storages), same


def _part(progress: Progress | None, place: int, points: int, sizes: Mapping[str, int]) -> Progress:
    """Return a report on one of several measurements as a part of all."""

    def report(done: int, total: int, what: str) -> None:
        if progress is not None:
            whole = max(1, total)
            progress(place * whole + done, points * whole, f"{_text(sizes)} {what}".rstrip())

    return report


def _note(sizes: Mapping[str, int]) -> str:
    return (
        f"at {_text(sizes)} backward keeps other storages than at the largest sizes: their bytes "
        "are scaled to the same sum"
    )


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sizes.items())
