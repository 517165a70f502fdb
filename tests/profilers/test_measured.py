"""Profiles of real models: complete, consistent, and without a trace left on the model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from autosplit.errors import DataError, UsageError
from autosplit.layers import Granularity
from autosplit.modelspec import load_model
from autosplit.profilers import ProfileOptions, profile
from autosplit.serialize import digest, dumps, loads
from autosplit.tracers import Trace, trace
from autosplit.types import ModelRef, Profile

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
QUICK = ProfileOptions(device="cpu", min_repetitions=2, max_repetitions=2)
NAMES = ("gpt", "mlp", "resnet", "unet", "encoder_decoder", "moe")

pytestmark = pytest.mark.timeout(120)


def traced(name: str) -> Trace:
    return trace(load_model(ModelRef(spec=f"{SAMPLES / name}.py:build")))


def small(tmp_path: Path, text: str) -> Trace:
    path = tmp_path / "model.py"
    path.write_text("import torch\nfrom torch import nn\n\n\n" + text)
    return trace(load_model(ModelRef(spec=f"{path}:build")))


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_parameter_and_value_is_accounted_for(name: str) -> None:
    subject = traced(name)
    found = profile(subject, QUICK, model=ModelRef(spec=name))
    program = subject.program
    placed = [node for layer in found.layers for node in layer.nodes]
    assert len(placed) == len(set(placed))
    assert {state.name for state in found.states} == {spec.fqn for spec in program.states}
    unused = [state.name for state in found.states if not state.layers]
    assert all("exploration" in name for name in unused)
    rank = {layer.name: index for index, layer in enumerate(found.layers)}
    for value in found.values:
        if value.producer is not None:
            assert all(rank[value.producer] < rank[reader] for reader in value.consumers)
        assert value.nbytes > 0
    indices = {storage.index for storage in found.storages}
    assert all(set(layer.saved) <= indices for layer in found.layers)
    assert all(storage.nbytes > 0 for storage in found.storages)
    assert all(layer.forward.median_s > 0 for layer in found.layers)
    assert {value.name for value in found.values if value.output} == set(program.outputs)
    assert found.whole is not None
    assert found.fingerprint == digest(program)
    assert loads(Profile, dumps(found)) == found


TUPLES = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.gru = nn.GRU(16, 16, batch_first=True)
        self.lstm = nn.LSTM(16, 16, num_layers=2, batch_first=True)
        self.pool = nn.MaxPool1d(2, return_indices=True)

    def forward(self, x):
        x = self.attention(x, x, x, need_weights=False)[0]
        first, _ = self.gru(x)
        _, hidden = self.gru(first)
        output, (_, cell) = self.lstm(first)
        largest, _ = self.pool(output)
        values, places = x.max(1)
        return largest, hidden[0] + cell[-1] + values, torch.unbind(output, 1)[2]


def build():
    return Model(), (torch.randn(3, 4, 16),)
"""


@pytest.mark.parametrize("granularity", ["op", "layer", "block"])
@pytest.mark.parametrize("inference", [False, True])
def test_tuples_and_what_nobody_reads_of_them_stay_inside_layers(
    tmp_path: Path, granularity: Granularity, inference: bool
) -> None:
    options = dataclasses.replace(QUICK, granularity=granularity, inference=inference)
    subject = small(tmp_path, TUPLES)
    found = profile(subject, options)
    assert {value.name for value in found.values if value.output} == set(subject.program.outputs)
    with torch.device("meta"):
        model = type(subject.model)()
    on_meta = profile(dataclasses.replace(subject, model=model), options)
    assert [layer.name for layer in on_meta.layers] == [layer.name for layer in found.layers]


def test_the_model_is_left_as_it_was() -> None:
    subject = traced("resnet")
    model = subject.model
    marker = torch.ones_like(next(model.parameters()))
    next(model.parameters()).grad = marker
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    modes = [module.training for module in model.modules()]
    for options in (QUICK, ProfileOptions("cpu", 2, 1, 1, inference=True)):
        profile(subject, options)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [p.grad is marker if p.grad is not None else None for p in model.parameters()] == [
        True,
        *[None] * (len(list(model.parameters())) - 1),
    ]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert [module.training for module in model.modules()] == modes


