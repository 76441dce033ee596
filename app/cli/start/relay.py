"""`plimsoll relay`: what a server that no agent started says of itself, told to the control plane."""

import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal

import httpx2
import typer

from agents.replicas.server_metrics import (
    GpuCounts,
    Histogram,
    NotAPage,
    Page,
    ServerCounts,
    ServerKind,
    read_gpus,
    read_page,
    read_server,
    told,
)
from app.cli.common.client import (
    Api,
    ControlPlaneUnreachable,
    Document,
    http_client,
    number,
    proxy_of,
)
from app.cli.common.context import CliContext, cli_context
from app.cli.common.errors import CliError
from app.cli.common.output import show_line, show_table

Kind = Literal["vllm", "triton", "mlserver", "dcgm"]
ASK_S = 5.0
MAX_WINDOW_S = 3600.0
"""What the control plane takes."""


def relay(
    context: typer.Context,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="The server's metrics, e.g. http://127.0.0.1:8000/metrics",
        ),
    ],
    *,
    kind: Annotated[Kind, typer.Option(help="What it is")],
    service: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Push what it did for this service; none: show what it says",
        ),
    ] = None,
    served_as: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The server's name for the service [default: SERVICE]"
        ),
    ] = "",
    source: Annotated[
        str, typer.Option(metavar="NAME", help="Name of this source; one per server")
    ] = "relay",
    period_s: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="Seconds of a window")
    ] = 10.0,
    windows: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many windows")
    ] = None,
) -> None:
    """Tell the control plane what a server that no agent started does.

    Reads the server's own Prometheus metrics, names old and new, and pushes one window of counts per period until
    interrupted. vLLM tells enough for that. Without --service it prints once what the metrics mean; so it reads Triton,
    MLServer, and the GPUs of a DCGM exporter, too.
    """
    cli = cli_context(context)
    if service is None:
        _show(_page(url, cli), kind, served_as)
        return
    if kind == "dcgm":
        raise CliError(
            "a DCGM exporter tells of GPUs, not of a service",
            hint="leave --service out to see what it says",
        )
    read = partial(_read, url, cli, kind, served_as or service)
    with Api(cli) as api:
        spec = api.get(f"/api/v1/services/{service}")
        slo_ms = number(spec, "spec.slo.latency_ms")
        if slo_ms is None:
            raise CliError(f"service {service} has no SLO")
        before = read()
        pushed = 0
        while windows is None or pushed < windows:
            cli.sleep(period_s)
            after = read()
            is_pushed = _push(api, service, make_window(source, before, after, slo_ms))
            pushed += is_pushed
            # What was not pushed is part of the next window, unless that grew too long to be taken.
            if is_pushed or after.at_s - before.at_s + period_s > MAX_WINDOW_S:
                before = after


def _push(api: Api, service: str, window: dict[str, object] | None) -> bool:
    """Whether the control plane has the window; where it does not answer, the next one covers this one, too."""
    if window is None:
        raise CliError(
            "the server does not tell its latencies one by one, so nobody can say what was in time",
            hint="push what your gateway counts: docs/metrics.md",
        )
    try:
        api.post(f"/api/v1/services/{service}/telemetry", window)
    except ControlPlaneUnreachable as error:
        # The server goes on counting; a control plane that comes back learns all of it.
        show_line(f"{window['window_start']}: not pushed: {error}")
        return False
    show_line(
        f"{window['window_start']}: {window['arrivals']} came, {window['served']} were served, "
        f"{window['in_slo']} of them in time"
    )
    return True


def _page(url: str, cli: CliContext) -> Page:
    proxy = proxy_of(cli, url)
    try:
        with http_client(cli, url, proxy) as client:
            return read_page(client.get(url, timeout=ASK_S).raise_for_status().text)
    except (httpx2.HTTPError, httpx2.InvalidURL, NotAPage) as error:
        through = f", asked through the proxy {proxy.place}" if proxy else ""
        raise CliError(f"{url}{through}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReading:
    """What a server told at one moment."""

    at_s: float
    """Unix seconds."""
    counts: ServerCounts


def _read(url: str, cli: CliContext, kind: ServerKind, served_as: str) -> ServerReading:
    counts = read_server(_page(url, cli), kind, served_as)
    # All zero from the start on would look like a service that nobody asks anything.
    if not told(counts):
        raise CliError(
            f"the server says nothing of {served_as!r}",
            hint="--served-as is the server's own name for it",
        )
    return ServerReading(at_s=time.time(), counts=counts)


def _show(page: Page, kind: Kind, served_as: str) -> None:
    found: tuple[GpuCounts, ...] | tuple[ServerCounts, ...]
    found = read_gpus(page) if kind == "dcgm" else (read_server(page, kind, served_as),)
    rows = [
        [name, _text(value)] for counts in found for name, value in told(counts).items()
    ]
    if not rows:
        raise CliError(
            f"nothing there is known of {kind}",
            hint="give --served-as, the server's own name",
        )
    show_table(["what", ">value"], rows)


def _text(value: float | str | Histogram) -> str:
    if isinstance(value, Histogram):
        return f"{sum(value.counts)} requests"
    return value if isinstance(value, str) else f"{value:g}"


def make_window(
    source: str, before: ServerReading, after: ServerReading, slo_ms: float
) -> Document | None:
    """The window between two readings; None where the server does not tell how many it served and how fast.

    Who came is who was answered or failed, and by how many more wait and run than before. Where the server was started
    anew between, what it did since then is all that is known.
    """
    if after.counts.served is None or after.counts.latency is None:
        return None
    latency = after.counts.latency.since(before.counts.latency)
    # Of one reading: a counter of answers may be a request ahead of the histogram.
    served = sum(latency.counts)
    failed = round(_since(after.counts.failed, before.counts.failed))
    # Who still waits has arrived as well: without them a growing queue would look like falling demand.
    more = _at_hand(after.counts) - _at_hand(before.counts)
    return {
        "source": source,
        "window_start": datetime.fromtimestamp(before.at_s, UTC).isoformat(),
        "window_s": after.at_s - before.at_s,
        "arrivals": max(0, served + failed + round(more)),
        "served": served,
        # Within a bucket the number is interpolated; it is rounded down, so that no kept SLO is claimed too many.
        "in_slo": min(served, math.floor(latency.within(slo_ms))),
        "rejected": failed,
        "latency_ms": _buckets(latency),
    }


def _since(now: float | None, before: float | None) -> float:
    if now is None:
        return 0.0
    # A counter that fell was started anew.
    return now if before is None or now < before else now - before


def _at_hand(counts: ServerCounts) -> float:
    return (counts.waiting or 0.0) + (counts.running or 0.0)


def _buckets(latency: Histogram) -> list[Document]:
    pairs = zip(latency.ends_ms, latency.counts, strict=True)
    return [
        # JSON has no infinity: the last bucket has no end.
        {"count": count} | ({"up_to_ms": end} if math.isfinite(end) else {})
        for end, count in pairs
        if count
    ]
