"""A profile that was cut short goes on where it was, however it ended."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from autosplit import workflow
from autosplit.errors import AutosplitError, DataError, UsageError
from autosplit.journal import Journal
from autosplit.layers import Layer
from autosplit.profilers import ProfileOptions
from autosplit.profilers.representatives import _Measurement
from autosplit.profilers.session import Repetition, Session
from autosplit.serialize import load
from autosplit.types import Profile
from tests.functional import walk
from tests.functional.killing import begun, finished, journal_of, killed, lines_of

pytestmark = pytest.mark.timeout(300)


def exactly(repetitions: int, **others: Any) -> ProfileOptions:
    """Return options by which every layer is timed so often."""
    return ProfileOptions("cpu", min_repetitions=repetitions, max_repetitions=repetitions, **others)


OPTIONS = exactly(4)


def timeless(found: Profile) -> Profile:
    """Return a profile without its times and remarks, which differ from run to run."""
    nothing = dataclasses.replace(found.layers[0].forward, median_s=0.0, spread_s=0.0)
    layers = tuple(
        dataclasses.replace(
            layer,
            forward=dataclasses.replace(nothing, samples=layer.forward.samples),
            backward=dataclasses.replace(nothing, samples=layer.backward.samples),
            weight_gradient_s=0.0,
        )
        for layer in found.layers
    )
    sweep = tuple(
        dataclasses.replace(
            point,
            layers=tuple(
                dataclasses.replace(sample, forward_s=0.0, backward_s=0.0, weight_gradient_s=0.0)
                for sample in point.layers
            ),
        )
        for point in found.sweep
    )
    return dataclasses.replace(found, layers=layers, whole=None, notes=(), sweep=sweep)


class Stop(Exception):  # noqa: N818 - it stands for the end of a process
    """Ends a run in the middle."""


def stopped_at(
    monkeypatch: pytest.MonkeyPatch, kind: type, method: str, last: int
) -> list[tuple[Any, ...]]:
    """Let the ``last`` call of a method end the run; return the arguments of calls as they come."""
    original = getattr(kind, method)
    calls: list[tuple[Any, ...]] = []

    def counted(self: object, *args: Any, **named: Any) -> object:
        calls.append(args)
        if len(calls) == last:
            raise Stop
        return original(self, *args, **named)

    monkeypatch.setattr(kind, method, counted)
    return calls


def test_no_repetition_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref, partial = walk.sample("mlp"), tmp_path / "partial"
    whole = workflow.profile(ref, OPTIONS)
    calls = stopped_at(monkeypatch, Session, "repetition", 4)
    with pytest.raises(Stop):
        workflow.profile(ref, OPTIONS, partial=partial)
    assert partial.read_text().count("\n") - 1 == 3
    found = workflow.profile(ref, OPTIONS, partial=partial)
    assert timeless(found) == timeless(whole)
    assert len(calls) == 4 + 1
    assert workflow.profile(ref, OPTIONS, partial=partial) == found
    assert len(calls) == 5


def test_no_layer_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref, partial = dataclasses.replace(walk.sample("mlp"), on_meta=True), tmp_path / "partial"
    # With so small a budget layers with weights are measured by themselves.
    options = dataclasses.replace(OPTIONS, resident_bytes=1)
    whole = workflow.profile(ref, options)
    calls = stopped_at(monkeypatch, _Measurement, "_measure", 4)
    with pytest.raises(Stop):
        workflow.profile(ref, options, partial=partial)
    first = [layer.name for (layers,) in calls[:3] for layer in layers]
    assert partial.read_text().count("\n") - 1 == len(first)
    found = workflow.profile(ref, options, partial=partial)
    assert timeless(found) == timeless(whole)
    later = [layer.name for (layers,) in calls[4:] for layer in layers]
    assert len({*first, *later}) == len(first) + len(later)
    assert partial.read_text().count("\n") - 1 == len(first) + len(later)
    count = len(calls)
    assert workflow.profile(ref, options, partial=partial) == found
    assert len(calls) == count


@pytest.mark.parametrize("on_meta", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_sweep_goes_on_at_the_size_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_meta: bool
) -> None:
    ref, partial = dataclasses.replace(walk.sample("mlp"), on_meta=on_meta), tmp_path / "partial"
    sizes = {"batch": (1, 2, 4)}
    whole = workflow.sweep(ref, sizes, OPTIONS)
    assert [point.size("batch") for point in whole.sweep] == [1, 2, 4]
    assert len({sum(point.storage_bytes) for point in whole.sweep}) == 3
    each = OPTIONS.min_repetitions
    calls = stopped_at(monkeypatch, Session, "repetition", each + 2)
    with pytest.raises(Stop):
        workflow.sweep(ref, sizes, OPTIONS, partial=partial)
    found = workflow.sweep(ref, sizes, OPTIONS, partial=partial)
    assert timeless(found) == timeless(whole)
    # The second size had one repetition: it is kept, and on meta whole layers are.
    kept = 0 if on_meta else 1
    assert len(calls) == each + 2 + (each - kept) + each
    assert workflow.sweep(ref, sizes, OPTIONS, partial=partial) == found
    assert len(calls) == each + 2 + (each - kept) + each
    with pytest.raises(DataError, match="results of another run"):
        workflow.sweep(ref, {"batch": (1, 2)}, OPTIONS, partial=partial)


def test_results_of_another_batch_size_are_refused(tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    workflow.profile(walk.sample("mlp"), OPTIONS, partial=partial)
    other = dataclasses.replace(walk.sample("mlp"), batch_size=5)
    with pytest.raises(DataError, match="results of another run"):
        workflow.profile(other, OPTIONS, partial=partial)
    assert workflow.profile(other, OPTIONS, partial=partial, force=True).model.batch_size == 5


def started(output: Path, *arguments: str) -> subprocess.Popen[str]:
    spec = walk.sample("mlp").spec
    command = [sys.executable, "-m", "autosplit", "profile", spec, "-o", str(output), *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for_results(partial: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while not partial.exists() or partial.read_bytes().count(b"\n") <= count:
        assert time.monotonic() < deadline, "no results came"
        time.sleep(0.01)


def test_kill_and_interrupt_leave_what_the_same_command_goes_on_from(tmp_path: Path) -> None:
    output, partial = tmp_path / "profile.json", tmp_path / "profile.json.partial"
    repeat = ("--repetitions", "120")
    for count, how in ((1, signal.SIGKILL), (9, signal.SIGINT)):
        process = started(output, *repeat)
        wait_for_results(partial, count)
        process.send_signal(how)
        _, said = process.communicate(timeout=60)
        assert not output.exists()
        if how == signal.SIGINT:
            assert process.returncode == 130
            assert f"What was measured is in {partial}" in said.replace("\n", "")
    assert partial.read_bytes().count(b"\n") > 9
    process = started(output, *repeat)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "Going on from" in said
    assert not partial.exists()
    found = load(Profile, output)
    assert {layer.forward.samples % 120 for layer in found.layers} == {0}


# Kind of run -> options, sizes of a sweep, whether over meta, records of a whole run.
KILLED = {
    "repetitions": (exactly(60), {}, False, 60),
    "sizes": (exactly(12), {"batch": (1, 2, 3, 4)}, False, 4 * (12 + 1)),
    # With so small a budget layers are measured, and kept, one by one.
    "sizes on meta": (exactly(12, resident_bytes=1), {"batch": (1, 2, 3, 4)}, True, None),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KILLED)
def test_killed_at_ten_moments_the_profile_is_that_of_one_run(tmp_path: Path, kind: str) -> None:
    options, sizes, on_meta, expected = KILLED[kind]
    ref = dataclasses.replace(walk.sample("mlp"), on_meta=on_meta)
    once, output = tmp_path / "once.json", tmp_path / "profile.json"
    partial, random = journal_of(output), Random(kind)

    begin = time.monotonic()
    finished(begun(ref, options, sizes, once))
    whole = lines_of(journal_of(once))
    assert len(whole) == (expected or len(whole))
    a_line_s = (time.monotonic() - begin) / len(whole)

    # Half of the records are left for the last run, so that a late kill finds it still going.
    moments = sorted(random.randrange(len(whole) // 2) for _ in range(10))
    kept: list[dict[str, Any]] = []
    for lines in moments:
        run = begun(ref, options, sizes, output)
        killed(run, partial, max(lines, len(kept)), random.uniform(0, a_line_s))
        now = lines_of(partial)
        assert now[: len(kept)] == kept  # nothing is lost, nothing is written twice
        kept = now
        if output.exists():
            break
    assert kept
    if not output.exists():
        finished(begun(ref, options, sizes, output))
    found = lines_of(partial)
    assert found[: len(kept)] == kept
    assert len(found) == len(whole)
    names = [(r.get("part"), r["LayerFindings"]["layer"]) for r in found if "LayerFindings" in r]
    assert len(set(names)) == len(names)
    assert timeless(load(Profile, output)) == timeless(load(Profile, once))


@pytest.mark.slow
def test_layers_that_do_not_fit_together_are_measured_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = _Measurement._measure
    tried: list[int] = []

    def short(self: _Measurement, layers: list[Layer]) -> object:
        tried.append(len(layers))
        if len(layers) > 1:
            raise torch.OutOfMemoryError("tried to allocate 80.00 GiB\nand more")
        return original(self, layers)

    ref = dataclasses.replace(walk.sample("mlp"), on_meta=True)
    whole = workflow.profile(ref, OPTIONS)
    monkeypatch.setattr(_Measurement, "_measure", short)
    assert timeless(workflow.profile(ref, OPTIONS)) == timeless(whole)
    assert tried[0] > 1
    assert set(tried[1:]) == {1}


@pytest.mark.slow
def test_a_layer_on_meta_that_does_not_fit_alone_is_modelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(self: _Measurement, layers: list[Layer]) -> object:
        raise MemoryError("tried to allocate 80.00 GiB")

    monkeypatch.setattr(_Measurement, "_measure", full)
    ref = dataclasses.replace(walk.sample("mlp"), on_meta=True)
    found = workflow.profile(ref, OPTIONS)
    assert {layer.source for layer in found.layers} == {"modelled"}
    assert any("costs are modelled from their work" in note for note in found.notes)
    with monkeypatch.context() as without:
        without.setattr("autosplit.profilers.analytic.find", no_device)
        with pytest.raises(AutosplitError, match="does not hold layer ") as raised:
            workflow.profile(ref, OPTIONS)
    assert "--batch-size" in (raised.value.hint or "")


def no_device(name: str) -> object:
    raise UsageError(f"no device {name!r} in the table")


def test_a_journal_holds_plain_repetitions(tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    workflow.profile(walk.sample("mlp"), OPTIONS, partial=partial)
    key = json.loads(partial.read_text().splitlines()[0])["key"]
    found = Journal(partial, key).records(Repetition)
    assert len(found) == 4
    assert all(min(each.forward) > 0 for each in found)
    assert [each.whole is not None for each in found] == [True, False, False, True]
