"""Models larger than a machine, profiled without their weights, against parts that are run.

``python -m tests.benchmarks.accuracy.large`` prints a table; each part runs in a process of its
own, for the peak of its memory. It takes about 14 GB of memory and several minutes.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from autosplit import graph, planner, workflow
from autosplit.modelspec import load_model
from autosplit.profilers import ProfileOptions
from autosplit.types import ModelRef, PlanRequest, Profile
from tests.benchmarks.accuracy.tables import show

SMALL = {
    "hidden_size": 2048,
    "intermediate_size": 5504,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 32000,
}
LARGE = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
SEQUENCE = 16
REPETITIONS = 4

_OPTIONS = ProfileOptions(
    device="cpu", min_repetitions=REPETITIONS, max_repetitions=REPETITIONS, granularity="block"
)


def profiled(config: dict[str, int]) -> dict[str, float]:
    """Profile a Llama over meta: CPU seconds of all layers, and of a block in the middle."""
    with tempfile.TemporaryDirectory() as folder:
        data = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **config}
        (Path(folder) / "config.json").write_text(json.dumps(data))
        ref = ModelRef(f"hf:{folder}", 1, task="causal-lm", dtype="bfloat16", on_meta=True)
        profile = workflow.profile(ref, _OPTIONS)
    middle = config["num_hidden_layers"] // 2
    block = [layer for layer in profile.layers if (layer.block or "").endswith(f".{middle}")]
    return {
        "seconds": _single_s(profile),
        "block_s": sum(layer.forward.median_s + layer.backward.median_s for layer in block),
    }


def _single_s(profile: Profile) -> float:
    request = PlanRequest(1, 1)
    return planner.cost_model(graph.build(profile), request).single_s


def run_whole(config: dict[str, int]) -> dict[str, float]:
    """Run forward and backward of a whole Llama with random weights."""
    with tempfile.TemporaryDirectory() as folder:
        data = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **config}
        (Path(folder) / "config.json").write_text(json.dumps(data))
        ref = ModelRef(f"hf:{folder}", 1, task="causal-lm", dtype="bfloat16")
        loaded = load_model(ref)

    def step() -> None:
        loaded.model(*loaded.args, **loaded.kwargs)[0].sum().backward()

    return {"seconds": _median_s(step)}


def run_block(config: dict[str, int]) -> dict[str, float]:
    """Run forward and backward of one decoder block; what its weights are does not matter."""
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as llama

    settings = LlamaConfig(**config, attn_implementation="sdpa")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        block = llama.LlamaDecoderLayer(settings, 0)
    block.to_empty(device="cpu")
    for parameter in block.parameters():
        torch.nn.init.constant_(parameter, 0.01)
    rotary = llama.LlamaRotaryEmbedding(settings)
    x = torch.randn(1, SEQUENCE, config["hidden_size"], requires_grad=True)
    angles = rotary(x, torch.arange(SEQUENCE)[None])

    def step() -> None:
        given: Any = block(x, position_embeddings=angles)
        (given[0] if isinstance(given, tuple) else given).backward(torch.ones_like(x))

    return {"seconds": _median_s(step)}


def _median_s(step: Callable[[], None]) -> float:
    torch.set_num_threads(1)
    seconds = []
    for _ in range(1 + REPETITIONS):
        begin = time.thread_time()
        step()
        seconds.append(time.thread_time() - begin)
    return statistics.median(seconds[1:])


PARTS: dict[str, Callable[[], dict[str, float]]] = {
    "profile 70B": lambda: profiled(LARGE),
    "block 70B": lambda: run_block(LARGE),
    "profile 1.3B": lambda: profiled(SMALL),
    "whole 1.3B": lambda: run_whole(SMALL),
}


def main() -> None:
    """Run every part in a process of its own and compare."""
    found = {}
    for name in PARTS:
        command = [sys.executable, "-W", "ignore", "-m", __spec__.name, name]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[name] = json.loads(output.splitlines()[-1])
    rows = [
        (
            name,
            f"{each['wall_s']:.0f} s",
            f"{each['peak_bytes'] / 1e9:.2f} GB",
            f"{each['seconds']:.2f} s",
        )
        for name, each in found.items()
    ]
    show("Models over meta", ("part", "takes", "peak memory", "CPU time of a step"), rows)
    block = found["profile 70B"]["block_s"] / found["block 70B"]["seconds"]
    whole = found["profile 1.3B"]["seconds"] / found["whole 1.3B"]["seconds"]
    memory = found["profile 1.3B"]["peak_bytes"] / found["whole 1.3B"]["peak_bytes"]
    print(f"70B: layers of a block / the block run whole: {block:.3f} (0.93 to 1.07)")
    print(f"1.3B: predicted / measured step: {whole:.3f} (0.95 to 1.05)")
    print(f"1.3B: memory of the profile / of the run: {memory:.2f} (≤ 0.25)")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        begin = time.monotonic()
        result = PARTS[sys.argv[1]]()
        result["wall_s"] = time.monotonic() - begin
        result["peak_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps(result))
    else:
        main()
