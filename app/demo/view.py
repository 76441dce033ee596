"""The demo's live terminal view: services, GPUs, and what it costs next to the baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
BAR_CELLS = 20
"""One cell is 5 % of the SMs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLine:
    """One service now."""

    name: str
    arrival_rate_rps: float
    latency_ms: float | None
    """At the SLO's percentile, over the last minute; None when nothing finished."""
    slo_ms: float
    percentile: float
    attainment: float | None
    """Over the whole run so far."""
    replicas: int
    planned_replicas: int
    sm_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLine:
    """One GPU now."""

    name: str
    gpu_type: str
    shares: tuple[tuple[str, float], ...]
    """(service, SM percent) of each replica."""
    power_w: float
    power_cap_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Everything that one picture shows."""

    trace_s: float
    duration_s: float
    speed: float
    """Trace seconds per second so far."""
    generation: int
    last_change: str
    services: Sequence[ServiceLine]
    gpus: Sequence[GpuLine]
    cost_now_usd_per_hour: float
    cost_usd: float
    baseline_now_usd_per_hour: float | None = None
    """None while the baseline's simulation is behind."""
    baseline_usd: float | None = None


def render(frame: Frame) -> RenderableType:
    """The picture; fits 80 columns."""
    colours = {
        line.name: COLOURS[index % len(COLOURS)]
        for index, line in enumerate(frame.services)
    }
    return Group(
        _header(frame),
        Panel(
            _services(frame.services, colours),
            title="services",
            title_align="left",
            border_style="dim",
        ),
        Panel(
            _gpus(frame.gpus, colours),
            title="GPUs: SM percent by service",
            title_align="left",
            border_style="dim",
        ),
        _costs(frame),
        Text(
            f" last change: {frame.last_change}",
            style="dim",
            no_wrap=True,
            overflow="ellipsis",
        ),
    )


def line(frame: Frame) -> str:
    """The picture in one line, for logs."""
    missing = [
        service.name
        for service in frame.services
        # Without any finished request nothing was missed yet.
        if (service.attainment or 1.0) < service.percentile
    ]
    return (
        f"{_clock(frame.trace_s)}  {sum(service.arrival_rate_rps for service in frame.services):.0f} rps  "
        f"{sum(bool(gpu.shares) for gpu in frame.gpus)} GPUs  {frame.cost_now_usd_per_hour:.2f} USD/h "
        f"(k8s_hpa {_usd(frame.baseline_now_usd_per_hour)})  "
        f"{'below the SLO so far: ' + ', '.join(missing) if missing else 'every SLO met so far'}"
    )


def _header(frame: Frame) -> Text:
    done = min(1.0, frame.trace_s / frame.duration_s)
    filled = round(done * 30)
    text = Text(" Plimsoll ", style="bold reverse")
    text.append(
        f"  {_clock(frame.trace_s)} of {_clock(frame.duration_s)} ", style="bold"
    )
    text.append("━" * filled, style="green")
    text.append("━" * (30 - filled), style="dim")
    text.append(f"  {frame.speed:.0f}× · plan {frame.generation}", style="dim")
    return text


def _services(lines: Sequence[ServiceLine], colours: Mapping[str, str]) -> Table:
    table = Table(box=None, expand=True, pad_edge=False)
    table.add_column("service", no_wrap=True)
    for heading in ("rate", "latency", "SLO", "in SLO", "replicas", "SM %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(
            Text(f"{line.name[:1]} {line.name}", style=colours[line.name]),
            f"{line.arrival_rate_rps:.0f} rps",
            _latency(line),
            f"p{100 * line.percentile:g} {line.slo_ms:.0f} ms",
            _attainment(line),
            str(line.replicas)
            if line.replicas == line.planned_replicas
            else f"{line.replicas}→{line.planned_replicas}",
            f"{line.sm_percent:.0f}",
        )
    return table


def _latency(line: ServiceLine) -> Text:
    if line.latency_ms is None:
        return Text("–", style="dim")
    return Text(
        f"{line.latency_ms:.0f} ms",
        style="green" if line.latency_ms <= line.slo_ms else "bold red",
    )


def _attainment(line: ServiceLine) -> Text:
    if line.attainment is None:
        return Text("–", style="dim")
    return Text(
        f"{100 * line.attainment:.2f} %",
        style="green" if line.attainment >= line.percentile else "bold red",
    )


def _gpus(lines: Sequence[GpuLine], colours: Mapping[str, str]) -> Table:
    """Two GPUs a row."""
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    # Down the first column, then the second: the nodes of one type stay together.
    half = (len(lines) + 1) // 2
    for index in range(half):
        right = (
            _gpu(lines[index + half], colours)
            if index + half < len(lines)
            else Text("")
        )
        grid.add_row(_gpu(lines[index], colours), right)
    return grid


def _gpu(line: GpuLine, colours: Mapping[str, str]) -> Text:
    text = Text(f"{line.name:<8.8} ")
    cells = 0
    for service, sm_percent in line.shares:
        width = round(sm_percent / 100 * BAR_CELLS)
        # Letters as well as colours, for terminals and eyes without them.
        text.append(
            service[:1] * width, style=f"black on {colours.get(service, 'white')}"
        )
        cells += width
    # Rounded shares may be wider than the bar.
    text.append("·" * max(0, BAR_CELLS - cells), style="dim")
    used = f"{line.power_w:3.0f}/{line.power_cap_w:.0f}W"
    text.append(
        f" {used}" if line.shares else " off", style="" if line.shares else "dim"
    )
    return text


def _costs(frame: Frame) -> Text:
    text = Text(" now ")
    text.append(f"{frame.cost_now_usd_per_hour:.2f} USD/h", style="bold green")
    text.append(f", k8s_hpa {_usd(frame.baseline_now_usd_per_hour)} on the same load")
    text.append(
        f" · so far {frame.cost_usd:.2f} to {_usd(frame.baseline_usd)} USD", style="dim"
    )
    return text


def _usd(amount: float | None) -> str:
    return "–" if amount is None else f"{amount:.2f}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
