from __future__ import annotations

import copy
import random
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from autosplit.errors import TraceError
from autosplit.program import Ambient, Ref, TrainingSwitch
from autosplit.tracers import torch_level, trace
from tests.tracers import models
from tests.tracers.helpers import assert_same, loaded

EXACT = [
    models.Block,
    models.Reused,
    models.RootState,
    models.InPlace,
    models.Hooked,
    models.Changed,
    models.Norms,
    models.ModeBranch,
    models.Remembering,
    models.Sliced,
    lambda: models.Checkpointed(True),
    lambda: models.Checkpointed(False),
]


@pytest.mark.parametrize("build", EXACT)
def test_trace_equals_eager_at_other_batch_sizes(build):
    torch.manual_seed(0)
    found = trace(loaded(build(), torch.randn(4, 8)))
    assert found.program.tracer == "torch_level"
    assert [symbol.name for symbol in found.program.symbols] == ["batch"]
    for batch in (1, 4, 7):
        if batch > 1 or build is not models.Norms:
            assert_same(found, torch.randn(batch, 8))


@pytest.mark.parametrize("build", [models.Unpacking, models.Recurrent, models.Attention])
def test_sequence_models_leave_the_batch_free(build):
    torch.manual_seed(0)
    found = trace(loaded(build(), torch.randn(4, 5, 8)))
    assert [symbol.name for symbol in found.program.symbols] == ["batch"]
    assert_same(found, torch.randn(3, 5, 8))


def test_evaluation_mode_takes_no_fast_path():
    model = models.Attention().eval()
    found = trace(loaded(model, torch.randn(4, 5, 8)))
    assert not found.program.training
    assert any(node.target == "encoder.layers.0.linear1" for node in found.program.nodes)


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_batch_equal_to_a_width_or_to_one_stays_free(batch):
    found = trace(loaded(models.Block(), torch.randn(batch, 8)))
    symbol = found.program.symbol["batch"]
    assert symbol.example == batch
    assert found.program.warnings == ()


def test_calls_names_and_aliases_of_a_reused_module():
    program = trace(loaded(models.Reused(), torch.randn(4, 8))).program
    calls = [call for call in program.calls if call.fqn == "block"]
    assert len(calls) == 3
    assert calls[0].parent == 0
    assert calls[0].arg_names == ("x",)
    assert [node.target for node in program.operations if node.op == "module"].count("first") == 2
    assert program.module["second"].fqn == "first"
    assert program.state["first.weight"].aliases == ("second.weight",)
    adds = [node for node in program.operations if node.target == "torch.Tensor.add"]
    assert len({node.calls for node in adds}) == 3
    assert all(node.location and node.location.split(":")[0].endswith("models.py") for node in adds)


def test_state_of_every_kind():
    program = trace(loaded(models.RootState(), torch.randn(4, 8))).program
    kinds = {spec.fqn: (spec.kind, spec.persistent) for spec in program.states}
    assert kinds["scale"] == ("parameter", True)
    assert kinds["gains.1"] == ("parameter", True)
    assert kinds["named.shift"] == ("parameter", True)
    assert kinds["offset"] == ("buffer", False)
    assert kinds["_constant_0"] == ("constant", False)


def test_writes_name_every_value_in_the_storage():
    program = trace(loaded(models.InPlace(), torch.randn(4, 8))).program
    by_target = {node.target: node for node in program.operations}
    assert by_target["torch.Tensor.__setitem__"].mutates == ("clone",)
    written = by_target["torch.Tensor.mul_"]
    assert written.returns_argument
    assert set(written.mutates) == {"clone", "getitem"}
    assert by_target["act"].mutates[:1] == ("clone",)


def test_normalisation_writes_its_statistics():
    program = trace(loaded(models.Norms(), torch.randn(4, 8))).program
    layer, function = program.operations
    assert set(layer.writes_state) == {
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    }
    assert function.writes_state == ("mean", "var")
    assert program.module["norm"].training_state


@pytest.mark.parametrize("training", [True, False])
def test_rates_follow_the_mode(training):
    model = models.Modes().train(training)
    program = trace(loaded(model, torch.randn(4, 8))).program
    dropout = next(node for node in program.operations if "dropout" in node.target)
    assert dict(dropout.kwargs)["training"] == TrainingSwitch(True, False)
    assert dropout.random
    assert program.training is training
    assert program.warnings == ()


