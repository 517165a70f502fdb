"""What people see, kept as text: change it with ``--update-golden`` and read the difference."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from autosplit.hardware import devices, find
from autosplit.report import comparison, hardware, plans, profiles, trees, verifications
from autosplit.report.tables import grid
from autosplit.types import BatchCheck, Comparison, Profile, Timing, VerificationReport
from tests import examples

GOLDEN = Path(__file__).parent / "golden"


def text(width, *renderables):
    console = Console(width=width, highlight=False, color_system=None, force_terminal=False)
    with console.capture() as capture:
        for renderable in renderables:
            console.print(renderable)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def verification(largest=3e-8, faults=()):
    comparisons = (
        Comparison("outputs", 1, 0.0),
        Comparison("loss", 1, 0.0),
        Comparison("gradients", 12, largest, "h.0.attn.weight", faults),
        Comparison("buffers", 0, 0.0),
    )
    return VerificationReport(
        folder="pipeline",
        distributed=False,
        tolerance=1e-5,
        checkpoint=Comparison("checkpoint", 14, 0.0),
        checks=(
            BatchCheck("train", 4, 2, comparisons),
            BatchCheck("eval", 5, 2, comparisons[:1], "1f1b"),
        ),
        skipped=("other batch sizes: the trace fixed the batch at 4 rows",),
    )


def other_profile():
    """A profile of a model of two blocks less, twice as fast, with one layer more."""
    source = examples.profile()
    layers = tuple(
        replace(layer, forward=Timing(layer.forward.median_s / 2, 0.0, 12), saved=layer.saved[:0])
        for layer in source.layers
        if not layer.name.startswith("h.1")
    )
    extra = replace(layers[-1], name="loss", module="loss", forward=Timing(1e-4))
    return Profile(
        source.model,
        "1",
        replace(source.device, kind="cuda", name="NVIDIA H200", clock="model"),
        (*layers, extra),
        values=(),
        states=(),
        storages=source.storages,
    )


VIEWS = {
    "profile": lambda: profiles.profile_tables(examples.profile()),
    "profile_tree": lambda: [trees.profile_tree(examples.profile())],
    "comparison": lambda: comparison.comparison_tables(examples.profile(), other_profile()),
    "devices": lambda: [hardware.device_table(devices().values())],
    "device": lambda: [hardware.device_facts(find("h100-sxm"))],
    "plan": lambda: plans.plan_tables(examples.plan()),
    "plan_tree": lambda: [trees.plan_tree(examples.plan())],
    "plan_time": lambda: [plans.time_table(examples.plan())],
    "plan_memory": lambda: [plans.memory_table(examples.plan())],
    "verification": lambda: [verifications.verification_table(verification())],
    "verification_failed": lambda: [
        verifications.verification_table(verification(0.3, ("h.0.mlp.bias has no gradient",)))
    ],
}


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("view", VIEWS)
def test_views_look_as_they_did(view, width, update_golden):
    path = GOLDEN / f"{view}_{width}.txt"
    found = text(width, *VIEWS[view]())
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")
    assert max(map(len, found.splitlines())) <= width


def test_names_are_never_markup():
    profile = examples.profile()
    odd = {"h.0.attn": "[bold red]h[/]"}
    layers = tuple(replace(layer, name=odd.get(layer.name, layer.name)) for layer in profile.layers)
    renamed = Profile(
        profile.model, "0", profile.device, layers, values=(), states=(), storages=profile.storages
    )
    shown = text(100, *profiles.profile_tables(renamed), trees.profile_tree(renamed))
    assert shown.count("[bold red]h[/]") == 2


def test_a_plan_that_takes_no_time_can_be_shown():
    plan = examples.plan()
    still = tuple(
        replace(stage, forward_s=0.0, backward_s=0.0, send_s=0.0) for stage in plan.stages
    )
    shown = examples.plan(stages=still, step_s=0.0, single_s=0.0, objective_s=0.0, bound_s=0.0)
    assert "▶ 0" in text(80, *plans.plan_tables(shown))
    assert "stage 1" in text(80, trees.plan_tree(shown))


def test_a_plan_names_the_devices_of_a_cluster():
    plan = examples.plan()
    placed = tuple(
        replace(stage, device=f"a100-{index}") for index, stage in enumerate(plan.stages)
    )
    shown = text(80, *plans.plan_tables(examples.plan(stages=placed)))
    assert all(f"a100-{index}" in shown for index in range(len(placed)))
    assert "device" not in text(80, plans.plan_tables(plan)[-1])


def test_a_title_stands_on_one_line():
    table = grid("Link of each pair")
    table.add_column("#")
    assert text(80, table).splitlines()[0].strip() == "Link of each pair"
