from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from autosplit.errors import UsageError
from autosplit.modelspec import load_model, meta
from autosplit.serialize import digest
from autosplit.tracers import trace
from autosplit.types import ModelRef

MODEL = """
import torch
from torch import nn

COUNT = []
COUNT.append(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(20, 8)
        self.out = nn.Linear(8, 20)

    def forward(self, ids, mask=None):
        x = self.out(self.emb(ids))
        return x if mask is None else x * mask[..., None]

def build():
    return Net()

def with_args():
    return Net(), (torch.arange(12).view(3, 4),)

def with_kwargs():
    return Net(), (), {"ids": torch.arange(12).view(3, 4), "mask": torch.ones(3, 4)}

def nothing():
    return 3

def four():
    return Net(), (), {}, None

def wrong_args():
    return Net(), 5

def failing():
    value = 1
    raise KeyError("lost")

value = 7
"""

INPUTS = """
def example_inputs(batch_size):
    return (torch.arange(batch_size * 6).view(batch_size, 6) % 20,)

def loss(output, target):
    return (output - target).square().mean()

def batches(batch_size):
    yield example_inputs(batch_size), ()
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "my-model.py"
    path.write_text(MODEL)
    return path


def load(path: Path, name: str = "build", **options: object):
    return load_model(ModelRef(f"{path}:{name}", **options))


def test_inputs_come_from_the_builder(spec):
    loaded = load(spec, "with_args")
    assert loaded.args[0].shape == (3, 4)
    assert loaded.batch_dims == [0]
    assert loaded.symbols == {(0, 0): "batch", (0, 1): "seq"}
    assert loaded.source == spec
    keywords = load(spec, "with_kwargs")
    assert keywords.args == ()
    assert keywords.batch_dims == [0, 0]


def test_inputs_come_from_example_inputs(spec):
    spec.write_text(MODEL + INPUTS)
    loaded = load(spec)
    assert loaded.args[0].shape == (4, 6)
    assert load(spec, batch_size=5).args[0].shape == (5, 6)
    assert load(spec, "with_args").args[0].shape == (3, 4)
    assert load(spec, "with_args", batch_size=2).args[0].shape == (2, 6)
    assert loaded.loss is not None
    assert loaded.batches is not None
    next(loaded.batches(2))
    assert len(sys.modules["spec_my_model"].COUNT) == 1


def test_rows_are_repeated_or_cut(spec):
    rows = load(spec, "with_args", batch_size=5).args[0]
    assert torch.equal(rows[3:], rows[:2])
    assert load(spec, "with_args", batch_size=2).args[0].shape == (2, 4)


def test_weights_are_the_same_every_time_and_random_numbers_untouched(spec):
    state = torch.get_rng_state()
    first = load(spec, "with_args").model
    second = load(spec, "with_args").model
    assert torch.equal(first.out.weight, second.out.weight)
    assert torch.equal(torch.get_rng_state(), state)


def test_overrides(spec):
    loaded = load(spec, "with_args", inputs=("ids=2x9:int64", "mask=2x9:float32"))
    assert loaded.args[0].shape == (2, 9)
    assert loaded.args[0].max() < 12
    assert loaded.kwargs["mask"].dtype == torch.float32
    assert load(spec, inputs=("ids=2x9:int64",)).kwargs["ids"].dtype == torch.int64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ids", "not understood"),
        ("idz=2x2:int64", "does not take"),
        ("ids=2:int99", "int99"),
        ("ids=99999999999x99999999999:int64", "cannot be made"),
    ],
)
def test_bad_overrides(spec, text, message):
    with pytest.raises(UsageError, match=message):
        load(spec, "with_args", inputs=(text,))


def test_dtype_and_inference(spec):
    loaded = load(spec, "with_kwargs", dtype="float64", inference=True)
    assert loaded.model.out.weight.dtype == torch.float64
    assert loaded.kwargs["mask"].dtype == torch.float64
    assert loaded.kwargs["ids"].dtype == torch.int64
    assert not loaded.model.training
    with pytest.raises(UsageError, match="int32"):
        load(spec, "with_args", dtype="int32")


@pytest.mark.parametrize(
    ("name", "message", "where"),
    [
        ("nothing", r"nothing\(\) returns int", ":27"),
        ("four", r"four\(\) returns \(Net, tuple, dict, NoneType\)", ":30"),
        ("wrong_args", r"wrong_args\(\) returns \(Net, int\)", ":33"),
        ("failing", r"failing\(\) failed", ":38: KeyError"),
        ("value", "is a int, not a function", ""),
        ("biuld", "has no 'biuld'", ""),
        ("build", "no example inputs", ""),
    ],
)
def test_faulty_builders_are_refused_with_their_line(spec, name, message, where):
    with pytest.raises(UsageError, match=message) as caught:
        load(spec, name)
    assert where in str(caught.value)
    assert caught.value.hint or caught.value.cause
    if name == "biuld":
        assert "build" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("x = 1\ndef f(:\n", ":2"),
        ("x = 1\nx.y\n", ":2: AttributeError"),
        ("import nowhere\n", ":1:"),
        ("import sys\nsys.exit(0)\n", ":2: SystemExit"),
    ],
)
def test_files_that_fail_to_import(tmp_path, text, where):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(UsageError, match="cannot import") as caught:
        load(path)
    assert f"{path}{where}" in str(caught.value.cause)
    assert "spec_broken" not in sys.modules


@pytest.mark.parametrize("text", ["model", "model.py", ":build", "no/such.py:build", "no_such:f"])
def test_specs_that_name_nothing(text):
    with pytest.raises(UsageError):
        load_model(ModelRef(text))


def test_a_builder_that_ends_the_process_or_wants_more_is_refused(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import sys\ndef leave():\n    sys.exit(0)\ndef wants(width):\n    pass\n")
    with pytest.raises(UsageError, match="failed") as caught:
        load(path, "leave")
    assert f"{path}:3: SystemExit" in str(caught.value.cause)
    with pytest.raises(UsageError, match="failed") as caught:
        load(path, "wants")
    assert str(caught.value.cause).startswith(f"{path}: TypeError: wants() missing 1")


def test_constants_drawn_at_import_are_the_same_each_time(tmp_path):
    path = tmp_path / "drawn.py"
    path.write_text(
        "import torch\nDRAWN = torch.randn(4)\n"
        "def build():\n"
        "    return torch.nn.Linear(4, 4), (DRAWN.expand(2, 4).clone(),)\n"
    )
    assert torch.equal(load(path).args[0], load(path).args[0])


def test_neighbours_of_two_specs_do_not_mix(tmp_path):
    for name, width in (("one", 3), ("two", 5)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "neighbour.py").write_text(f"WIDTH = {width}\n")
        (folder / "model.py").write_text(
            "import torch\nfrom torch import nn\nfrom neighbour import WIDTH\n"
            "def build():\n    return nn.Linear(WIDTH, 1), (torch.randn(2, WIDTH),)\n"
        )
    for name, width in (("one", 3), ("two", 5), ("one", 3)):
        assert load(tmp_path / name / "model.py").model.in_features == width


def test_batch_in_another_dimension(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "def build():\n"
        "    return nn.Identity(), (torch.randn(4, 3), torch.ones(7, 4), torch.ones(()))\n"
    )
    assert load(path).batch_dims == [0, 1, None]
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "def build():\n    return nn.Identity()\n"
        "def example_inputs(batch_size):\n"
        "    return (torch.ones(4, 4), torch.ones(4, batch_size), torch.ones(batch_size, 4))\n"
    )
    assert load(path).batch_dims == [None, 1, 0]


HF = {
    "gpt2": ("GPT2Config", {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 64}),
    "llama": (
        "LlamaConfig",
        {
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_size": 16,
            "intermediate_size": 32,
            "vocab_size": 64,
        },
    ),
    "bert": (
        "BertConfig",
        {
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "hidden_size": 16,
            "intermediate_size": 32,
            "vocab_size": 64,
        },
    ),
    "t5": (
        "T5Config",
        {"num_layers": 2, "num_heads": 2, "d_model": 16, "d_ff": 32, "d_kv": 8, "vocab_size": 64},
    ),
    "vit": (
        "ViTConfig",
        {
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "hidden_size": 16,
            "intermediate_size": 32,
            "image_size": 16,
            "patch_size": 8,
        },
    ),
}


@pytest.mark.hf
@pytest.mark.parametrize("name", sorted(HF))
def test_huggingface_models_are_traced_exactly(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    from autosplit.tracers import trace
    from tests.tracers.helpers import assert_same

    kind, sizes = HF[name]
    getattr(transformers, kind)(**sizes).save_pretrained(tmp_path)
    loaded = load_model(ModelRef(f"hf:{tmp_path}", batch_size=2))
    found = trace(loaded)
    assert found.program.tracer == "torch_level"
    assert found.program.warnings == ()
    assert "batch" in found.program.symbol
    assert loaded.example_inputs is not None
    args, kwargs = loaded.example_inputs(3)
    assert_same(found, *args, **kwargs)


@pytest.mark.hf
def test_huggingface_specs_that_fail(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(UsageError, match="holds no Hugging Face config"):
        load_model(ModelRef(f"hf:{tmp_path}"))
    with pytest.raises(UsageError, match=r"there is no folder .*gone") as refused:
        load_model(ModelRef(f"hf:{tmp_path / 'gone'}"))
    assert "models are not downloaded" in (refused.value.cause or "")


ON_META = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.mask = torch.ones(8)
        self.register_buffer("scale", scale)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x, _ = self.rnn(x)
            x = self.drop(x) * self.mask
        return x.float() * self.scale


def build():
    return Net(torch.linspace(0, 1, 8)), (torch.zeros(3, 4, 8),)


def reads_a_value():
    return Net(torch.tensor([float(rate) for rate in torch.linspace(0, 1, 8)]))
"""


