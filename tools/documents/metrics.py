"""docs/metrics.md from the metrics themselves; a test keeps the file up to date.

Run: `python -m tools.documents.metrics`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agents.base.exposition import Family
from agents.daemon import metrics as agent_metrics
from agents.router.counts import Counts
from agents.router.metrics import Shown, exposition
from agents.serving.metrics import GAUGES, WorkerMetrics
from app.api.caches import cluster_families
from app.api.caches.request_metrics import ApiMetrics
from app.loop.tick import TickOutcome
from app.serve.loop_metrics import LoopMetrics
from solvers.types.outcome import PlanReport, SolveReport, SolveStatus, Violation

TARGET = Path(__file__).parents[2] / "docs" / "metrics.md"

UNITS = {
    "seconds": "s",
    "ms": "ms",
    "bytes": "bytes",
    "watts": "W",
    "joules": "J",
    "hertz": "Hz",
    "ratio": "0 to 1",
    "usd": "USD",
    "rows": "rows",
    "usd_per_hour": "USD/h",
    "requests_per_second": "1/s",
    "arrivals_per_second": "1/s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One metric, as the document shows it."""

    name: str
    """As PromQL asks for it; of a histogram without `_bucket`, `_sum`, `_count`."""
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def unit(self) -> str:
        """By its name; empty for plain numbers."""
        name = self.name.removesuffix("_total")
        ends = [end for end in UNITS if name.endswith(f"_{end}")]
        return UNITS[max(ends, key=len)] if ends else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPage:
    """Where metrics are read, and what there is."""

    title: str
    where: str
    metrics: tuple[Described, ...]


def places() -> tuple[MetricsPage, ...]:
    """Every place with everything that it shows."""
    return (
        MetricsPage(
            title="API and control loop", where=_API, metrics=_of_text(_process_page())
        ),
        MetricsPage(
            title="Cluster",
            where=_CLUSTER,
            metrics=_of_families(cluster_families.FAMILIES),
        ),
        MetricsPage(
            title="Agent", where=_AGENT, metrics=_of_families(agent_metrics.FAMILIES)
        ),
        MetricsPage(
            title="Router of a node", where=_ROUTER, metrics=_of_text(_router_page())
        ),
        MetricsPage(title="Worker", where=_WORKER, metrics=_of_text(_worker_page())),
    )


def series_names() -> frozenset[str]:
    """Every name that PromQL may ask for."""
    suffixes = {"histogram": ("_bucket", "_sum", "_count")}
    return frozenset(
        f"{metric.name}{suffix}"
        for place in places()
        for metric in place.metrics
        for suffix in suffixes.get(metric.kind, ("",))
    )


def document() -> str:
    """The text of docs/metrics.md."""
    return HEAD + "".join(_section(place) for place in places()) + TAIL


def _section(place: MetricsPage) -> str:
    rows = (
        f"| `{metric.name}` | {metric.kind} | {metric.unit or '–'} | {_labels(metric)} | {metric.text.rstrip('.')} |"
        for metric in place.metrics
    )
    head = "| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n"
    return f"\n## {place.title}\n\n{place.where}\n\n{head}" + "\n".join(rows) + "\n"


def _labels(metric: Described) -> str:
    return ", ".join(f"`{label}`" for label in metric.labels) or "–"


def _of_families(families: Sequence[Family]) -> tuple[Described, ...]:
    return tuple(
        Described(
            name=family.name, kind=family.kind, labels=family.labels, text=family.text
        )
        for family in families
    )


def _of_text(page: str) -> tuple[Described, ...]:
    return tuple(_described(page))


def _described(page: str) -> Iterator[Described]:
    """What a page of examples shows; metrics of the process itself are Prometheus' own and not listed."""
    for family in text_string_to_metric_families(page):
        if not family.name.startswith("plimsoll_") or family.name.endswith("_created"):
            continue
        labels = {label for sample in family.samples for label in sample.labels} - {
            "le"
        }
        total = "_total" if family.type == "counter" else ""
        yield Described(
            name=f"{family.name}{total}",
            kind=family.type,
            labels=tuple(sorted(labels)),
            text=family.documentation,
        )


