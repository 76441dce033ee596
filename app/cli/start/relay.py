"""`plimsoll relay`: what a server that no agent started says of itself, told to the control plane."""

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Literal

import httpx2
import typer

from agents.replicas.server_changes import (
    AnotherServer,
    MayBeAnother,
    ServerPage,
    counts_since,
    with_lost,
)
from agents.replicas.server_metrics import (
    GpuCounts,
    Histogram,
    NotAPage,
    Quantity,
    ServerCounts,
    known,
    read_gpus,
    read_page,
    read_server,
)
from agents.replicas.server_names import ServerKind
from app.cli.common.client import Api, http_client, number, proxy_of
from app.cli.common.context import CliContext, cli_context
from app.cli.common.durations import seconds_within
from app.cli.common.errors import CliError, Patience, show_error
from app.cli.common.output import show_line, show_table
from app.cli.start.relay_windows import (
    MAX_WINDOWS,
    CountedWindow,
    InTime,
    Stretch,
    make_windows,
)

Kind = Literal["vllm", "triton", "mlserver", "dcgm"]
ASK_S = 5.0


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
        float,
        typer.Option(
            parser=seconds_within(1.0, 3600.0),
            metavar="DURATION",
            help="Length of a window",
        ),
    ] = 10.0,
    windows: Annotated[
        int | None, typer.Option(min=1, help="Stop after this number of windows")
    ] = None,
) -> None:
    """Tell the control plane what a server that no agent started does.

    Reads the server's own Prometheus metrics, names old and new, and pushes one window of counts per period until
    interrupted. vLLM tells enough for that. Without --service it prints once what the metrics mean; so it reads Triton,
    MLServer, and the GPUs of a DCGM exporter, too.

    Once it has begun it bears that the server or the control plane is away, and pushes later what came meanwhile. A
    server's restart begins at zero; two servers behind one address are refused.
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
    server = MetricsServer(cli=cli, url=url, kind=kind, served_as=served_as or service)
    with Api(cli) as api:
        plane = PushedWindows(
            api=api,
            source=source,
            path=f"/api/v1/services/{service}",
            patience=Patience(period_s=period_s),
        )
        plane.load_slo()
        begun = Relay(
            server=server,
            plane=plane,
            patience=Patience(period_s=period_s, takes_all=True),
            before=server.read(),
        )
        while windows is None or plane.pushed < windows:
            cli.sleep(begun.wait_s)
            begun.step()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsServer:
    """The server whose page is read."""

    cli: CliContext
    url: str
    kind: ServerKind
    served_as: str

    def read(self) -> ServerPage:
        """What it says now. Raises CliError."""
        found = _page(self.url, self.cli)
        counts = self._counts(None, found)
        # All zero from the start on would look like a service without requests.
        if not known(counts):
            raise CliError(
                f"the server says nothing of {self.served_as!r}",
                hint="--served-as is the server's own name for it",
            )
        if counts.served is None or counts.latency is None:
            raise CliError(
                "the server does not tell its latencies one by one, so what was in time is not known",
                hint="push what your gateway counts: docs/metrics.md",
            )
        return found

    def since(self, before: ServerPage | None, after: ServerPage) -> ServerCounts:
        """What it did between two pages; None: since its start. Raises MayBeAnother, and CliError for two servers."""
        try:
            return self._counts(before, after)
        except AnotherServer as error:
            raise self.refusal(error) from error

    def _counts(self, before: ServerPage | None, after: ServerPage) -> ServerCounts:
        try:
            return counts_since(before, after, self.kind, self.served_as)
        except (KeyError, ValueError, OverflowError) as error:
            raise CliError(f"{self.url}: a bucket cannot be read: {error}") from error

    def refusal(self, error: Exception) -> CliError:
        """Why nothing is counted where two servers take turns."""
        return CliError(
            f"two servers answer at {self.url}: {error}",
            hint="relay each of them by an address of its own, with a --source of its own",
        )


@dataclass(slots=True, kw_only=True)
class PushedWindows:
    """The control plane, and the windows that it does not have yet."""

    api: Api
    source: str
    path: str
    """The service's."""
    patience: Patience
    slo: InTime = field(default_factory=lambda: InTime(until_ms=0.0), init=False)
    pushed: int = 0
    _waiting: deque[CountedWindow] = field(
        default_factory=lambda: deque(maxlen=MAX_WINDOWS), init=False
    )
    """Oldest first. The first one may have been stored by a request that lost its answer: it is sent again as it is."""

    def load_slo(self) -> None:
        """Read what counts as in time, which may change at any time. Raises CliError."""
        service = self.api.get(self.path)
        itl_ms = number(service, "spec.slo.itl_ms")
        name = "latency_ms" if itl_ms is None else "ttft_ms"
        until_ms = number(service, f"spec.slo.{name}")
        if until_ms is None:
            raise CliError(f"service {self.path.rpartition('/')[2]} has no SLO")
        self.slo = InTime(until_ms=until_ms, itl_ms=itl_ms)

    def renew_slo(self) -> None:
        """The same; where the control plane does not answer, the last one counts."""
        try:
            self.load_slo()
        except CliError as error:
            self.patience.failed(error)

    def add(self, window: CountedWindow) -> None:
        """Keep a window until it is pushed, in one with the last where that waits, too."""
        joined = self._waiting[-1].plus(window) if len(self._waiting) > 1 else None
        if joined is None:
            self._waiting.append(window)
        else:
            self._waiting[-1] = joined

    def push(self) -> None:
        """Push what waits. Raises CliError for what will not pass."""
        while self._waiting:
            window = self._waiting[0]
            try:
                self.api.post(f"{self.path}/telemetry", window.document(self.source))
            except CliError as error:
                self.patience.failed(error)
                # The server goes on counting; a control plane that comes back learns all of it.
                show_line(f"{window.start}: not pushed yet")
                return
            self._waiting.popleft()
            self.patience.answered()
            self.pushed += 1
            show_line(
                f"{window.start}: {window.arrivals} came, {window.served} were served, {window.in_slo} of them in time"
            )


