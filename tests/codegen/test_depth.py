"""The length of a stage file does not depend on how often a block repeats."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from sample_models import encoder_decoder, gpt, moe, resnet
from tests.codegen.chain import ROOT, Chain, compare, from_module, make
from tests.codegen.edges import WIDTH, Dense


def stages(depth: int) -> Chain:
    torch.manual_seed(0)
    model = gpt.build(width=16, heads=2, layers=depth)
    args = gpt.example_inputs(2)
    loaded = from_module(model, args, symbols={(0, 0): "batch", (0, 1): "seq"})
    return make(loaded, at=(f"blocks.{depth // 2}",))


def moe_stages(depth: int) -> Chain:
    loaded = from_module(
        moe.build(width=8, heads=2, layers=depth),
        (),
        moe.example_inputs(2),
        symbols={(0, 0): "batch", (0, 1): "seq"},
    )
    return make(loaded, at=(f"blocks.{depth // 2}",))


def resnet_stages(depth: int) -> Chain:
    loaded = from_module(resnet.build((4, 8), depth // 2), resnet.example_inputs(2))
    return make(loaded, at=(f"blocks.{depth // 2}",))


def encoder_decoder_stages(depth: int) -> Chain:
    model = encoder_decoder.build(width=8, heads=2, encoder_layers=depth, decoder_layers=depth)
    loaded = from_module(model, encoder_decoder.example_inputs(2))
    return make(loaded, at=(f"encoder.{depth // 2}", f"decoder.{depth // 2}"))


def dense_stages(depth: int) -> Chain:
    return make(from_module(Dense(depth), (torch.randn(2, WIDTH),)), at=(f"cells.{depth // 2}",))


MODELS = {
    "gpt": stages,
    "moe": moe_stages,
    "resnet": resnet_stages,
    "encoder_decoder": encoder_decoder_stages,
    "dense": dense_stages,
}


def lengths(name: str, depth: int) -> list[int]:
    return [source.text.count("\n") for source in MODELS[name](depth).sources]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("depth", [24, 80])
@pytest.mark.parametrize("name", MODELS)
def test_many_blocks_are_as_long_as_four(name: str, depth: int) -> None:
    few, many = lengths(name, 4), lengths(name, depth)
    assert all(abs(a - b) <= 5 for a, b in zip(few, many, strict=True)), (few, many)


@pytest.mark.parametrize("name", ["gpt", "moe"])
def test_eight_blocks_are_as_long_as_four(name: str) -> None:
    four, eight = lengths(name, 4), lengths(name, 8)
    assert all(abs(a - b) <= 5 for a, b in zip(four, eight, strict=True)), (four, eight)


@pytest.mark.parametrize("name", ["moe", "dense"])
def test_long_lists_cross_a_cut_exactly(name: str) -> None:
    chain = MODELS[name](8)
    notes = [note.kind for source in chain.sources for note in source.rewrites]
    assert not {"flat", "without loops"}.intersection(notes)
    assert "*values" in chain.sources[1].text
    for train in (True, False):
        found = compare(chain, train=train, batch_size=3)
        assert found.output == 0
        assert max(found.gradient.values(), default=0) == 0


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
