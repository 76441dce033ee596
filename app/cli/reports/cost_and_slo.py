"""`plimsoll cost` and `plimsoll slo`: sums over the reporting views."""

import csv
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from app.cli.common.client import Api, Document, documents, number, text
from app.cli.common.columns import share_cell
from app.cli.common.context import cli_context
from app.cli.common.durations import parse_moment
from app.cli.common.options import Output
from app.cli.common.output import (
    BAD,
    FAINT,
    Cells,
    ColouredCell,
    Format,
    amount,
    bold,
    faint,
    show_items,
    show_nothing,
    show_table,
    usd,
)

IDLE = "(idle)"
PERIOD_COLUMNS = (
    *("period", "since", "until", "finished", "misses", "allowed_misses"),
    *("burn_rate", "budget_used_percent", "alert_burn_rate", "is_alerting"),
)
"""`-o json` shows these columns of view `slo_budget` for each service."""
Since = Annotated[
    str,
    typer.Option(
        metavar="WHEN",
        help="Such as 1h, 7d, or 2026-01-31 (UTC); whole hours are counted",
    ),
]


COSTS = ("gpu_hours", "cost_usd", "whole_gpu_cost_usd", "memory_cost_usd")


class CostFormat(StrEnum):
    """What `-o` takes of `cost`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


class By(StrEnum):
    """What costs are summed by."""

    SERVICE = "service"
    PROJECT = "project"
    GPU_TYPE = "gpu-type"
    TASK = "task"

    @property
    def view(self) -> str:
        """The reporting view."""
        return f"cost_by_{self.value.replace('-', '_')}_hour"


def cost(
    context: typer.Context,
    by: Annotated[By, typer.Option(help="What to sum by")] = By.SERVICE,
    since: Since = "24h",
    output: Annotated[
        CostFormat,
        typer.Option(
            "-o", "--output", metavar="FORMAT", help="table, wide, json, yaml or csv"
        ),
    ] = CostFormat.TABLE,
) -> None:
    """Show what was spent, by service, project or GPU type, or on tasks.

    Cost divides each GPU's price by SM percent, and lists what was not allocated as (idle); whole-GPU cost
    divides the idle part over the services, too. Both add up to the bill.
    """
    key = by.value.replace("-", "_")
    with Api(cli_context(context)) as api:
        rows = list(_rows(api, by.view, since))
    sums = _sums(rows, key, COSTS)
    if output is CostFormat.CSV:
        _show_csv(sums, (key, *COSTS))
        return
    if show_items(sums, Format(output.value)):
        return
    if not sums:
        show_nothing(f"cost since {since}")
        return
    total_usd = _total(sums, "cost_usd")
    show_table(
        [by.value, ">GPU hours", ">cost", ">share", ">whole-GPU cost"],
        [*(_cost_row(entry, key, total_usd) for entry in sums), _total_row(sums)],
    )


def _total(sums: list[Document], column: str) -> float:
    return sum(number(entry, column) or 0.0 for entry in sums)


def _total_row(sums: list[Document]) -> Cells:
    cells = (
        "total",
        amount(_total(sums, "gpu_hours"), 2),
        usd(_total(sums, "cost_usd")),
        # Always 100 %.
        "",
        usd(_total(sums, "whole_gpu_cost_usd")),
    )
    return [bold(cell) for cell in cells]


def slo(
    context: typer.Context, since: Since = "24h", output: Output = Format.TABLE
) -> None:
    """Show how many requests met their SLO, by service.

    Also shows what is left of the error budget, and how fast it burns. Requests that were refused or lost count as
    misses. The budget is what the SLO's percentile leaves for misses: LEFT is of 30 days, or of what there is of them;
    at a burn rate of 1 the budget lasts just as long. Red: above 14.4 over one hour, 6 over six hours or 1 over three
    days, when somebody should look.
    """
    with Api(cli_context(context)) as api:
        rows = list(_rows(api, "slo_attainment_hour", since))
        budgets = list(_rows(api, "slo_budget", None))
    sums = _sums(rows, "service", ("requests", "served", "in_slo", "rejected", "gone"))
    # The views list the oldest hour first: the SLO of the newest one is the present one.
    newest = {text(row, "service"): row for row in rows}
    for entry in sums:
        _add_attainment(entry, newest[text(entry, "service")])
        _add_budget(
            entry,
            [row for row in budgets if text(row, "service") == text(entry, "service")],
        )
    if show_items(sums, output):
        return
    if not sums:
        show_nothing(f"requests since {since}")
        return
    figures = (
        *(">slo ms", ">wanted", ">met", ">requests", ">rejected"),
        *(">left", ">burn 1h", ">6h"),
    )
    show_table(["service", *figures], [_slo_row(entry) for entry in sums])


def _add_attainment(entry: Document, present: Document) -> None:
    # What still waits is neither met nor missed.
    finished = (number(entry, "served") or 0.0) + (number(entry, "rejected") or 0.0)
    share = (number(entry, "in_slo") or 0.0) / finished if finished else None
    entry["attainment_percent"] = None if share is None else round(100 * share, 4)
    entry["slo_percent"] = present.get("slo_percent")
    entry["slo_latency_ms"] = present.get("slo_latency_ms")


def _add_budget(entry: Document, periods: list[Document]) -> None:
    """`periods`: the service's rows of `slo_budget`; none for a service that was deleted."""
    used = next(
        (
            number(row, "budget_used_percent")
            for row in periods
            # The period of the budget itself; the shorter ones are for alerts.
            if text(row, "period") == "30 d"
        ),
        None,
    )
    entry["budget_left_percent"] = None if used is None else round(100 - used, 4)
    entry["periods"] = [
        {name: row.get(name) for name in PERIOD_COLUMNS} for row in periods
    ]


