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
    bad,
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
    state = text(item, "status.state")
    return (
        text(item, "metadata.name"),
        text(item, "spec.network") or "(by layers)",
        ColouredCell(text=state or "-", style=STYLES.get(state, "")),
        _done(item),
        amount(number(item, "status.sm_percent"), 0),
        text(item, "status.gpu") or "-",
        _ends(item),
    )


def task_wide_cells(item: Document) -> Cells:
    """What else stands in a wide table."""
    waited_s = number(item, "status.waited_s")
    return (
        text(item, "metadata.project"),
        text(item, "spec.kind"),
        plain(dig(item, "spec.priority")),
        amount(number(item, "status.iterations_per_s"), 2),
        time_text(dig(item, "status.deadline_at")),
        "-" if waited_s is None else span(waited_s),
        plain(dig(item, "status.starts")),
        plain(dig(item, "status.swaps")),
    )


def span(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `4.0 d`."""
    # Units change at two, so that 90 s does not become 2 min.
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    if seconds < 7200.0:
        return f"{seconds / 60.0:.0f} min"
    if seconds < 172_800.0:
        return f"{seconds / 3600.0:.1f} h"
    return f"{seconds / 86_400.0:.1f} d"


def _done(item: Document) -> str:
    done = number(item, "status.done_iterations")
    total = number(item, "status.iterations")
    if done is None or not total:
        return "-"
    # Rounded down: what is not done is not 100 %.
    return f"{int(1000.0 * done / total) / 10.0:.1f} %"


def _ends(item: Document) -> ColouredCell:
    """Red where it would end after its deadline."""
    remaining_s = number(item, "status.remaining_s")
    waiting_s = number(item, "status.waiting_s")
    if remaining_s is not None:
        ends = f"in {span(remaining_s)}"
        return bad(f"{ends}, late") if _is_late(item) else ColouredCell(text=ends)
    return warn(f"waits {span(waiting_s)}") if waiting_s else faint("-")


def _is_late(item: Document) -> bool:
    ends = text(item, "status.ends_at")
    deadline = text(item, "status.deadline_at")
    # As times, since the texts may have different offsets and precisions.
    return bool(ends and deadline) and datetime.fromisoformat(
        ends
    ) > datetime.fromisoformat(deadline)
