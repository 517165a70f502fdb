"""The length of a stage file does not depend on how often a block repeats."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from sample_models import gpt
from tests.codegen.chain import ROOT, Chain, from_module, make


def stages(depth: int) -> Chain:
    torch.manual_seed(0)
    model = gpt.build(width=16, heads=2, layers=depth)
    args = gpt.example_inputs(2)
    loaded = from_module(model, args, symbols={(0, 0): "batch", (0, 1): "seq"})
    return make(loaded, at=(f"blocks.{depth // 2}",))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_eighty_blocks_are_as_long_as_four() -> None:
    lengths = []
    for depth in (4, 24, 80):
        sources = stages(depth).sources
        lengths.append([source.text.count("\n") for source in sources])
    assert lengths[0] == lengths[1] == lengths[2]


def test_eight_blocks_are_as_long_as_four() -> None:
    four, eight = stages(4).sources, stages(8).sources
    assert [s.text.count("\n") for s in four] == [s.text.count("\n") for s in eight]


def test_text_does_not_depend_on_hash_seeds() -> None:
    program = "from tests.codegen.test_depth import stages\n" + (
        "print(''.join(source.text for source in stages(2).sources))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1", "PATH": ""},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
    assert "class Stage1(nn.Module):" in texts.pop()
