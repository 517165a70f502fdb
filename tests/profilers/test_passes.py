"""A pass over layers gives the gradients of the whole model, and tells what happens when."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from autosplit.profilers.clocks import CpuClock
from autosplit.profilers.memory import LiveStorages
from autosplit.profilers.passes import Silence, Step
from autosplit.profilers.watches import MemoryWatch, SavedWatch, TimingWatch
from autosplit.profilers.whole import WholeStep
from tests.profilers.models import Function, piece, residual


class Log(Silence):
    def __init__(self) -> None:
        self.entries: list[tuple[str, int]] = []

    def forward_begins(self, index: int) -> None:
        self.entries.append(("f", index))

    def backward_begins(self, index: int) -> None:
        self.entries.append(("b", index))


def gradients(*modules: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for m in modules for p in m.parameters() if p.grad is not None]


def test_gradients_equal_those_of_the_whole_model_and_add_up() -> None:
    model, inputs = residual()
    model.step.run(Silence())
    model.step.run(Silence())
    found = gradients(model.first, model.second)
    for module in (model.first, model.second):
        module.zero_grad()
    for _ in range(2):
        output = model.whole(**inputs)
        output.backward(torch.ones_like(output))
    torch.testing.assert_close(found, gradients(model.first, model.second))


def test_without_weights_the_same_gradients_flow_and_none_is_kept() -> None:
    model, _ = residual()
    log = Log()
    model.step.run(log, weights=False)
    # The first layer takes an input that wants no gradient: nothing of its backward is left.
    assert [index for kind, index in log.entries if kind == "b"] == [3, 2, 1]
    assert model.step.returned == {"h", "t", "s", "y"}
    assert not gradients(model.first, model.second)


def test_a_pass_is_one_region_of_autocast() -> None:
    linear = nn.Linear(6, 6)

    def under_autocast(x: Tensor) -> tuple[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (linear(x),)

    pieces = [
        piece("first", ("x",), ("h",), under_autocast, linear),
        piece("plain", ("h",), ("p",), lambda h: (h.float() @ torch.ones(6, 6),)),
        piece("again", ("p",), ("y",), under_autocast, linear),
    ]
    inputs = {"x": torch.randn(4, 6)}
    casts: list[int] = []

    class Casts(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            casts[-1] += args[0] is linear.weight and "copy" in str(func)
            return func(*args, **(kwargs or {}))

    for region in (nullcontext, lambda: torch.autocast("cpu", enabled=False)):
        casts.append(0)
        step = Step(pieces, inputs, frozenset({"y"}), training=True, region=region)
        with Casts():
            step.run(Silence())
            step.run(Silence())
    # Two layers in two passes: one cast for each layer, or one for each pass.
    assert casts == [4, 2]
    assert not torch.is_autocast_enabled("cpu")


def test_layers_run_forward_in_order_and_backward_in_reverse() -> None:
    model, _ = residual()
    log = Log()
    model.step.run(log)
    forward = [("f", index) for index in range(4)]
    assert log.entries == [*forward, *(("b", index) for index in (3, 2, 1, 0))]
    assert model.step.returned == {"h", "t", "s", "y"}


def test_inference_has_no_backward() -> None:
    model, _ = residual(training=False)
    log = Log()
    model.step.run(log)
    assert [kind for kind, _ in log.entries] == ["f"] * 4
    assert not gradients(model.first)


def test_no_gradient_flows_into_a_frozen_front() -> None:
    frozen, head = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 3)
    pieces = [
        piece("frozen", ("x",), ("h",), lambda x: (frozen(x),), frozen),
        piece("head", ("h",), ("y",), lambda h: (head(h),), head),
    ]
    step = Step(pieces, {"x": torch.randn(2, 6)}, frozenset({"y"}), training=True)
    log = Log()
    step.run(log)
    assert log.entries == [("f", 0), ("f", 1), ("b", 1)]
    assert step.returned == {"y"}


def test_a_layer_that_writes_to_an_input_is_given_a_copy() -> None:
    inputs = {"x": torch.ones(3)}
    pieces = [
        piece("fill", ("x",), ("z",), lambda x: (x.zero_(),), writes=("x",)),
        piece("add", ("x", "z"), ("y",), lambda x, z: (x + z,)),
    ]
    seen: list[Tensor] = []

    class Keep(Silence):
        def forward_ends(
            self, index: int, taken: Sequence[Tensor], given: Sequence[Tensor]
        ) -> None:
            seen.extend(given)

    Step(pieces, inputs, frozenset({"y"}), training=True).run(Keep())
    assert inputs["x"].tolist() == [1, 1, 1]
    assert seen[-1].tolist() == [1, 1, 1]


def test_three_readers_of_one_value_sum_their_gradients() -> None:
    scale = nn.Parameter(torch.tensor([2.0, 3.0]))
    holder = nn.ParameterList([scale])
    pieces = [
        piece("scale", ("x",), ("h",), lambda x: (x * scale,), holder),
        *(piece(f"r{i}", ("h",), (f"y{i}",), lambda h, i=i: (h * (i + 1),)) for i in range(3)),
        piece("sum", ("y0", "y1", "y2"), ("y",), lambda a, b, c: (a + b + c,)),
    ]
    step = Step(pieces, {"x": torch.ones(2)}, frozenset({"y"}), training=True)
    step.run(Silence())
    assert scale.grad is not None
    assert scale.grad.tolist() == [6.0, 6.0]


def test_times_are_noted_for_every_layer_and_an_empty_one_beside_it() -> None:
    model, _ = residual()
    watch = TimingWatch(CpuClock(1), 4, torch.device("cpu"))
    for _ in range(2):
        watch.reset()
        model.step.run(watch)
    forward, backward, empty = watch.seconds()
    assert len(forward) == len(backward) == len(empty) == 4
    assert min(*forward, *backward, *empty) > 0


def test_saved_storages_are_known_by_identity_and_parameters_left_out() -> None:
    model, inputs = residual()
    state = [*model.first.parameters(), *model.second.parameters()]
    watch = SavedWatch(model.step.pieces, state)
    with watch.hooks():
        model.step.run(watch)
    first, tanh, total, second = watch.saved
    storage = watch.value_storage
    assert list(first) == [storage["x"]]
    assert list(tanh) == [storage["t"]]
    assert list(total) == [storage["index"]]
    assert list(second) == [storage["s"]]
    assert watch.storage_bytes(storage["s"]) == inputs["x"].nbytes


def test_workspace_is_what_comes_and_goes() -> None:
    def wasteful(x: Tensor) -> tuple[Tensor]:
        scratch = torch.zeros(1000)
        return (x + scratch[: len(x)].sum(),)

    pieces = [
        piece("wasteful", ("x",), ("h",), wasteful),
        piece("plain", ("h",), ("y",), lambda h: (h + 1,)),
    ]
    step = Step(pieces, {"x": torch.ones(4)}, frozenset({"y"}), training=True)
    meter = LiveStorages()
    watch = MemoryWatch(meter, 2)
    with meter:
        step.run(watch)
    assert watch.workspace_bytes[0] >= 4000
    assert watch.workspace_bytes[1] < 100


@pytest.mark.parametrize("training", [True, False])
def test_the_whole_step_runs_forward_and_backward(training: bool) -> None:
    model, inputs = residual(training)
    compute = Function(("x", "index"), ("y",), lambda x, index: (model.whole(x, index),))
    forward_s, backward_s = WholeStep(compute, inputs, training).run(CpuClock(1))
    assert forward_s > 0
    assert (len(gradients(model.first, model.second)) == 4) is training
    assert backward_s >= 0
