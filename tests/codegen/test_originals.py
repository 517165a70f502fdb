"""Stages that take whole modules out of the original model: their text is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from autosplit import stages
from autosplit.codegen import StageSource, generate, with_imports
from autosplit.tracers import trace
from tests.codegen.chain import ROOT, cut, from_file
from tests.codegen.test_samples import CUTS, GOLDEN


def written(name: str) -> tuple[StageSource, ...]:
    """Return the stages of a sample in the style "import"."""
    found = trace(from_file(ROOT / "sample_models" / f"{name}.py"))
    count = len(CUTS[name]) + 1
    whole = stages.keep_modules(
        found.program, found.interfaces, cut(found.program, count, CUTS[name])
    )
    specs, _ = stages.split(whole.program, whole.stage_of, count)
    return with_imports(generate(whole.program, specs), whole)


def test_text_is_as_kept(update_golden: bool) -> None:
    for source in written("gpt"):
        path = GOLDEN / f"import_gpt_stage_{source.index}.py"
        if update_golden:
            path.write_text(source.text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == source.text


@pytest.mark.parametrize("name", ["gpt", "mlp", "resnet", "moe"])
def test_text_is_well_formed_and_says_what_is_taken(
    name: str, check_style: Callable[[Iterable[StageSource]], None]
) -> None:
    sources = written(name)
    check_style(sources)
    for source in sources:
        taken = [note for note in source.rewrites if note.kind == "imported"]
        assert taken
        assert "from .original import original\n" in source.text
        assert not [note for note in source.rewrites if note.kind == "flat"]
