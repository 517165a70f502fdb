"""The sample models: their text is kept, and it computes what the model computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest

from autosplit.codegen import FLAT, CodegenOptions, StageSource
from autosplit.modelspec import LoadedModel
from autosplit.tracers import Trace, trace
from tests.codegen.chain import ROOT, Chain, compare, from_file, make

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CUTS = {
    "gpt": ("blocks.3",),
    "mlp": ("layers.3",),
    "resnet": ("blocks.2", "blocks.4"),
    "unet": ("down.2", "up.1"),
    "encoder_decoder": ("encoder.2", "decoder.2"),
    "moe": ("blocks.2",),
}
SEVERAL_STAGES = {"embed.weight", "tokens.weight", "positions"}
"""Parameters used in more than one stage: their gradient is a sum in another order."""


@cache
def traced(name: str) -> tuple[LoadedModel, Trace]:
    """Return a sample model and its trace."""
    loaded = from_file(ROOT / "sample_models" / f"{name}.py")
    return loaded, trace(loaded)


@cache
def chain(name: str, options: CodegenOptions | None = None) -> Chain:
    """Return a sample model with its stages."""
    loaded, found = traced(name)
    return make(loaded, at=CUTS[name], options=options, traced=found)


@pytest.mark.parametrize("name", CUTS)
def test_text_is_as_kept(name: str, update_golden: bool) -> None:
    sources = chain(name).sources
    for source in sources:
        path = GOLDEN / f"{name}_stage_{source.index}.py"
        if update_golden:
            path.write_text(source.text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == source.text
    kept = sorted(GOLDEN.glob(f"{name}_stage_*.py"))
    assert len(kept) == len(sources)


@pytest.mark.parametrize("name", CUTS)
def test_text_is_readable_form_and_well_formed(
    name: str, check_style: Callable[[Iterable[StageSource]], None]
) -> None:
    sources = chain(name).sources
    assert not [note for source in sources for note in source.rewrites if note.kind == "flat"]
    check_style(sources)


@pytest.mark.parametrize("options", [None, FLAT], ids=["readable", "flat"])
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", CUTS)
def test_stages_compute_what_the_model_computes(
    name: str, train: bool, options: CodegenOptions | None
) -> None:
    for batch_size in (None, 3):
        found = compare(chain(name, options), train=train, batch_size=batch_size)
        assert found.output == 0
        assert found.buffer == 0
        for parameter, difference in found.gradient.items():
            assert difference <= (1e-7 if parameter in SEVERAL_STAGES else 0), parameter


@pytest.mark.parametrize("name", CUTS)
def test_flat_text_is_well_formed(
    name: str, check_style: Callable[[Iterable[StageSource]], None]
) -> None:
    check_style(chain(name, FLAT).sources)
