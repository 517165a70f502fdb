"""Profiles, plans and verifications as rich tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autosplit.readers import WorkloadPlan
from autosplit.report.advice import advise, layer_s, precision, total_s
from autosplit.report.bars import bar, heat
from autosplit.report.paths import summarize
from autosplit.report.styles import GOOD, HINT, HOT, LABEL, STRONG, WARM
from autosplit.types import (
    BatchCheck,
    Comparison,
    ExportedStage,
    LayerProfile,
    ModelRef,
    Plan,
    Profile,
    StagePlan,
    VerificationReport,
)
from autosplit.units import format_bytes, format_rate, format_seconds, format_share

_TOP = 10


def grid(title: str | None = None) -> Table:
    """Return an empty table in the house style."""
    return Table(
        title=title,
        title_justify="left",
        title_style=STRONG,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        show_edge=False,
    )


def facts(pairs: list[tuple[str, RenderableType]]) -> Table:
    """Return labelled facts, one a line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style=LABEL, no_wrap=True)
    table.add_column()
    for label, value in pairs:
        table.add_row(label, value)
    return table


def remarks(lines: tuple[str, ...]) -> list[RenderableType]:
    """Return remarks as a bulleted list, set off by an empty line."""
    if not lines:
        return []
    listed = Table.grid(padding=(0, 1))
    for line in lines:
        listed.add_row(Text("•", style=HINT), Text(line))
    return [Padding(listed, (1, 0, 0, 0))]


# ---------------------------------------------------------------- profile


def profile_tables(profile: Profile, top: int = _TOP) -> list[RenderableType]:
    """Return what a person wants to know of a profile: the whole, the slowest layers, advice."""
    return [
        facts(_profile_facts(profile)),
        "",
        _slowest(profile, top),
        *remarks((*profile.notes, *advise(profile))),
    ]


def _profile_facts(profile: Profile) -> list[tuple[str, RenderableType]]:
    device = profile.device
    where = device.name
    if device.kind == "cpu":
        where += f", {_count(device.threads, 'thread')}"
    state: dict[str, int] = defaultdict(int)
    for item in profile.states:
        state[item.kind] += item.nbytes
    if device.clock == "model":
        where += ", modelled"
    pairs: list[tuple[str, RenderableType]] = [
        ("model", Text(model_name(profile.model))),
        ("device", Text(f"{where}, torch {device.torch_version}")),
        ("parameters", format_bytes(state["parameter"])),
    ]
    if state["buffer"]:
        pairs.append(("buffers", format_bytes(state["buffer"])))
    if profile.training:
        saved = sum(storage.nbytes for storage in profile.storages)
        pairs.append(("activations", f"{format_bytes(saved)} kept for backward"))
    pairs.append(("micro-batch", _step_text(profile)))
    if device.clock not in ("model", "file") and not _missed_precision(profile):
        pairs.append(("precision", _precision_text(profile)))
    if profile.sweep:
        pairs.append(("sweep", _sweep_text(profile)))
    if held := sum(layer.cache_bytes for layer in profile.layers):
        pairs.append(("key-value cache", f"{format_bytes(held)} for each token of a row"))
    return pairs


def model_name(model: ModelRef) -> str:
    """Return a model's spec with its batch size, without the folders of a file."""
    name = model.spec.rsplit("/", 1)[-1]
    return f"{name}, batch size {model.batch_size}" if model.batch_size else name


def _step_text(profile: Profile) -> str:
    forward = sum(layer.forward.median_s for layer in profile.layers)
    text = format_seconds(forward) + " forward"
    if profile.training:
        text += f" + {format_seconds(total_s(profile) - forward)} backward"
    if profile.whole is not None:
        text += f" (layers sum to {profile.whole.ratio:.2f}× the whole)"
    return text


def _missed_precision(profile: Profile) -> bool:
    """Return whether a remark already tells of a precision worse than was asked for."""
    return any(note.startswith("precision ") for note in profile.notes)


def _precision_text(profile: Profile) -> str:
    """Return how well the sum over layers is known, from the spread of their samples."""
    samples = min(layer.forward.samples for layer in profile.layers)
    counted = f"{_count(samples, 'sample')} of each layer at least"
    if samples < 2:
        return counted
    return f"±{format_share(precision(profile))} of the sum, {counted}"


def _sweep_text(profile: Profile) -> str:
    values: dict[str, set[int]] = defaultdict(set)
    for point in profile.sweep:
        for name, value in point.sizes:
            values[name].add(value)
    return "; ".join(f"{name} {', '.join(map(str, sorted(v)))}" for name, v in values.items())


