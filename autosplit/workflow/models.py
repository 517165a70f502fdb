"""Models, built and traced as a step needs them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autosplit.errors import AutosplitError, DataError, UsageError
from autosplit.program import ORIGINAL, Program
from autosplit.serialize import digest, load
from autosplit.types import Artifact, ModelRef, Plan, Profile
from autosplit.units import format_bytes
from autosplit.workflow.files import PathLike, at_batch

if TYPE_CHECKING:
    from autosplit.stages import Routing, Whole
    from autosplit.tracers import Trace


STYLES = ("source", "import")
"""How stages are written: from the operations, or with whole modules of the model as they are."""


def trace_of(ref: ModelRef) -> Trace:
    """Build a model and trace it."""
    from autosplit.modelspec import load_model
    from autosplit.tracers import trace

    return trace(load_model(ref))


def absolute(spec: str) -> str:
    """Return a spec that means the same in any working directory."""
    if spec.startswith("hf:"):
        return f"hf:{Path(spec[3:]).resolve()}"
    file, colon, name = spec.rpartition(":")
    return f"{Path(file).resolve()}{colon}{name}" if file.endswith(".py") else spec


def _with_weights(ref: ModelRef) -> ModelRef:
    """Return how to build a model off meta, if the memory of this machine holds it."""
    from autosplit.modelspec import load_model, meta

    if not ref.on_meta:
        return ref
    needed, free = meta.step_bytes(load_model(ref).model), meta.free_bytes()
    if free is not None and needed > free:
        raise AutosplitError(
            f"{ref.spec} does not fit into the memory of this machine",
            cause=f"a step of it needs {format_bytes(needed)}, {format_bytes(free)} are free; it "
            "was profiled on meta, and an export holds its weights",
            hint="export on a larger machine, or look at the text alone with --dry-run",
        )
    return dataclasses.replace(ref, on_meta=False)


def trace_with_weights(plan: Plan) -> Trace:
    """Trace the model of a plan as it is built, with its weights."""
    return trace_of(_with_weights(plan.model))


def trace_without_weights(plan: Plan) -> Trace:
    """Trace the model without memory for its parameters; with it where that does not work.

    It does not for a model that looks at its parameters while it is built.
    """
    from autosplit.modelspec import load_model, meta
    from autosplit.tracers import trace

    with contextlib.suppress(AutosplitError):
        with meta.without_parameters():
            loaded = load_model(dataclasses.replace(plan.model, on_meta=False))
        found = trace(loaded)
        others = (*loaded.model.buffers(), *found.constants.values())
        if digest(found.program) == plan.fingerprint and not any(each.is_meta for each in others):
            return found
    return trace_with_weights(plan)


def _trace_model(plan: Plan) -> Trace:
    return trace_of(plan.model)


def config_of(plan: Plan) -> Path | None:
    """Return the ``config.json`` that a Hugging Face model was built from."""
    kind, _, folder = plan.model.spec.partition(":")
    path = Path(folder) / "config.json"
    return path if kind == "hf" and path.is_file() else None


def build(
    plan: Plan | PathLike,
    target: str,
    trace_again: Callable[[Plan], Trace] = _trace_model,
    no_rewrite: Sequence[str] = (),
    style: str = "source",
) -> tuple[Trace, Routing, tuple[Artifact, ...]]:
    """Trace the model of a plan again, cut it, and write its stages as text."""
    if style not in STYLES:
        raise UsageError(f"there is no style {style!r}", hint=f"choose one of: {', '.join(STYLES)}")
    from autosplit import codegen, stages
    from autosplit.modelspec.files import model_code
    from autosplit.targets import TARGETS

    chosen = plan if isinstance(plan, Plan) else load(Plan, plan)
    check_profile(chosen)
    trace = trace_again(chosen)
    _check_model(chosen, trace)
    again = "made-again" not in no_rewrite
    count = len(chosen.stages)
    whole = _whole_modules(chosen, trace) if style == "import" else None
    program = trace.program if whole is None else whole.program
    stage_of = chosen.stage_of_node if whole is None else whole.stage_of
    specs, routing = stages.split(program, stage_of, count, again=again)
    sources = codegen.generate(program, specs, codegen.without(no_rewrite))
    if whole is not None:
        sources = codegen.with_imports(sources, whole)
    code = model_code(chosen.model) if _originals(program) else None
    exported = dataclasses.replace(chosen, model=dataclasses.replace(chosen.model, on_meta=False))
    return trace, routing, TARGETS[target].emit(exported, trace.program, routing, sources, code)


def _whole_modules(plan: Plan, trace: Trace) -> Whole:
    """Find the modules that stages may run as they are."""
    from autosplit.stages import keep_modules

    whole = keep_modules(trace.program, trace.interfaces, plan.stage_of_node)
    if not _originals(whole.program):
        raise AutosplitError(
            "no module of the model can be run as it is",
            cause="; ".join(f"{name}: {why}" for name, why in whole.parted[:3])
            or "it has no modules but torch's own",
            hint="plan with --on-boundaries, so that cuts fall between modules; or export with "
            "--style source",
        )
    return whole


def _originals(program: Program) -> bool:
    """Whether stages take a module out of the original model."""
    constructors = (spec.constructor for spec in program.modules)
    return any(each is not None and each.qualified == ORIGINAL for each in constructors)


def _check_model(plan: Plan, trace: Trace) -> None:
    """Refuse a plan for another model than the one that is there now."""
    if digest(trace.program) != plan.fingerprint:
        raise DataError(
            "the plan is stale",
            cause=f"{plan.model.spec} is not the model it was made for any more",
            hint="profile and plan it again",
        )


def check_profile(plan: Plan) -> None:
    """Refuse a plan whose profile has changed since; one that is gone cannot be asked."""
    if plan.profile_path is None or not Path(plan.profile_path).exists():
        return
    source = load(Profile, plan.profile_path)
    if source.sweep:
        source = at_batch(source, plan.model.batch_size)
    if digest(source) != plan.profile_digest:
        raise DataError(
            "the plan is stale",
            cause=f"{plan.profile_path} has changed since the plan was made",
            hint=f"autosplit plan {plan.profile_path}",
        )