def test_inference_has_no_backward_and_saves_nothing() -> None:
    found = profile(
        traced("mlp"), ProfileOptions("cpu", min_repetitions=2, max_repetitions=2, inference=True)
    )
    assert not found.training
    assert all(layer.backward.median_s == 0 and not layer.saved for layer in found.layers)
    assert not any(value.needs_grad for value in found.values)
    assert not any(state.trainable for state in found.states)
    assert found.whole is not None
    assert found.whole.backward_s < found.whole.forward_s


def test_all_but_times_is_equal_in_two_runs() -> None:
    first, second = (profile(traced("gpt"), QUICK) for _ in range(2))

    def timeless(found: Profile) -> tuple[object, ...]:
        layers = [
            (layer.name, layer.structure, layer.nodes, layer.saved, layer.workspace_bytes)
            for layer in found.layers
        ]
        return layers, found.values, found.states, found.storages, found.order_edges

    assert timeless(first) == timeless(second)


def test_gradients_flow_only_where_something_is_trained(tmp_path: Path) -> None:
    subject = small(
        tmp_path,
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.frozen = nn.Linear(8, 8).requires_grad_(False)\n"
        "        self.head = nn.Linear(8, 2)\n"
        "        self.unused = nn.Linear(8, 2)\n\n"
        "    def forward(self, x, index):\n"
        "        return self.head(self.frozen(x)[index])\n\n\n"
        "def build():\n"
        "    return Model(), (torch.randn(4, 8), torch.tensor([1, 0, 3, 2]))\n",
    )
    found = profile(subject, QUICK)
    assert found.layer["frozen"].backward.median_s == 0
    assert found.layer["head"].backward.median_s > 0
    states = {state.name: state for state in found.states}
    assert states["head.weight"].layers == ("head",)
    assert not states["frozen.weight"].trainable
    assert states["unused.weight"].layers == ()
    needs = {value.producer: value.needs_grad for value in found.values}
    assert needs["head"]
    assert not needs["frozen"]
    inputs = [value for value in found.values if value.producer is None]
    assert [value.dtype for value in inputs] == ["float32", "int64"]


def test_saved_views_share_one_storage(tmp_path: Path) -> None:
    subject = small(
        tmp_path,
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.enter = nn.Linear(8, 24)\n"
        "        self.leave = nn.Linear(8, 2)\n\n"
        "    def forward(self, x):\n"
        "        a, b, c = self.enter(x).split(8, -1)\n"
        "        return self.leave(a * b * c)\n\n\n"
        "def build():\n"
        "    return Model(), (torch.randn(4, 8),)\n",
    )
    found = profile(subject, QUICK)
    sizes = sorted(storage.nbytes for storage in found.storages)
    # x, a*b and a*b*c have 4 rows of 8 numbers; a, b and c are views of 4 rows of 24.
    assert sizes == [128, 128, 128, 384]


def test_progress_is_told_from_start_to_end() -> None:
    calls: list[tuple[int, int, str]] = []
    profile(traced("mlp"), QUICK, lambda *call: calls.append(call))
    assert calls[0][:2] == (0, 2)
    assert calls[-1][:2] == (2, 2)
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)


