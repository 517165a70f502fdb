"""Memory and time of exporting a large sharded Hugging Face folder, and of starting its ranks.

    python -m tests.benchmarks.export.large_folder --size 1b

writes a Llama of random weights (shards of 5 GB, one tensor at a time), models its times without
reading them, plans four stages and exports. Each step is a process of its own; its peak is what
``wait4`` tells of it, mapped pages included. What a step needs without weights is measured by the
same step on text alone, and by a rank that builds nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

GB = 10**9
MIB = 2**20
SIZES = {
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
}
STAGES = 4
AUTOSPLIT = (sys.executable, "-m", "autosplit")
RANK = (
    "import sys; sys.path.insert(0, '.')\n"
    "import torch, pipeline, stages\n"
    "if sys.argv[1] != '-':\n"
    "    k = int(sys.argv[1])\n"
    "    with torch.device('meta'):\n"
    "        stage = stages.STAGES[k]()\n"
    "    pipeline.load_stage(stage.to_empty(device='cpu'), k, 'weights')\n"
)


def main() -> None:
    """Run the steps and print what they needed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="1b")
    parser.add_argument("--max-shard-gb", type=float, default=5.0)
    parser.add_argument("--folder", type=Path, help="where to write; by default thrown away")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure(Path(folder), options.size, int(options.max_shard_gb * GB))


def measure(folder: Path, size: str, max_shard_bytes: int) -> None:
    """Write, profile, plan, export, start."""
    source = folder / "llama"
    # A process starts with the peak of the one that starts it: this one stays without torch.
    with get_context("spawn").Pool(1) as other:
        largest, total = other.apply(write_llama, (source, SIZES[size], max_shard_bytes))
    print(f"weights {show(total)} in shards of at most {show(largest)}")
    profile = ("--analytic", "a100-80gb", "--on-meta", "--dtype", "bfloat16", "--batch-size", "1")
    inputs = ("--seq-len", "128", "--task", "causal-lm", "-o", "profile.json")
    step(folder, "profile", *AUTOSPLIT, "profile", f"hf:{source}", *profile, *inputs)
    step(folder, "plan", *AUTOSPLIT, "plan", "profile.json", "--stages", str(STAGES))
    export = (*AUTOSPLIT, "export", "plan.json", "--weights", str(source))
    text = step(folder, "export, text alone", *export, "--dry-run")
    peak = step(folder, "export", *export)
    print(f"export needs {show(peak - text)} for weights: {(peak - text) / largest:.2f} shards")
    empty = step(folder / "pipeline", "a rank without weights", sys.executable, "-c", RANK, "-")
    for rank in range(STAGES):
        name = f"start of rank {rank}"
        peak = step(folder / "pipeline", name, sys.executable, "-c", RANK, str(rank))
        share = (folder / "pipeline" / "weights" / f"stage_{rank}.safetensors").stat().st_size
        own = peak - empty
        print(f"rank {rank} needs {show(own)} for {show(share)}: {own / share:.2f} of its share")


def step(folder: Path, name: str, *command: str) -> int:
    """Run a process; print its seconds and its peak, and return that in bytes."""
    begin = time.perf_counter()
    with (folder / "log.txt").open("wb") as log:
        started = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(started.pid, 0)
    if status:
        sys.exit(f"{name} failed:\n{(folder / 'log.txt').read_text()[-2000:]}")
    peak = used.ru_maxrss * 1024
    cpu = used.ru_utime + used.ru_stime
    print(f"{name}: {time.perf_counter() - begin:.0f} s ({cpu:.0f} s CPU), peak {show(peak)}")
    return peak


def show(nbytes: float) -> str:
    """Return bytes as MiB."""
    return f"{nbytes / MIB:,.0f} MiB"


def write_llama(folder: Path, sizes: dict[str, int], max_shard_bytes: int) -> tuple[int, int]:
    """Write a folder as ``save_pretrained`` does; return the largest shard and all, in bytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from autosplit.targets.templates.torch.pipeline.tensorfiles import (
        INDEX,
        TensorInfo,
        open_tensors,
        write_tensors,
    )

    config = LlamaConfig(
        **sizes,
        vocab_size=128256,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = LlamaForCausalLM(config).state_dict()
    shards: list[dict[str, TensorInfo]] = [{}]
    for name, tensor in shapes.items():
        info = TensorInfo(tuple(tensor.shape), torch.bfloat16)
        held = sum(other.nbytes for other in shards[-1].values())
        if shards[-1] and held + info.nbytes > max_shard_bytes:
            shards.append({})
        shards[-1][name] = info
    files = [f"model-{k + 1:05}-of-{len(shards):05}.safetensors" for k in range(len(shards))]
    for file, shard in zip(files, shards, strict=True):
        write_tensors(
            folder / file,
            shard,
            lambda name, shard=shard: torch.empty(
                shard[name].shape, dtype=torch.bfloat16
            ).normal_(),
        )
    mapping = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": mapping}, indent=1))
    assert set(open_tensors(folder).infos) == set(shapes)
    nbytes = [sum(info.nbytes for info in shard.values()) for shard in shards]
    return max(nbytes), sum(nbytes)


if __name__ == "__main__":
    main()