def _slowest(profile: Profile, top: int) -> Table:
    """Return the layers that take most, those alike on one line."""
    groups: dict[str, list[LayerProfile]] = defaultdict(list)
    for layer in profile.layers:
        groups[layer.structure].append(layer)
    kinds = sorted(groups.values(), key=_group_s, reverse=True)
    total = total_s(profile) or 1.0
    largest = _group_s(kinds[0]) or 1.0
    title = f"Most time, of {_count(len(profile.layers), 'layer')}, {len(kinds)} different"
    table = grid(title)
    table.add_column("layer", overflow="fold")
    for heading in ("", "share", "forward", "backward", "weights", "saved"):
        table.add_column(heading, justify="right", no_wrap=True)
    sizes = {storage.index: storage.nbytes for storage in profile.storages}
    weights = _weights(profile)
    for alike in kinds[:top]:
        layer, seconds = alike[0], _group_s(alike)
        table.add_row(
            Text(layer.name),
            f"× {len(alike)}" if len(alike) > 1 else "",
            Text(format_share(seconds / total), style=heat(seconds / largest)),
            format_seconds(layer.forward.median_s),
            format_seconds(layer.backward.median_s),
            format_bytes(weights[layer.name]),
            format_bytes(sum(sizes[index] for index in layer.saved)),
        )
    return table


def _group_s(layers: list[LayerProfile]) -> float:
    return sum(layer_s(layer) for layer in layers)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _weights(profile: Profile) -> dict[str, int]:
    weights: dict[str, int] = defaultdict(int)
    for state in profile.states:
        for layer in state.layers:
            weights[layer] += state.nbytes
    return weights


# ---------------------------------------------------------------- plan


def plan_tables(plan: Plan) -> list[RenderableType]:
    """Return a plan's promise, its stages with bars, and its remarks."""
    return [facts(_plan_facts(plan)), "", _stages(plan), *remarks(plan.notes)]


def _plan_facts(plan: Plan) -> list[tuple[str, RenderableType]]:
    request = plan.request
    speedup = plan.single_s / plan.step_s if plan.step_s else 1.0
    cluster = request.cluster
    link = "free"
    if cluster and cluster.has_links:
        link = "by pair, as the cluster says"
    elif request.link_bytes_per_s:
        link = format_rate(request.link_bytes_per_s)
    if request.latency_s:
        link += f", {format_seconds(request.latency_s)} latency"
    if request.link_assumed:
        link += " (assumed: give --bandwidth and --latency)"
    if request.overlap:
        link += ", beside compute"
    return [
        ("model", Text(model_name(plan.model))),
        ("pipeline", _pipeline(plan)),
        ("micro-batches", f"{request.microbatches} a step"),
        ("links", link),
        (
            "step",
            Text.assemble(
                (format_seconds(plan.step_s), STRONG),
                f" predicted, {speedup:.2f}× one device ({format_seconds(plan.single_s)})",
            ),
        ),
        ("proof", proof(plan)),
    ]


def _pipeline(plan: Plan) -> str:
    request = plan.request
    parts = [_count(len(plan.stages), "stage")]
    ranks = len({stage.rank for stage in plan.stages})
    if ranks != len(plan.stages):
        parts.append(_count(ranks, "device"))
    if request.replicas > 1:
        parts.append(f"{request.replicas} replicas")
    return ", ".join([*parts, request.schedule])


def proof(plan: Plan | WorkloadPlan) -> Text:
    """Return how good a plan is known to be, by whom and in what time."""
    proven = plan.status == "optimal"
    words = "proven optimal" if proven else "not proven"
    objective = plan.objective_s if isinstance(plan, Plan) else plan.bottleneck_s
    bound = f"(objective = bound = {format_seconds(plan.bound_s)})"
    if plan.gap:
        bound = (
            f"(objective {format_seconds(objective)}, bound {format_seconds(plan.bound_s)}, "
            f"gap {format_share(plan.gap)})"
        )
    return Text.assemble(
        (words, GOOD if proven else WARM),
        f" by {plan.solver} in {format_seconds(plan.solver_s)} {bound}",
    )


def stage_s(stage: StagePlan) -> float:
    """Return forward plus backward seconds of a stage."""
    return stage.forward_s + stage.backward_s


def bottleneck(plan: Plan) -> int:
    """Return the index of the stage that takes longest, transfers included."""
    loads = [stage_s(stage) + stage.send_s for stage in plan.stages]
    return loads.index(max(loads))


