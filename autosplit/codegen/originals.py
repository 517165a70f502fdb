"""Modules that a stage takes out of the original model: ``original("blocks.3")``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from autosplit.codegen.expressions import Expr, Invoke, Text, call
from autosplit.codegen.scopes import Rewrite
from autosplit.codegen.spelling import quote
from autosplit.program import ORIGINAL, ModuleSpec
from autosplit.stages.whole import Whole

if TYPE_CHECKING:
    from autosplit.codegen.emit import StageSource

IMPORT = f"from .{ORIGINAL} import {ORIGINAL}"

_NUMBERED = re.compile(r'"([A-Za-z_][\w.]*)\.(0|[1-9]\d*)"', re.ASCII)


def is_original(spec: ModuleSpec) -> bool:
    """Say whether a module is called as it is."""
    return spec.constructor is not None and spec.constructor.qualified == ORIGINAL


def original(name: str) -> Expr:
    """Return the expression that takes a module out of the model."""
    return call(ORIGINAL, Text(quote(name)))


def position(expr: Expr) -> tuple[str, int] | None:
    """Return ``("blocks", 3)`` for ``original("blocks.3")``, None for anything else."""
    match expr:
        case Invoke(Text(name), (Text(text),), ()) if name == ORIGINAL:
            found = _NUMBERED.fullmatch(text)
            return (found[1], int(found[2])) if found else None
    return None


def counted(head: str, variable: str) -> Expr:
    """Return ``original(f"blocks.{i}")``."""
    return call(ORIGINAL, Text(f'f"{head}.{{{variable}}}"'))


def with_imports(sources: tuple[StageSource, ...], whole: Whole) -> tuple[StageSource, ...]:
    """Note in each stage which modules it takes out of the model, and in the first which not."""
    parted = tuple(Rewrite("not imported", name, why) for name, why in whole.parted)
    return tuple(
        replace(
            source,
            rewrites=(
                *_taken(whole, source.index),
                *(parted if source.index == 0 else ()),
                *source.rewrites,
            ),
        )
        for source in sources
    )


def _taken(whole: Whole, stage: int) -> Iterator[Rewrite]:
    for name in dict.fromkeys(name for at, name in whole.kept if at == stage):
        yield Rewrite("imported", name, f"{whole.program.module[name].qualified}, as it is")
