"""Columns of tasks: what the tables of `plimsoll get tasks` show of one."""

from datetime import datetime

from app.cli.common.client import Document, dig, number, text
from app.cli.common.output import (
    BAD,
    FAINT,
    GOOD,
    WARN,
    Cells,
    ColouredCell,
    amount,
    faint,
    plain,
    time_text,
    warn,
)

STYLES = {
    "running": GOOD,
    "finished": GOOD,
    "swapped": WARN,
    "failed": BAD,
    "cancelled": FAINT,
}


def task_row(item: Document) -> Cells:
    """Name, network, state, how much is done, where it runs, and when it ends or how long it has waited."""
    state = text(item, "status", "state")
    return (
        text(item, "metadata", "name"),
        text(item, "spec", "network") or "(by layers)",
        ColouredCell(text=state or "-", style=STYLES.get(state, "")),
        _done(item),
        amount(number(item, "status", "sm_percent"), 0),
        text(item, "status", "gpu") or "-",
        _ends(item),
    )


def task_wide_cells(item: Document) -> Cells:
    """What else stands in a wide table."""
    waited_s = number(item, "status", "waited_s")
    return (
        text(item, "metadata", "project"),
        text(item, "spec", "kind"),
        plain(dig(item, "spec", "priority")),
        amount(number(item, "status", "iterations_per_s"), 2),
        time_text(dig(item, "status", "deadline_at")),
        "-" if waited_s is None else span(waited_s),
        plain(dig(item, "status", "starts")),
        plain(dig(item, "status", "swaps")),
    )


def span(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `4.0 d`."""
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    if seconds < 7200.0:
        return f"{seconds / 60.0:.0f} min"
    return (
        f"{seconds / 3600.0:.1f} h"
        if seconds < 172_800.0
        else f"{seconds / 86_400.0:.1f} d"
    )


def _done(item: Document) -> str:
    done, total = (
        number(item, "status", "done_iterations"),
        number(item, "status", "iterations"),
    )
    # Rounded down: what is not done is not 100 %.
    return (
        "-"
        if done is None or not total
        else f"{int(1000.0 * done / total) / 10.0:.1f} %"
    )


def _ends(item: Document) -> ColouredCell:
    """Red where it would end after its deadline."""
    left_s, waiting_s = (
        number(item, "status", "remaining_s"),
        number(item, "status", "waiting_s"),
    )
    if left_s is not None:
        ends, deadline = (
            text(item, "status", "ends_at"),
            text(item, "status", "deadline_at"),
        )
        is_late = bool(ends and deadline) and datetime.fromisoformat(
            ends
        ) > datetime.fromisoformat(deadline)
        return ColouredCell(
            text=f"in {span(left_s)}" + (", late" if is_late else ""),
            style=BAD if is_late else "",
        )
    if waiting_s:
        return warn(f"waits {span(waiting_s)}")
    return faint("-")