def _stages(plan: Plan) -> Table:
    slowest = bottleneck(plan)
    largest = stage_s(plan.stages[slowest]) or 1.0
    budget = plan.request.memory_bytes
    most = budget or max(stage.memory.total_bytes for stage in plan.stages) or 1
    table = grid("Stages, for one micro-batch")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("layers", overflow="fold")
    table.add_column("time", no_wrap=True)
    for heading in ("", "idle"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("memory", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    for index, stage in enumerate(plan.stages):
        seconds = stage_s(stage)
        held = stage.memory.total_bytes
        table.add_row(
            Text(f"▶ {index}" if index == slowest else str(index), style=STRONG),
            Text(", ".join(summarize(stage.layers, plan.order))),
            bar(seconds / largest, 8),
            Text(format_seconds(seconds), style=heat(seconds / largest)),
            format_share(stage.idle),
            bar(held / most, 6),
            format_bytes(held),
        )
    table.caption = "▶ the bottleneck" + (f"; budget {format_bytes(budget)}" if budget else "")
    return table


def memory_table(plan: Plan) -> Table:
    """Return what each stage's memory is used for."""
    table = grid("Memory of each stage")
    uses = ("weights", "grads", "optim", "saved", "cuts", "scratch")
    for heading in ("stage", *uses, "total"):
        table.add_column(heading, justify="right", no_wrap=True)
    for index, stage in enumerate(plan.stages):
        memory = stage.memory
        table.add_row(
            str(index),
            format_bytes(memory.parameters_bytes),
            format_bytes(memory.gradients_bytes),
            format_bytes(memory.optimizer_bytes),
            format_bytes(memory.activations_bytes),
            format_bytes(memory.boundary_bytes),
            format_bytes(memory.workspace_bytes),
            Text(format_bytes(memory.total_bytes), style=STRONG),
        )
    return table


def time_table(plan: Plan) -> Table:
    """Return what each stage's time is used for, for one micro-batch."""
    table = grid("Time of each stage, for one micro-batch")
    for heading in ("stage", "rank", "device", "forward", "backward", "send", "idle", "in flight"):
        table.add_column(heading, justify="right", no_wrap=True)
    for index, stage in enumerate(plan.stages):
        table.add_row(
            str(index),
            str(stage.rank),
            Text(stage.device or "-"),
            format_seconds(stage.forward_s),
            format_seconds(stage.backward_s),
            format_seconds(stage.send_s),
            format_share(stage.idle),
            str(stage.in_flight),
        )
    return table


def export_table(stages: Sequence[ExportedStage]) -> Table:
    """Return the files of an export, and what goes in and out of each stage."""
    table = grid("Files of each stage")
    for heading in ("stage", "lines", "weights", "rewrites"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("takes", overflow="fold")
    table.add_column("gives", overflow="fold")
    for stage in stages:
        table.add_row(
            str(stage.index),
            str(stage.lines),
            format_bytes(stage.weights_bytes),
            str(stage.rewrites),
            Text(", ".join(stage.take)),
            Text(", ".join(stage.give)),
        )
    return table


# ---------------------------------------------------------------- verification


def verification_table(report: VerificationReport) -> Table:
    """Return the largest difference of each kind of tensor, per mode and batch size."""
    table = grid(f"Largest differences (tolerance {report.tolerance:.0e})")
    table.add_column("run", no_wrap=True)
    table.add_column("what", no_wrap=True)
    table.add_column("tensors", justify="right")
    table.add_column("difference", justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    runs = [
        ("checkpoint", (report.checkpoint,)),
        *((_run_name(check), check.comparisons) for check in report.checks),
    ]
    for name, comparisons in runs:
        shown = [each for each in comparisons if each.compared or each.faults]
        for index, each in enumerate(shown):
            style = GOOD if each.passes(report.tolerance) else HOT
            table.add_row(
                "" if index else name,
                each.kind,
                str(each.compared),
                Text(_difference(each), style=style),
                Text("; ".join(each.faults) or each.worst or ""),
            )
    if report.skipped:
        table.caption = Text("\n".join(f"skipped: {reason}" for reason in report.skipped))
    return table


def _difference(comparison: Comparison) -> str:
    if comparison.faults:
        return "fault"
    return f"{comparison.largest:.1e}" if comparison.largest else "0"


def _run_name(check: BatchCheck) -> str:
    rows = f" × {check.batch_size}" if check.batch_size else ""
    where = f", {check.schedule}" if check.schedule else ""
    return f"{check.mode}, {check.microbatches}{rows}{where}"