def test_a_model_on_meta_has_the_program_of_the_real_one(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(ON_META)
    real = load_model(ModelRef(spec=f"{path}:build"))
    found = load_model(ModelRef(spec=f"{path}:build", on_meta=True))
    assert meta.is_on_meta(found.model)
    assert not meta.is_on_meta(real.model)
    assert digest(trace(found).program) == digest(trace(real).program)
    assert meta.step_bytes(found.model) == meta.step_bytes(real.model) > 0


def test_building_that_needs_values_is_refused_on_meta(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(ON_META)
    with pytest.raises(UsageError, match="failed on meta") as raised:
        load_model(ModelRef(spec=f"{path}:reads_a_value", on_meta=True))
    assert raised.value.cause is not None
    assert re.search(r"net\.py:\d+: ", raised.value.cause)
    assert "--on-meta" in (raised.value.hint or "")


def test_example_inputs_may_leave_the_batch_size_out(tmp_path):
    path = tmp_path / "fixed.py"
    path.write_text(
        "import torch\n"
        "def build():\n    return torch.nn.Linear(3, 2)\n"
        "def example_inputs():\n    return torch.zeros(5, 3)\n"
    )
    loaded = load_model(ModelRef(f"{path}:build"))
    assert loaded.args[0].shape == (5, 3)
    assert loaded.batch_dims == [0]
    with pytest.raises(UsageError, match="takes no batch size"):
        load_model(ModelRef(f"{path}:build", batch_size=2))