def _process_page() -> str:
    registry = CollectorRegistry()
    api, loop = ApiMetrics(registry), LoopMetrics(registry)
    api.requests.labels("GET", "/livez", "200").inc()
    api.seconds.labels("GET", "/livez").observe(0.0)
    api.observations.labels("durable").inc()
    api.note_dropped({"services": 1})
    loop.note(_example_tick())
    return generate_latest(registry).decode()


def _example_tick() -> TickOutcome:
    """A tick of which every metric has something to say."""
    step = SolveReport(
        technique="autoscale", method="cp-sat", status=SolveStatus.TIME_LIMIT
    )
    report = PlanReport(
        status="greedy",
        cost_usd_per_hour=1.0,
        lower_bound_usd_per_hour=1.0,
        gap_percent=0.0,
        steps=(step,),
    )
    return TickOutcome(
        state="target",
        policy="joint",
        cost_usd_per_hour=1.0,
        report=report,
        seconds={"total": 0.0},
        violations=(Violation(rule="slo", severity="promise", where="", detail=""),),
    )


def _router_page() -> str:
    shown = Shown(
        service="chat",
        counts=Counts(),
        waiting=0,
        running=0,
        replicas=0,
        replicas_out=0,
    )
    return exposition((shown,), unknown=0)


def _worker_page() -> str:
    metrics = WorkerMetrics()
    for name in GAUGES:
        metrics.observe(name, lambda: 0.0)
    return metrics.text().decode()


HEAD = """# Metrics

Generated from the metrics themselves by `python -m tools.documents.metrics`; do not edit.

Every part shows what it knows in Prometheus' text format. Names say their unit, counters end in `_total`. What does not
exist any more has no series: when a service, GPU or node is gone, so are its figures. Labels are bounded, as each
section says.

- `deploy/prometheus/prometheus.yml` scrapes API, cluster and agents, and says how to scrape routers; `rules.yml` and
  `alerts.yml` next to it are recording and alert rules.
- `deploy/grafana/` holds dashboards: fleet, service SLO, decisions and solver, cost and energy, agents.
- Agents are found by Prometheus' HTTP service discovery: `GET /api/v1/metrics/targets`.
"""

_API = """`GET /metrics` of the API, without a token. Under `plimsoll serve` the control loop is a process next to the
API; it tells what each tick did, so its figures stand here, too. A controller without an API
(`plimsoll controller`) shows its own at `GET /metrics` of `--metrics-port` or
`PLIMSOLL_CONTROLLER_METRICS_PORT`, without a token, by default nowhere; with `--metrics-host` or
`PLIMSOLL_CONTROLLER_METRICS_HOST` not on this machine alone. Of several that are served only one leads and ticks:
ask for the `max` over them. Bounded: routes are templates, policies and rules are those of the program, at most 64
combinations of problem, solver and status."""

_CLUSTER = """`GET /api/v1/metrics` of the API, with a token of scope viewer that sees all projects, because it says
what services do and cost. Read from the database at most every 5 seconds; every API process says the same, so scrape
one. Bounded: the first 1,000 nodes, GPUs and services by name; `plimsoll_left_out` counts the others."""

_AGENT = """`GET /metrics` at `plimsoll-agent --metrics-port 9410`; off by default, without a token, and on the node
alone unless `--metrics-host` says otherwise. The control plane is told the port and hands it to Prometheus with
the address that the agent reports from; agents behind a proxy belong in Prometheus' own configuration.
Bounded by the wire's own limits: 64 GPUs, 1,024 replicas, 1,280 parts of GPUs."""

