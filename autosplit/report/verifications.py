"""A verification as a table."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from autosplit.report.styles import GOOD, HOT
from autosplit.report.tables import grid
from autosplit.types import BatchCheck, Comparison, VerificationReport


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