@dataclass(slots=True, kw_only=True)
class Relay:
    """Reads a server again and again, and pushes what it did since."""

    server: MetricsServer
    plane: PushedWindows
    patience: Patience
    """With the server."""
    before: ServerPage
    """What is counted from."""
    _doubted: ServerPage | None = field(default=None, init=False)
    """Read after it, and maybe of another server."""
    _first_token: Histogram | None = field(default=None, init=False)
    """The newest ones: long answers end when no other one begins."""
    _back: ServerPage | None = field(default=None, init=False)
    """Read after that one: the old server's, or a new one's that has counted more than the old one by now."""

    @property
    def wait_s(self) -> float:
        """Until the next step."""
        return max(self.patience.wait_s, self.plane.patience.wait_s)

    def step(self) -> None:
        """Read once, and push what is new. Raises CliError for what will not pass."""
        try:
            after = self.server.read()
        except CliError as error:
            self.patience.failed(error)
            return
        self.patience.answered()
        grown = self._grown(after)
        if grown is not None:
            self._count(after, grown)
        self.plane.push()

    def _count(self, after: ServerPage, grown: ServerCounts) -> None:
        self.plane.renew_slo()
        stretch = Stretch(begin_s=self.before.at_s, end_s=after.at_s)
        self.before = with_lost(self.before, after)
        # A clock that was set back: no window may be of no length.
        if stretch.end_s > stretch.begin_s:
            first_token = grown.first_token
            if first_token is not None and any(first_token.counts):
                self._first_token = first_token
            for window in make_windows(
                stretch, grown, self.plane.slo, first_token=self._first_token
            ):
                self.plane.add(window)

    def _grown(self, after: ServerPage) -> ServerCounts | None:
        """What it did since; None where only the next page can tell."""
        if self._back is not None:
            return self._settle(self._back, after)
        if self._doubted is not None:
            return self._resolve(self._doubted, after)
        try:
            return self.server.since(self.before, after)
        except MayBeAnother as error:
            show_error(CliError(f"{self.server.url}: {error}; the next page shows it"))
            self._doubted = after
            return None

    def _resolve(self, doubted: ServerPage, after: ServerPage) -> ServerCounts | None:
        """Where the doubted process goes on it took the other one's place; where that one is back there are two."""
        grown = self._same(doubted, after)
        if self._goes_on(after):
            if doubted.started_s is not None:
                error = ValueError("one answered, and then the other")
                raise self.server.refusal(error)
            self._back = after
            return None
        self._doubted = None
        # Without a start its counters fell, so that it began again, at zero.
        if doubted.started_s is None:
            self.before = replace(self.before, page={})
            return self.server.since(None, after)
        # What it did before it was seen may be of any age.
        self.before = doubted
        return grown

    def _settle(self, back: ServerPage, after: ServerPage) -> ServerCounts:
        """Counters that fall again are those of two; others are counted from where they are surely one server's."""
        grown = self._same(back, after)
        self._doubted = self._back = None
        self.before = back
        return grown

    def _goes_on(self, after: ServerPage) -> bool:
        """Whether it may be the server of before the doubt."""
        with suppress(MayBeAnother):
            self.server.since(self.before, after)
            return True
        return False

    def _same(self, before: ServerPage, after: ServerPage) -> ServerCounts:
        try:
            return self.server.since(before, after)
        except MayBeAnother as error:
            raise self.server.refusal(error) from error


def _page(url: str, cli: CliContext) -> ServerPage:
    proxy = proxy_of(cli, url)
    try:
        with http_client(cli, url, proxy) as client:
            answer = client.get(url, timeout=ASK_S).raise_for_status()
            page = read_page(answer.text)
    except (httpx2.HTTPError, httpx2.InvalidURL, NotAPage) as error:
        # The first line: the others lead to a page about the status.
        reason, *_ = str(error).splitlines() or [type(error).__name__]
        through = f", asked through the proxy {proxy.place}" if proxy else ""
        raise CliError(f"{url}{through}: {reason}") from error
    return ServerPage(
        at_s=time.time(), page=page, server_s=_date_s(answer.headers.get("Date"))
    )


def _date_s(date: str | None) -> float | None:
    try:
        found: datetime | None = parsedate_to_datetime(date) if date else None
    except ValueError:
        return None
    return None if found is None else found.timestamp()


def _show(found_page: ServerPage, kind: Kind, served_as: str) -> None:
    page = found_page.page
    found: tuple[GpuCounts, ...] | tuple[ServerCounts, ...]
    found = read_gpus(page) if kind == "dcgm" else (read_server(page, kind, served_as),)
    rows = [
        [name, _text(value)]
        for counts in found
        for name, value in known(counts).items()
    ]
    if not rows:
        raise CliError(
            f"nothing there is known of {kind}",
            hint="give --served-as, the server's own name",
        )
    show_table(["what", ">value"], rows)


def _text(value: Quantity) -> str:
    if isinstance(value, Histogram):
        return f"{sum(value.counts)} requests"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else f"{value:g}"
