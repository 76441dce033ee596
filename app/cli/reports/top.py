"""`plimsoll top`: what runs where, whether SLOs hold, and what it costs, as it changes."""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from app.cli.common.client import Api, dig
from app.cli.common.context import CliContext, cli_context
from app.cli.common.errors import CliError, ControlPlaneUnreachable, Patience
from app.cli.common.output import BAD, FAINT, GOOD, WARN, console

TOPICS = ("header", "fleet", "gauges", "services")
RETRY_S = 1.0
"""Doubled at each failure in a row."""
BAR_WIDTH = 30
TIGHT = 0.9
"""Above this share of the SLO's latency a service is near its limit."""
HEADER_LINES = 4

Item: TypeAlias = Mapping[str, Any]


@dataclass(slots=True)
class TopicTables:
    """The topics' items by key, kept up to date by events."""

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

    def take(self, topic: str, change: Mapping[str, Any]) -> None:
        """Apply one event of the feed (`app.web.topics.feed`)."""
        # The first event of a connection holds everything: what it lacks is gone.
        items = {} if change.get("all") else self.tables.get(topic, {})
        items = {**items, **change["set"]}
        for key in change.get("gone", ()):
            items.pop(key, None)
        self.tables[topic] = items


def top(
    context: typer.Context,
    once: Annotated[
        bool, typer.Option("--once", help="Print it once, even into a pipe")
    ] = False,
) -> None:
    """Show live what runs where, whether SLOs are met, and what it costs.

    Runs until Ctrl-C. The longest bar is a GPU loaded up to its line.
    """
    cli = cli_context(context)
    board = TopicTables()
    screen = console()
    if once or not screen.is_terminal:
        with Api(cli) as api:
            _take_all(api, board)
        screen.print(frame(board, screen, is_entire=True))
        return
    with (
        Live(console=screen, screen=True, auto_refresh=False) as live,
        contextlib.suppress(KeyboardInterrupt),
    ):
        follow_on(cli, board, live, screen)


def follow_on(cli: CliContext, board: TopicTables, live: Live, screen: Console) -> None:
    """Show the feed for ever; while the control plane does not answer, the last picture below what is wrong.

    Raises CliError for what will not pass, such as a token that is not valid.
    """
    patience = Patience(period_s=RETRY_S)
    while True:
        try:
            _follow(cli, board, live, screen, patience)
        except CliError as error:
            patience.bear(error)
            picture = Group(Text(str(error), style=BAD), frame(board, screen))
            live.update(picture, refresh=True)
            cli.sleep(patience.wait_s)


def _take_all(api: Api, board: TopicTables) -> None:
    """Read the feed until every topic that the token may see has come once."""
    is_of_all = dig(api.get("/api/v1/auth/whoami"), "projects") is None
    # The other topics are about the entire fleet, which a project's token may not see.
    missing = {*TOPICS} if is_of_all else {"services"}
    for topic, change in events(api):
        board.take(topic, change)
        missing.discard(topic)
        if not missing:
            break


def _follow(
    cli: CliContext,
    board: TopicTables,
    live: Live,
    screen: Console,
    patience: Patience,
) -> None:
    """Show the feed until it ends."""
    is_heard = False
    with Api(cli) as api:
        for topic, change in events(api):
            board.take(topic, change)
            live.update(frame(board, screen), refresh=True)
            patience.answered()
            is_heard = True
    # Asked at once, a feed that always ends so would be asked without a pause.
    if not is_heard:
        raise ControlPlaneUnreachable("the control plane's feed ended without a word")


def events(api: Api) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Events of the feed until it ends, which it does every few minutes."""
    topic = ""
    for line in api.stream("/live", {"topic": TOPICS}):
        if line.startswith("event: "):
            topic = line.removeprefix("event: ")
        # Server-sent events: a newer control plane may have topics that this one does not know.
        elif line.startswith("data: ") and topic in TOPICS:
            yield topic, _parsed(line.removeprefix("data: "))


def _parsed(data: str) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise ControlPlaneUnreachable(
            "the control plane's feed was cut off within a line"
        ) from error


def frame(board: TopicTables, screen: Console, *, is_entire: bool = False) -> Group:
    """The whole picture; cut to the screen unless `is_entire`."""
    room = math.inf if is_entire else max(6, screen.height - HEADER_LINES)
    services = board.tables.get("services", {})
    gpus = board.tables.get("fleet", {})
    # Services get half of the screen, GPUs what they leave.
    max_services = room if is_entire or not gpus else max(3, room // 2 - 2)
    parts: list[Text | Table] = [_headline(board), _services(services, max_services)]
    if gpus:
        parts.append(
            _gpus(
                gpus,
                board.tables.get("gauges", {}),
                services,
                room - min(len(services), max_services) - 4,
            )
        )
    return Group(*parts)


def _headline(board: TopicTables) -> Text:
    now = board.tables.get("header", {}).get("now")
    if now is None:
        return Text("waiting for the control plane …" if not board.tables else "")
    plan = f"plan {now['plan_id']}" if now["plan_id"] else "no plan yet"
    cost = (
        ""
        if now["cost_usd_per_hour"] is None
        else f"  {now['cost_usd_per_hour']:.2f} USD/h"
    )
    gap = "" if now["gap_percent"] is None else f"  gap {now['gap_percent']:.1f} %"
    text = Text.assemble(
        (plan, "bold"), cost, gap, f"  {now['policy']} ({now['mode']})"
    )
    if now["paused"]:
        text.append("  paused", WARN)
    if now["waiting"]:
        text.append(f"  {now['waiting']} to approve", WARN)
    return text


def _table(*titles: str) -> Table:
    """A table; a `>` before a title aligns its column at the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        justify: Literal["left", "right"] = "right" if title.startswith(">") else "left"
        table.add_column(title.removeprefix(">"), justify=justify, no_wrap=True)
    return table