def test_global_state_is_kept_per_operation():
    program = trace(loaded(models.Modes(), torch.randn(4, 8))).program
    ambient = [node.ambient for node in program.operations]
    assert ambient == [
        Ambient(),
        Ambient(),
        Ambient(grad=False),
        Ambient(autocast=(("cpu", "bfloat16"),)),
        Ambient(autocast=(("cpu", "bfloat16"),)),
        Ambient(),
    ]


def test_a_branch_on_the_mode_is_frozen_and_said():
    program = trace(loaded(models.ModeBranch(), torch.randn(4, 8))).program
    assert len(program.warnings) == 1
    assert "models.py:" in program.warnings[0]
    assert "train()" in program.warnings[0]


def test_structures_of_inputs_and_outputs():
    pair = {"both": [torch.randn(4, 8), torch.randn(4, 8)]}
    program = trace(loaded(models.Structured(), pair, bias=None, flag=False)).program
    assert [spec.path for spec in program.inputs] == [
        ("args", 0, "both", 0),
        ("args", 0, "both", 1),
    ]
    assert [spec.name for spec in program.inputs] == ["pair_both_0", "pair_both_1"]
    assert program.output_tree.keys == ("result", "pair", "flag")
    result, named, flag = program.output_tree.items
    assert result.kind == "object"
    assert result.type_name == "tests.tracers.models:Result"
    assert result.keys == ("logits", "hidden", "extra")
    assert named.kind == "namedtuple"
    assert flag.value is False


def test_source_names_and_loop_variables():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([models.Block() for _ in range(2)])

        def forward(self, hidden):
            for block in self.blocks:
                hidden = block(hidden)
            scaled = hidden * 2
            return scaled + 1

    program = trace(loaded(Loop(), torch.randn(4, 8))).program
    calls = [call for call in program.calls if call.name == "Block"]
    assert {call.loop_variable for call in calls} == {"block"}
    multiplied = next(node for node in program.operations if node.target == "torch.Tensor.mul")
    assert [name.name for name in multiplied.source_names] == ["scaled"]


def test_without_frames_the_operations_are_the_same():
    spec = loaded(models.Unpacking(), torch.randn(4, 5, 8))
    hints = {"batch": 4}
    with_frames = torch_level.record(spec, spec.symbols, hints)
    without = torch_level.record(spec, spec.symbols, hints, sketch=True)
    names = [node.name for node in with_frames.recording.graph.nodes]
    assert names == [node.name for node in without.recording.graph.nodes]


REFUSED = [
    (models.ValueBranch, "values read out of a tensor"),
    (models.NumpyInside, "cannot be traced"),
    (models.Nonzero, "depends on the data"),
    (models.Foreign, "not part of the model"),
    (models.HiddenParameter, "not part of the model"),
    (models.OpaqueOutput, "Opaque"),
    (models.Failing, "cannot be traced"),
    (models.TakesGradients, "takes gradients itself"),
    (models.Freezing, "whether linear.weight is trained"),
    (lambda: models.Freezing(attribute=True), "whether linear.weight is trained"),
]


@pytest.mark.parametrize(("build", "message"), REFUSED)
def test_refusals_name_the_line(build, message):
    with pytest.raises(TraceError, match=message) as caught:
        trace(loaded(build(), torch.randn(4, 8)))
    assert build is models.OpaqueOutput or "models.py:" in str(caught.value.cause)


def test_plain_numbers_that_the_forward_changes_are_told():
    model = models.Counting()
    program = trace(loaded(model, torch.randn(4, 8))).program
    assert any("the forward changes steps" in warning for warning in program.warnings)


def test_a_custom_backward_falls_back_to_export():
    program = trace(loaded(models.CustomBackward(), torch.randn(4, 8))).program
    assert program.tracer == "exported"
    assert any("torch.autograd.Function" in warning for warning in program.warnings)


@pytest.mark.parametrize("build", [models.Remembering, models.Failing, models.Norms, models.Hooked])
def test_the_model_is_left_as_it_was(build):
    model = build()
    model(torch.randn(4, 8)) if build is models.Remembering else None
    before = copy.deepcopy(model.state_dict())
    objects = [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    last = getattr(model, "last", None)
    state = torch.get_rng_state()
    call = nn.Module.__call__
    try:
        trace(loaded(model, torch.randn(4, 8)))
    except TraceError:
        assert build is models.Failing
    assert objects == [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert not hasattr(nn.Module, "training")
    assert nn.Module.__call__ is call
    assert getattr(model, "last", None) is last or build is models.Remembering
    assert not torch.equal(state, torch.zeros_like(state))


def test_random_state_is_left_as_it_was():
    spec = loaded(models.Modes(), torch.randn(4, 8))
    before = torch.get_rng_state()
    trace(spec)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_on_meta_needs_no_memory():
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(1 << 16, 1 << 16) for _ in range(4)))
    found = trace(loaded(model, torch.empty(4, 1 << 16, device="meta")))
    assert [node.target for node in found.program.operations] == ["0", "1", "2", "3"]
    assert all(parameter.is_meta for parameter in model.parameters())
    assert found.program.nodes[-1].args == (Ref("_2"),) or found.program.nodes[-1].inputs()


