"""What the emitted stages cost against the model they come from, in one process.

Model and stages take turns on the same inputs, forward and backward; the ratio is that of the
least thread CPU time of each, which a busy machine disturbs least.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autosplit.modelspec.structure import walk
from sample_models import encoder_decoder, gpt, resnet
from tests.codegen.chain import Chain, from_module, make

ROUNDS = 60
MOST = 1.02


def llama() -> nn.Module:
    """Return a Llama of 6 layers and width 192."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        use_cache=False,
    )
    found: nn.Module = transformers.LlamaForCausalLM(config)
    return found


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "gpt": (
        lambda: gpt.build(width=192, heads=6, layers=12),
        lambda: gpt.example_inputs(4),
    ),
    "llama": (llama, lambda: (torch.randint(512, (2, 64)),)),
    "resnet": (
        lambda: resnet.build(widths=(32, 48, 64), depth=3),
        lambda: resnet.example_inputs(8),
    ),
    "encoder_decoder": (
        lambda: encoder_decoder.build_large(),
        lambda: encoder_decoder.example_inputs(8),
    ),
}


def chained(name: str, count: int) -> Chain:
    torch.manual_seed(0)
    build, inputs = MODELS[name]
    found = make(from_module(build(), inputs()), count)
    found.load(found.loaded.model)
    return found


def step(run: Callable[[], list[Tensor]]) -> float:
    """Return the CPU seconds of one forward and backward."""
    start = time.thread_time()
    sum(tensor.sum() for tensor in run() if tensor.requires_grad).backward()
    return time.thread_time() - start


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_stages_cost_what_the_model_costs(name: str, count: int) -> None:
    found = chained(name, count)
    model, args = found.loaded.model, found.loaded.args

    def whole() -> list[Tensor]:
        return [tensor for _, tensor in walk(model(*args))]

    def stages() -> list[Tensor]:
        return found.run(args, {})

    pairs = [(step(whole), step(stages)) for _ in range(ROUNDS + 2)][2:]
    own, other = (min(column) for column in zip(*pairs, strict=True))
    median = sorted(b / a for a, b in pairs)[ROUNDS // 2]
    print(f"\n{name}, {count} stages: {own * 1e3:.0f} ms, {other / own:.3f} × ({median:.3f} ×)")
    assert other / own <= MOST
