"""``autosplit export``: write the stages as a folder that runs by itself."""

from __future__ import annotations

from pathlib import Path

import click

from autosplit import workflow
from autosplit.artifacts import files_of_others, refuse_folder
from autosplit.cli.console import Terminal
from autosplit.cli.kinds import PLAN, expect
from autosplit.cli.options import FILE, Command, LazyChoice, force, ignore_extra, weights_dtype
from autosplit.errors import AutosplitError, ExitCode


@click.command(cls=Command, short_help="Write the stages as a folder that runs by itself.")
@click.argument("plan", type=FILE)
@click.option("-o", "--output", type=FILE, default="pipeline", help="Folder to write.")
@click.option(
    "--target",
    type=LazyChoice("target", "autosplit.targets:TARGETS"),
    default="torch",
    help="Framework that will run the stages.",
)
@click.option(
    "--weights",
    type=FILE,
    help="Weights instead of those the model is built with: .safetensors, torch.save, HF folder.",
)
@weights_dtype
@ignore_extra
@click.option(
    "--no-rewrite",
    multiple=True,
    type=LazyChoice("rewrite", "autosplit.codegen:REWRITES", extra=("made-again",)),
    help="Leave out a rewrite of the emitted code that report.json lists; may be repeated.",
)
@click.option(
    "--style",
    type=LazyChoice("style", "autosplit.workflow.models:STYLES"),
    default="source",
    help="source: stages are written from the model's operations and need torch alone. import: "
    "modules of the model that stand whole in a stage run as they are, fused kernels included, "
    "from a copy of the model's file; plan --on-boundaries leaves most of them whole.",
)
@click.option("--dry-run", is_flag=True, help="Print the files instead of writing them.")
@click.option("--check", is_flag=True, help="Write nothing; fail if the folder is not current.")
@force
@click.pass_obj
def command(
    terminal: Terminal,
    plan: Path,
    output: Path,
    target: str,
    weights: Path | None,
    weights_dtype: str,
    ignore_extra: bool,
    no_rewrite: tuple[str, ...],
    style: str,
    dry_run: bool,
    check: bool,
    force: bool,
) -> None:
    """Write the stages of PLAN as readable modules with weights and launch scripts.

    --force replaces an earlier export and its weights. A data.py that you have edited and files
    that you have added stay (the new one is data.py.new then); other files that you have changed
    are kept as NAME.edited.
    """
    expect(plan, PLAN)
    if check:
        _check(terminal, plan, output, target, no_rewrite, style)
    elif dry_run:
        for artifact in workflow.render(plan, target=target, no_rewrite=no_rewrite, style=style):
            terminal.write(f"# ---- {artifact.path}\n{artifact.text}")
    else:
        refuse_folder(output, force=force)
        kept = files_of_others(output)
        with terminal.step("export"):
            workflow.export(
                plan,
                output,
                target=target,
                weights=weights,
                convert_weights=weights_dtype == "model",
                ignore_extra=ignore_extra,
                no_rewrite=no_rewrite,
                style=style,
                force=force,
            )
        terminal.say(f"Wrote {output}.")
        if kept:
            terminal.say(_kept(kept))
        terminal.next_step("verify", str(output))


def _check(
    terminal: Terminal,
    plan: Path,
    output: Path,
    target: str,
    no_rewrite: tuple[str, ...],
    style: str,
) -> None:
    stale = workflow.stale(plan, output, target=target, no_rewrite=no_rewrite, style=style)
    if stale:
        raise AutosplitError(
            f"{output} is not what {plan} exports",
            cause=f"different: {', '.join(stale[:5])}{' …' if len(stale) > 5 else ''}",
            hint=f"autosplit export {plan} -o {output}{_style(style)} --force",
            exit_code=ExitCode.FAILURE,
        )
    terminal.say(f"{output} is current.")


def _style(style: str) -> str:
    return "" if style == "source" else f" --style {style}"


def _kept(kept: dict[str, str]) -> str:
    """Say what stays of an export that was replaced."""
    names = [old if old == new else f"{old} as {new}" for old, new in kept.items()]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    new = "; what data.py would be now is data.py.new" if "data.py" in kept else ""
    return f"Kept what you had changed or added: {', '.join(names[:5])}{more}{new}."