def test_unusual_models_are_refused():
    x = torch.randn(4, 8)
    with pytest.raises(TraceError, match="compiled"):
        trace(loaded(torch.compile(models.Block()), x))
    with pytest.raises(TraceError, match="no shape yet"):
        trace(loaded(nn.Sequential(nn.LazyLinear(4)), x))
    for register in ("register_hook", "register_post_accumulate_grad_hook"):
        hooked = nn.Sequential(nn.Linear(8, 4))
        getattr(hooked[0].weight, register)(lambda *_: None)
        with pytest.raises(TraceError, match=r"0\.weight has a hook on its gradient"):
            trace(loaded(hooked, x))


def test_calls_that_fail_on_fake_tensors_leave_no_stack_in_the_log(caplog):
    with pytest.raises(TraceError, match="cannot be traced"):
        trace(loaded(nn.Sequential(nn.Linear(8, 8)), torch.randn(4, 7)))
    assert "torch._subclasses.fake_tensor" not in {record.name for record in caplog.records}


def test_a_model_that_is_one_leaf_is_traced_through():
    found = trace(loaded(nn.Linear(8, 4), torch.randn(4, 8)))
    assert [node.target for node in found.program.operations] == ["torch.nn.functional.linear"]
    assert_same(found, torch.randn(3, 8))


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_in_the_source_is_said(reentrant):
    warnings = trace(loaded(models.Checkpointed(reentrant), torch.randn(4, 8))).program.warnings
    assert [each for each in warnings if "recompute" in each] == [
        "the model recomputes b in backward (torch.utils.checkpoint); "
        "the stages do not unless planned with --recompute"
    ]
    assert trace(loaded(models.Block(), torch.randn(4, 8))).program.warnings == ()


def test_recomputed_functions_are_named_and_the_first_few_alone():
    class Functions(nn.Module):
        def forward(self, x):
            for function in (torch.relu, partial(torch.add, other=1), self.twice, torch.tanh):
                x = checkpoint(function, x, use_reentrant=False)
            return checkpoint_sequential([torch.neg, torch.exp], 2, x, use_reentrant=False)

        def twice(self, x):
            return 2 * x

    found = trace(loaded(Functions(), torch.randn(4, 8))).program.warnings
    assert len(found) == 1
    assert "recomputes relu, add, " in found[0]
    assert "twice and 2 more in backward" in found[0]


def test_a_norm_that_averages_over_all_batches_is_traced():
    class Averaging(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(8, momentum=None)

        def forward(self, x):
            return self.norm(x)

    model = Averaging()
    found = trace(loaded(model, torch.randn(4, 8)))
    assert model.norm.momentum is None
    assert found.program.tracer == "torch_level"
    (node,) = found.program.operations
    assert node.writes_state == (
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    )
    assert ("momentum", None) in found.program.module["norm"].constructor.kwargs


def test_an_argument_that_no_source_can_hold_names_its_line():
    class Complex(nn.Module):
        def forward(self, x):
            return torch.view_as_real(x * (1 + 2j))

    with pytest.raises(TraceError, match="takes a complex") as caught:
        torch_level.trace_symbolic(loaded(Complex(), torch.randn(4, 8)))
    assert "test_torch_level.py:" in (caught.value.cause or "")


class PythonRandom(nn.Module):
    def forward(self, x):
        return x * random.random()


class Rebound(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(8))

    def forward(self, x):
        self.mean = self.mean * 0.5 + x.mean(0)
        return x + self.mean


@pytest.mark.parametrize("build", [PythonRandom, Rebound])
def test_a_model_that_gives_something_else_each_time_is_refused(build):
    with pytest.raises(TraceError, match="something else each time") as caught:
        trace(loaded(build(), torch.randn(4, 8)))
    assert "random numbers with torch" in (caught.value.hint or "")


def test_a_generator_in_the_forward_is_refused():
    class Stateless(nn.Module):
        def forward(self, x):
            return x + torch.randn(8, generator=torch.Generator().manual_seed(3))

    with pytest.raises(TraceError, match="uses a Generator of its own"):
        trace(loaded(Stateless(), torch.randn(4, 8)))