def test_options_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(DataError, match="min_repetitions"):
        ProfileOptions(min_repetitions=5, max_repetitions=2)
    with pytest.raises(UsageError, match="device"):
        profile(traced("mlp"), ProfileOptions(device="banana"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="torch sees no GPU"):
        profile(traced("mlp"), ProfileOptions(device="cuda:3"))


def test_a_model_that_computes_nothing_is_refused() -> None:
    subject = traced("mlp")
    empty = type(subject)(
        model=nn.Identity(),
        args=subject.args,
        kwargs=subject.kwargs,
        graph=subject.graph,
        program=type(subject.program)(
            **{
                **{f: getattr(subject.program, f) for f in subject.program.__dataclass_fields__},
                "nodes": tuple(n for n in subject.program.nodes if n.op == "input"),
                "states": (),
                "output_tree": subject.program.input_tree,
            }
        ),
    )
    with pytest.raises(DataError, match="computes nothing"):
        profile(empty, QUICK)


LINEAR = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(8, 16)
        self.leave = nn.Linear(16, 8)

    def forward(self, x):
        return self.leave(self.enter(x))


def build():
    return Model(), (torch.randn(16, 8),)
"""


def limited(subject: Trace, rows: int, error: type[Exception]) -> RemovableHandle:
    """Let one module run out of memory with more than so many rows."""

    def check(module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        if len(given[0]) > rows:
            raise error("can't allocate memory: tried to allocate 80.00 GiB\nand more")

    return subject.model.leave.register_forward_pre_hook(check)  # type: ignore[union-attr]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError, MemoryError])
def test_a_layer_too_large_for_memory_is_scaled_from_fewer_rows(
    tmp_path: Path, error: type[Exception]
) -> None:
    subject = small(tmp_path, LINEAR)
    plain = profile(subject, QUICK)
    handle = limited(subject, 5, error)
    found = profile(subject, QUICK)
    handle.remove()
    assert {layer.name: layer.source for layer in found.layers} == {
        "enter": "measured",
        "leave": "scaled",
    }
    assert found.layer["leave"].forward.median_s > 0
    # Memory is in proportion to rows in such a layer, so that the line through 4 and 2 is right.
    assert found.storages == plain.storages
    assert found.layer["leave"].workspace_bytes == plain.layer["leave"].workspace_bytes
    assert found.values == plain.values
    notes = " ".join(found.notes)
    assert "does not hold a step of the model, at layer leave" in notes
    assert "a micro-batch of leave: their costs are scaled from smaller micro-batches" in notes
    assert loads(Profile, dumps(found)) == found


def test_a_layer_of_which_no_row_fits_is_modelled_and_the_model_left_as_it_was(
    tmp_path: Path,
) -> None:
    subject = small(tmp_path, LINEAR)
    handle = limited(subject, 0, torch.OutOfMemoryError)
    found = profile(subject, QUICK)
    handle.remove()
    modelled = profile(subject, ProfileOptions(analytic="cpu"))
    leave = found.layer["leave"]
    assert (leave.source, found.layer["enter"].source) == ("modelled", "measured")
    assert leave.forward == modelled.layer["leave"].forward
    assert leave.backward == modelled.layer["leave"].backward
    assert leave.weight_gradient_s == modelled.layer["leave"].weight_gradient_s
    assert {layer.source for layer in modelled.layers} == {"modelled"}
    assert all(parameter.grad is None for parameter in subject.model.parameters())
    assert {layer.source for layer in profile(subject, QUICK).layers} == {"measured"}


def test_the_halves_of_a_backward_are_told_apart(tmp_path: Path) -> None:
    wide = LINEAR.replace("16", "512").replace("self.enter(x)", "self.enter(x).tanh()")
    subject = small(tmp_path, wide)
    found = profile(subject, dataclasses.replace(QUICK, granularity="op"))
    enter, tanh, leave = found.layers
    # Nothing waits for the gradient of the input, and a tanh has no weights.
    assert enter.weight_gradient_s == enter.backward.median_s > 0
    assert tanh.weight_gradient_s == 0 < tanh.backward.median_s
    assert 0 < leave.weight_gradient_s < leave.backward.median_s
    assert found.whole is not None
    assert found.whole.first_s is not None
    assert found.whole.first_s > 0


def test_the_profile_tells_the_sizes_it_was_made_at() -> None:
    assert dict(profile(traced("gpt"), QUICK).sizes) == {"batch": 4, "seq": 32}