_ROUTER = """`GET /metrics` at the port at which the node takes requests. Bounded: the services of the routing table,
256 by name and the rest as `(others)`."""

_WORKER = """`GET /metrics` of `plimsoll worker`, besides Prometheus' usual `process_…`. Those that an agent starts
listen on the node alone, at ports of the moment: scrape those that you start yourself. Bounded: every label has a
closed set of values."""

TAIL = """
## Metrics of others

`agents/replicas/server_names.py` knows what vLLM, Triton, MLServer and DCGM's exporter call things, old names and
new: agents read by it what the servers that they start have done. `plimsoll relay URL --kind dcgm` shows what a page
of another program means, without what DCGM marks as blank. `plimsoll relay URL --kind vllm --service NAME` pushes what
a vLLM that no agent started does, as below:

* A request arrived if it was answered or refused (`vllm:admission_rejections_total`), waits or runs, or got its first
  token and left. vLLM counts a client that leaves before its first token nowhere, so such requests are missing.
* The histogram's buckets say how many were in time, as if requests were spread evenly over a bucket. The SLO is read
  again for each window. Of a service of kind llm it is that of first tokens, and that of the requests' mean gaps; the
  one that fewer kept counts. First tokens that came in the window stand for those of the requests that ended in it.
* vLLM counts each of a request's `n` answers as a request, and its prompt each time.
* Each series is compared with itself, and differences are summed. After a restart, which a new
  `process_start_time_seconds` tells, everything counts from zero; so does one engine of several whose counters fell.
  Where counters fall otherwise, two servers answer at the address: `relay` refuses that. Relay each server, or each
  Pod, by an address of its own with a `--source` of its own, never a load balancer's. In a rolling update the new
  server is followed from its first page on. vLLM with several API processes tells no start: the next page decides.
* Once it has begun, `relay` bears that the server or the control plane answers nothing, or 503, or a page without the
  service. It asks less often, at least every 30 s, and pushes later what was counted meanwhile, up to a day of it.

## Services that no agent serves

`POST /api/v1/services/NAME/telemetry` takes the counts of one window from their holder, with a token of scope
operator that sees the service's project:

    {"source": "gateway-1", "window_start": "2026-03-01T12:00:00Z", "window_s": 10, "arrivals": 100, "served": 98,
     "in_slo": 90, "rejected": 2, "latency_ms": [{"up_to_ms": 50, "count": 90}, {"up_to_ms": 200, "count": 8}]}

It counts like what agents see: forecasts, plans and SLO reports follow. The same window of the same source again
changes nothing; one that overlaps another with other figures is refused (409). A window must have ended and be younger
than a day; a service takes 64 sources, each with at most 1,000,000 requests per second: more is the total of a counter,
which would plan the entire fleet. Count every request that arrived, those that were refused or left among them.
Do not push what an agent's router counts already: it would count twice.

Nothing pushed is not nothing asked: push windows of 0 requests, too. While nothing comes, the planned rate stays,
in mode `advise` the advised replicas stay, and the service's condition `TelemetryAvailable` is False. Nodes without a
replica of the service, which hear of no request either, change nothing of that for two days after the last push.

## Traces

With `pip install 'plimsoll[otel]'` and `OTEL_EXPORTER_OTLP_ENDPOINT` set, each tick of the control loop is a trace:
`tick`, in it `tick.snapshot`, `tick.forecast`, `tick.decide`, `tick.record`, `tick.push` with the loop's own number of
the step (`plimsoll.step`), and in the decision one `solve …` per solve with `plimsoll.problem`, `plimsoll.solver`,
`plimsoll.status`. `OTEL_SDK_DISABLED`, `OTEL_TRACES_EXPORTER`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`,
`OTEL_EXPORTER_OTLP_HEADERS` and `OTEL_BSP_…` mean what OpenTelemetry says. Spans go by OTLP over HTTP.
"""


if __name__ == "__main__":
    TARGET.write_text(document(), encoding="utf-8")