def _show_csv(sums: list[Document], columns: tuple[str, ...]) -> None:
    """Every sum as it is; the reader of the file rounds."""
    writer = csv.DictWriter(
        # The sums may hold more than the columns that are wanted.
        sys.stdout,
        columns,
        extrasaction="ignore",
        lineterminator="\n",
    )
    writer.writeheader()
    writer.writerows(sums)


def _rows(api: Api, view: str, since: str | None) -> Iterator[Document]:
    """Every row of a reporting view since a moment (None: it has no times), in the view's order, by column."""
    # The views are by the hour: an hour that has begun is counted as a whole one.
    moment = (
        None
        if since is None
        else parse_moment(since, datetime.now(UTC))
        .replace(minute=0, second=0, microsecond=0)
        .isoformat()
    )
    for page in api.pages(f"/api/v1/reports/{view}", {"since": moment}):
        columns = page.get("columns")
        rows = page.get("rows")
        if isinstance(columns, list) and isinstance(rows, list):
            yield from (dict(zip(map(str, columns), row, strict=True)) for row in rows)


def _sums(rows: list[Document], key: str, columns: tuple[str, ...]) -> list[Document]:
    """Sums of some columns by another one; idle last, else by name."""
    names = sorted(
        # Idle time belongs to none, so that it comes after everybody.
        {text(row, key) for row in rows},
        key=lambda name: (name == IDLE, name),
    )
    return [
        {
            key: name,
            **{
                c: sum(number(row, c) or 0.0 for row in rows if text(row, key) == name)
                for c in columns
            },
        }
        for name in names
    ]


def _cost_row(entry: Document, key: str, total: float) -> Cells:
    cost_usd = number(entry, "cost_usd") or 0.0
    name = text(entry, key)
    return (
        ColouredCell(text=name, style=FAINT if name == IDLE else ""),
        amount(number(entry, "gpu_hours"), 2),
        usd(cost_usd),
        "-" if total == 0 else f"{100 * cost_usd / total:.1f} %",
        usd(number(entry, "whole_gpu_cost_usd")),
    )


def _slo_row(entry: Document) -> Cells:
    met = number(entry, "attainment_percent")
    wanted = number(entry, "slo_percent")
    burn = {text(row, "period"): row for row in documents(entry, "periods")}
    return (
        text(entry, "service"),
        amount(number(entry, "slo_latency_ms"), 0),
        "-" if wanted is None else f"{wanted:g} %",
        # The views have percents, the cell takes fractions as the API's readings are.
        share_cell(_fraction(met), _fraction(wanted)),
        amount(number(entry, "requests"), 0),
        amount(number(entry, "rejected"), 0),
        _left_cell(number(entry, "budget_left_percent")),
        *(_burn_cell(burn.get(period, {})) for period in ("1 h", "6 h")),
    )


def _fraction(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _left_cell(percent: float | None) -> ColouredCell:
    """What is left of the error budget; below 0 more was missed than the SLO allows."""
    if percent is None:
        return faint("-")
    return ColouredCell(text=f"{percent:.1f} %", style=BAD if percent < 0 else "")


def _burn_cell(row: Document) -> ColouredCell:
    """A burn rate, red where somebody should look."""
    return ColouredCell(
        text=amount(number(row, "burn_rate"), 2),
        style=BAD if row.get("is_alerting") else "",
    )
