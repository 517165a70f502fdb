"""Parts of the training loop: rates, scales, norms, resume points, paths to write."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

from autosplit.targets.templates.torch.pipeline import PipelineError
from autosplit.targets.templates.torch.pipeline.checkpoints import found_checkpoints, resume_point
from autosplit.targets.templates.torch.pipeline.gradients import clip_factor
from autosplit.targets.templates.torch.pipeline.optimizer_state import (
    load_optimizer,
    optimizer_files,
)
from autosplit.targets.templates.torch.pipeline.options import output_file, output_folder
from autosplit.targets.templates.torch.pipeline.precision import LossScale
from autosplit.targets.templates.torch.pipeline.rates import rate_factor
from autosplit.targets.templates.torch.pipeline.recompute import call_again
from autosplit.targets.templates.torch.pipeline.routing import Route
from autosplit.targets.templates.torch.pipeline.training import check_loss
from autosplit.targets.templates.torch.pipeline.weight_gradients import LaterWeightGradients
from autosplit.targets.templates.torch.pipeline.weights import write_files


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 1, 0.853553, 0.5, 0.146447]),
    ],
)
def test_rates_rise_and_fall(schedule: str, expected: list[float]):
    found = [rate_factor(step, 6, schedule, warmup=2) for step in range(1, 7)]
    assert found == pytest.approx(expected, abs=1e-6)


def test_rates_are_those_of_torch():
    """No step is wasted on a rate of zero: neither the first nor the last."""
    warmup, total = 3, 11
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.2)
    parts = [
        torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, total_iters=warmup - 1),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total - warmup),
    ]
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, parts, [warmup])
    for step in range(1, total + 1):
        expected = optimizer.param_groups[0]["lr"]
        assert 0.2 * rate_factor(step, total, "cosine", warmup) == pytest.approx(expected)
        assert expected > 0
        optimizer.step()
        scheduler.step()


def test_the_loss_scale_halves_on_overflow_and_doubles_after_calm():
    scale = LossScale(8.0, interval=2)
    values = []
    for finite in (True, False, True, True, True):
        scale.update(finite)
        values.append(scale.value)
    assert values == [8, 4, 4, 8, 8]
    scale = LossScale(2.0**-8)
    with pytest.raises(PipelineError, match=r"even where the loss is scaled by 0\.0039"):
        scale.update(False)


def test_clipping_is_that_of_torch():
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.tensor([3.0, 4.0, 12.0])
    norm = torch.nn.utils.clip_grad_norm_([parameter], 2.0)
    scaled = torch.tensor([3.0, 4.0, 12.0]) * clip_factor(float(norm), 2.0)
    torch.testing.assert_close(scaled, parameter.grad)
    assert clip_factor(100.0, None) == 1.0
    assert clip_factor(1.0, 2.0) == 1.0


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_ends_the_run(loss: float):
    options = argparse.Namespace(allow_nan=False, autocast="none")
    check_loss(1.0, 6, options)
    with pytest.raises(PipelineError, match=rf"the loss is {loss} in step 7; --allow-nan"):
        check_loss(loss, 7, options)
    check_loss(loss, 7, argparse.Namespace(allow_nan=True, autocast="none"))
    check_loss(loss, 7, argparse.Namespace(allow_nan=False, autocast="fp16"))


def test_a_run_goes_on_where_it_is_told(tmp_path: Path):
    for step in (2, 10, 9):
        (tmp_path / f"step_{step}").mkdir()
        (tmp_path / f"step_{step}" / "training.json").write_text("{}")
    (tmp_path / "step_11").mkdir()
    assert [path.name for path in found_checkpoints(tmp_path)] == ["step_2", "step_9", "step_10"]
    assert resume_point(tmp_path, "auto", False) == tmp_path / "step_10"
    assert resume_point(tmp_path, None, True) == tmp_path / "step_10"
    assert resume_point(None, str(tmp_path / "step_2"), False) == tmp_path / "step_2"
    assert resume_point(tmp_path / "new", None, False) is None
    assert resume_point(tmp_path / "new", "auto", False) is None
    with pytest.raises(PipelineError, match=r"holds step_10 of an earlier run"):
        resume_point(tmp_path, None, False)
    with pytest.raises(PipelineError, match=r"step_11 is not a checkpoint"):
        resume_point(None, str(tmp_path / "step_11"), False)
    with pytest.raises(PipelineError, match=r"needs --checkpoint-dir"):
        resume_point(None, "auto", False)


def test_paths_that_cannot_be_written_are_refused_at_once(tmp_path: Path):
    assert output_file(str(tmp_path / "new" / "x.json")) == tmp_path / "new" / "x.json"
    (tmp_path / "file").touch()
    for refuse in (lambda: output_folder(str(tmp_path / "file")), lambda: output_file("/")):
        with pytest.raises(argparse.ArgumentTypeError):
            refuse()


def _stage() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


@pytest.mark.parametrize("later", [None, LaterWeightGradients()])
def test_what_is_computed_again_is_the_same(later: LaterWeightGradients | None):
    route = Route(("x",), ("y",), ())
    plain, again = _stage(), _stage()
    x = torch.randn(6, 3)
    for stage, recompute in ((plain, False), (again, True)):
        torch.manual_seed(1)
        for _ in range(2):
            values = {"x": x}
            inside = later or nullcontext()
            with inside:
                given = call_again(stage, route, values, inside) if recompute else None
                given = given or route.call(stage, values)
            given["y"].square().sum().backward()
            if later is not None:
                later.take()()
    for one, other in zip(plain.parameters(), again.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), again.buffers(), strict=True))


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_optimizer_state_comes_back_by_name(kind, tmp_path: Path):
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        stage = _stage()
        groups = [{"params": list(stage[0].parameters()), "lr": 0.1}, {"params": [stage[3].weight]}]
        return stage, kind(groups, lr=0.2, weight_decay=0.01)

    stage, optimizer = made()
    stage(torch.randn(6, 3)).sum().backward()
    optimizer.step()
    optimizer.param_groups[0]["initial_lr"] = 0.3
    write_files(optimizer_files(optimizer, {0: stage}), tmp_path)
    other, restored = made()
    load_optimizer(restored, {0: other}, tmp_path)
    assert restored.param_groups[0]["initial_lr"] == 0.3
    before, after = optimizer.state_dict(), restored.state_dict()
    assert before["state"].keys() == after["state"].keys()
    for number, state in before["state"].items():
        for key, value in state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(after["state"][number][key]))
    with pytest.raises(PipelineError, match="2 parameter groups, and optimizer"):
        load_optimizer(kind(other.parameters(), lr=0.1), {0: other}, tmp_path)
