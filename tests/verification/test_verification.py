"""verify accepts an export that equals the model, and names what differs in one that does not."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from autosplit.errors import AutosplitError, ExitCode, UsageError, VerificationError
from autosplit.program import Tree
from autosplit.serialize import to_data
from autosplit.types import Comparison, VerificationReport
from autosplit.verification import verify
from autosplit.verification.folder import read_plan
from tests.verification import handmade


def export(tmp_path: Path, **changes: object) -> Path:
    ref = handmade.write_model(tmp_path)
    return handmade.write_export(tmp_path / "out", ref, **changes)  # type: ignore[arg-type]


def find(report: VerificationReport, kind: str, mode: str = "train") -> Comparison:
    found = [
        each
        for check in report.checks
        if check.mode == mode
        for each in check.comparisons
        if each.kind == kind
    ]
    return max(found, key=lambda each: (len(each.faults), each.largest))


def change_weight(folder: Path, stage: int, name: str, by: float) -> None:
    path = folder / "weights" / f"stage_{stage}.safetensors"
    tensors = {key: value.clone() for key, value in load_file(path).items()}
    tensors[name] += by
    save_file(tensors, path)


def test_an_equal_export_passes_with_no_difference(tmp_path: Path) -> None:
    report = verify(export(tmp_path))
    assert report.passed
    assert [(check.mode, check.batch_size) for check in report.checks] == [
        ("train", 3),
        ("eval", 3),
        ("train", 4),
        ("eval", 4),
    ]
    for kind in ("outputs", "loss", "buffers"):
        assert find(report, kind).largest == 0.0
    assert find(report, "gradients").largest <= 1e-7
    assert find(report, "gradients").compared == 5
    assert report.checkpoint.compared == 9
    assert json.loads(json.dumps(to_data(report), allow_nan=False))["folder"] == report.folder


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    folder = export(tmp_path)
    before = sorted(folder.rglob("*"))
    verify(folder)
    assert sorted(folder.rglob("*")) == before
    assert str(folder) not in sys.path
    assert not {"stages", "pipeline", "stages.stage_0"} & set(sys.modules)


def test_asked_batch_sizes(tmp_path: Path) -> None:
    report = verify(export(tmp_path), batch_sizes=(2, 7))
    assert {check.batch_size for check in report.checks} == {2, 7}
    assert report.passed
    with pytest.raises(UsageError, match="at least one row"):
        verify(tmp_path / "out", batch_sizes=(0,))


def test_a_frozen_batch_is_said(tmp_path: Path) -> None:
    report = verify(export(tmp_path, routing=dataclasses.replace(handmade.ROUTING, symbols=())))
    assert {check.batch_size for check in report.checks} == {3}
    assert "fixed the batch at 3 rows" in report.skipped[0]
    with pytest.raises(UsageError, match="3 rows only"):
        verify(tmp_path / "out", batch_sizes=(5,))


def test_a_mode_that_the_stages_do_not_follow_is_left_out(tmp_path: Path) -> None:
    changed = handmade.STAGE_1.replace("0.2, self.training", "0.2, True")
    routing = dataclasses.replace(handmade.ROUTING, mode="train")
    report = verify(export(tmp_path, routing=routing, stage_1=changed))
    assert report.passed
    assert {check.mode for check in report.checks} == {"train"}
    assert "eval mode" in report.skipped[0]


def test_a_size_that_the_model_cannot_run_is_left_out(tmp_path: Path) -> None:
    ref = handmade.write_model(
        tmp_path, ("x = self.embed", "assert len(ids) != 4\n        x = self.embed")
    )
    folder = handmade.write_export(tmp_path / "out", ref)
    report = verify(folder)
    assert {check.batch_size for check in report.checks} == {3}
    assert "4 rows: the original model fails" in report.skipped[0]
    with pytest.raises(UsageError, match="the original model fails"):
        verify(folder, batch_sizes=(4,))


@pytest.mark.parametrize(
    ("old", "new", "kind", "mode"),
    [
        ("self.head(y + x), y", "self.head(y + x) + 0.1, y", "outputs", "train"),
        ("self.head(y + x), y", "self.head(y + x.detach()), y", "gradients", "train"),
        ("F.dropout(self.drop(y), 0.2", "F.dropout(self.drop(y), 0.3", "outputs", "train"),
        ("0.2, self.training", "0.2, True", "outputs", "eval"),
    ],
)
def test_a_wrong_stage_is_found(tmp_path: Path, old: str, new: str, kind: str, mode: str) -> None:
    changed = handmade.STAGE_1.replace(old, new)
    assert changed != handmade.STAGE_1
    report = verify(export(tmp_path, stage_1=changed))
    assert find(report, kind, mode).largest > 1e-4
    with pytest.raises(VerificationError, match=kind) as caught:
        report.raise_if_failed()
    assert caught.value.exit_code is ExitCode.VERIFICATION


def test_a_gradient_on_one_side_only_is_a_fault(tmp_path: Path) -> None:
    changed = handmade.STAGE_0.replace(
        "return self.norm(x), x", "return self.norm(x) + 0 * self.spare.weight.sum(), x"
    )
    report = verify(export(tmp_path, stage_0=changed))
    assert find(report, "outputs").largest == 0.0
    assert find(report, "gradients").faults == (
        "spare.weight: one in the export, none in the original model",
    )
    assert not report.passed


def test_wrong_batchnorm_statistics_are_found(tmp_path: Path) -> None:
    changed = handmade.STAGE_0.replace("BatchNorm1d(6)", "BatchNorm1d(6, momentum=0.2)")
    buffers = find(verify(export(tmp_path, stage_0=changed)), "buffers")
    assert buffers.worst is not None
    assert "norm.running" in buffers.worst
    assert buffers.largest > 1e-3


def test_a_failing_stage_is_a_failed_verification(tmp_path: Path) -> None:
    changed = handmade.STAGE_1.replace("norm * self.scale", "norm @ self.scale[:3]")
    with pytest.raises(VerificationError, match="stage 1 of the export fails"):
        verify(export(tmp_path, stage_1=changed))


def test_missing_output_is_found(tmp_path: Path) -> None:
    tree = Tree("dict", keys=("logits",), items=(Tree("value", "head"),))
    with pytest.raises(VerificationError, match=r"hidden\.0"):
        verify(export(tmp_path, routing=dataclasses.replace(handmade.ROUTING, output_tree=tree)))


def test_copies_of_a_tied_weight_must_be_equal(tmp_path: Path) -> None:
    folder = export(tmp_path)
    change_weight(folder, 1, "head.weight", 0.5)
    report = verify(folder)
    assert "the copies of embed.weight differ" in report.checkpoint.faults
    assert not report.passed


def test_undeclared_sharing_is_found(tmp_path: Path) -> None:
    routing = dataclasses.replace(handmade.ROUTING, shared=())
    report = verify(export(tmp_path, routing=routing))
    assert any("stages 0, 1" in fault for fault in report.checkpoint.faults)


def test_an_incomplete_checkpoint_is_found(tmp_path: Path) -> None:
    changed = handmade.STAGE_0.replace("        self.spare = nn.Linear(2, 2)\n", "")
    folder = export(tmp_path, stage_0=changed)
    path = folder / "weights" / "stage_0.safetensors"
    save_file({k: v for k, v in load_file(path).items() if not k.startswith("spare")}, path)
    report = verify(folder)
    assert any("spare.weight" in fault for fault in report.checkpoint.faults)


def test_the_tolerance_decides(tmp_path: Path) -> None:
    changed = handmade.STAGE_1.replace("self.head(y + x), y", "self.head(y + x) + 1e-2, y")
    folder = export(tmp_path, stage_1=changed)
    assert not verify(folder).passed
    assert verify(folder, tolerance=1e-2).passed


@pytest.mark.parametrize("name", ["plan.json", "routing.json", "weights/stage_1.safetensors"])
@pytest.mark.parametrize("how", ["absent", "cut off"])
def test_a_broken_folder_is_refused(tmp_path: Path, name: str, how: str) -> None:
    path = export(tmp_path) / name
    if how == "absent":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(AutosplitError, match=Path(name).name):
        verify(tmp_path / "out")


def test_randomness_depends_on_shape_alone() -> None:
    from autosplit.verification.determinism import fixed_randomness

    state = torch.get_rng_state()
    with fixed_randomness():
        torch.rand(7)
        first = torch.nn.functional.dropout(torch.ones(50), 0.5)
        second = torch.nn.functional.dropout(torch.ones(50), 0.5)
    assert torch.equal(first, second)
    assert 5 < int((first == 0).sum()) < 45
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.timeout(120)
def test_processes_equal_the_model(tmp_path: Path) -> None:
    report = verify(export(tmp_path), distributed=True)
    assert report.passed
    launched = [check for check in report.checks if check.schedule is not None]
    assert [(check.mode, check.batch_size, check.microbatches) for check in launched] == [
        ("train", 3, 3),
        ("eval", 3, 3),
        ("train", 4, 3),
        ("eval", 4, 3),
    ]
    kinds = [each.kind for each in launched[0].comparisons]
    assert kinds == ["loss", "gradients", "buffers"]
    assert launched[0].comparisons[1].compared == 6
    assert launched[1].comparisons[0].compared == 6


@pytest.mark.timeout(120)
def test_a_fault_of_the_processes_alone_is_found(tmp_path: Path) -> None:
    folder = export(tmp_path)
    shared = folder / "pipeline" / "shared.py"
    text = shared.read_text()
    shared.write_text(re.sub(r"dist\.all_reduce\(.*, group=group\)", "pass", text))
    assert shared.read_text() != text
    report = verify(folder, distributed=True, batch_sizes=(3,))
    failed = {
        (check.schedule, each.kind)
        for check in report.checks
        for each in check.comparisons
        if not each.passes(report.tolerance)
    }
    assert failed == {("1f1b", "gradients")}


@pytest.mark.timeout(120)
def test_processes_run_under_every_schedule_of_their_ranks(tmp_path: Path) -> None:
    folder = export(tmp_path)
    later = folder / "pipeline" / "weight_gradients.py"
    later.write_text(later.read_text().replace("_run_all, waiting)", "_run_all, [])"))
    report = verify(folder, distributed=True, schedules=["all"], batch_sizes=(3,))
    launched = {check.schedule: check for check in report.checks if check.mode == "train"}
    launched.pop(None)
    assert set(launched) == {"1f1b", "gpipe", "interleaved", "looped-bfs", "zero-bubble"}
    for name, check in launched.items():
        passed = [each.passes(report.tolerance) for each in check.comparisons]
        # Only a schedule that puts gradients off loses those that are never computed.
        assert passed == [True, name != "zero-bubble", True]


def test_schedules_for_other_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="zbv does not run stages on ranks 0, 1") as caught:
        verify(export(tmp_path), distributed=True, schedules=["zbv"])
    assert "zero-bubble" in str(caught.value.hint)


@pytest.mark.timeout(120)
def test_processes_that_fail_say_why(tmp_path: Path) -> None:
    folder = export(tmp_path)
    runner = folder / "pipeline" / "runner.py"
    text = runner.read_text()
    runner.write_text(text.replace("self._shared.reduce()", "raise RuntimeError('no sum today')"))
    with pytest.raises(VerificationError) as caught:
        verify(folder, distributed=True, batch_sizes=(3,))
    assert caught.value.cause is not None
    assert "no sum today" in caught.value.cause


def rewrite_model(tmp_path: Path, text: str) -> Path:
    """Return an export whose model's file ends in ``text``."""
    folder = export(tmp_path)
    source = Path(read_plan(folder).model.spec.rpartition(":")[0])
    source.write_text(source.read_text() + text)
    return folder