def _add_rest(table: Table, hidden: int) -> None:
    if hidden:
        table.add_row(Text(f"… {hidden} more", style=FAINT))


def _services(services: Mapping[str, Item], max_rows: float) -> Table:
    table = _table(
        *("SERVICE", ">SLO MET", ">LATENCY", ">SLO", ">RATE/S", ">PLANNED"),
        *(">USD/H", "REPLICAS"),
    )
    # Services that miss their SLO come first: the rest may be cut.
    ordered = sorted(
        services.items(), key=lambda entry: (_attained(entry[1]) is not False, entry[0])
    )
    shown = ordered if len(ordered) <= max_rows else ordered[: int(max_rows)]
    for name, item in shown:
        met = "–" if item["attainment"] is None else f"{100 * item['attainment']:.2f} %"
        table.add_row(
            name,
            Text(met, style=_style(item)),
            _figure(item["latency_ms"], " ms"),
            f"{item['slo_ms']:g} ms",
            _figure(item["rate_rps"]),
            _figure(item["planned_rate_rps"]),
            f"{item['cost_usd_per_hour']:.2f}",
            ", ".join(
                f"{count} × {gpu_type}" for gpu_type, count in item["replicas"].items()
            )
            or "none",
        )
    _add_rest(table, len(ordered) - len(shown))
    return table


def _gpus(
    gpus: Mapping[str, Item],
    gauges: Mapping[str, Any],
    services: Mapping[str, Item],
    max_rows: float,
) -> Table:
    table = _table("GPU", "TYPE", "SM", ">W", ">GIB", "CARRIES")
    # Who carries something first: on a large fleet the rest is cut.
    ordered = sorted(gpus.items(), key=lambda entry: (not entry[1]["parts"], entry[0]))
    shown = ordered if len(ordered) <= max_rows else ordered[: max(1, int(max_rows))]
    for name, gpu in shown:
        memory_mib, power_w, *_ = gauges.get(name, (None, None))
        table.add_row(
            name,
            gpu["gpu_type"],
            _bar(gpu, services),
            f"{_figure(power_w)}/{gpu['power_cap_w']:.0f}",
            f"{_figure(None if memory_mib is None else memory_mib / 1024)}/{gpu['memory_mib'] / 1024:.0f}",
            _carries(gpu),
        )
    _add_rest(table, len(ordered) - len(shown))
    return table


def _bar(gpu: Item, services: Mapping[str, Item]) -> Text:
    """Filled by SM percent up to the line at 100, in the colour of each service's SLO."""
    bar = Text()
    for part in gpu["parts"]:
        # What starts or drains has no SMs yet, or gives them up.
        if part["state"] in ("ready", "running"):
            # Rounded shares may add up to more than the bar: the last one gives way.
            width = round(BAR_WIDTH * part["sm_percent"] / 100.0)
            bar.append(
                "█" * max(0, min(width, BAR_WIDTH - len(bar))),
                _style(services.get(part["owner"])),
            )
    return bar.append("·" * (BAR_WIDTH - len(bar)), FAINT).append("|")


def _carries(gpu: Item) -> Text:
    if not gpu["healthy"] or not gpu["is_heard"]:
        return Text("unhealthy" if not gpu["healthy"] else "silent", style=WARN)
    return Text(
        ", ".join(
            f"{part['owner']} {part['sm_percent']:.0f} %" for part in gpu["parts"]
        )
        or "–"
    )


def _attained(item: Item) -> bool | None:
    if item["attainment"] is None:
        return None
    return bool(item["attainment"] >= item["percentile"])


def _style(item: Item | None) -> str:
    if item is None or item["attainment"] is None:
        return FAINT
    if not _attained(item):
        return BAD
    return WARN if (item["latency_ms"] or 0.0) > TIGHT * item["slo_ms"] else GOOD


def _figure(value: float | None, unit: str = "") -> str:
    if value is None:
        return "–"
    return f"{value:.0f}{unit}" if value >= 100 else f"{value:.3g}{unit}"