@pytest.mark.parametrize(
    ("text", "message", "cause"),
    [
        (
            "def loss(output, labels):\n    raise RuntimeError('no such label')",
            r"loss\(\) failed",
            r"\.py:\d+: RuntimeError: no such label",
        ),
        ("def loss():\n    pass", r"loss\(\) failed", r"\.py: TypeError: loss\(\) takes 0"),
        (
            "def batches(rows):\n    yield 1 / 0",
            r"batches\(3\) failed",
            r"\.py:\d+: ZeroDivisionError",
        ),
        ("def batches(rows):\n    return []", r"batches\(3\) yields nothing", None),
        ("def batches(rows):\n    yield rows", r"batches\(\) yields a int", None),
        (
            "Tiny.forward = lambda self, ids: ids[99]",
            "the original model fails",
            r"\.py:\d+: IndexError",
        ),
    ],
)
def test_faults_of_the_users_own_functions_name_the_line(
    tmp_path: Path, text: str, message: str, cause: str | None
) -> None:
    folder = rewrite_model(tmp_path, f"\n\n{text}\n")
    with pytest.raises(UsageError, match=message) as caught:
        verify(folder)
    assert caught.value.hint or cause is None
    assert cause is None or re.search(cause, caught.value.cause or "")


def test_batches_that_end_begin_again(tmp_path: Path) -> None:
    text = "\n\nendless = batches\n\ndef batches(rows):\n    yield next(endless(rows))\n"
    assert verify(rewrite_model(tmp_path, text)).passed
