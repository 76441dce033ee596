"""Metrics of the cluster and of the API, and where those of the agents are."""

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest

from agents.base.protocol import METRICS_HEADER
from app.api.caches.cluster_metrics import ClusterPage
from app.api.http.parts import ApiParts
from tests.integration.api_harness import (
    NOW,
    Api,
    Prepared,
    observation,
    reading,
    service,
)
from tests.integration.test_api_tasks import task

pytestmark = pytest.mark.integration

CHAT = 'project="default",service="chat"'


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.put("services/chat", service())
        running.put("services/quiet", service("quiet", "team-a"))
        yield running


def scraped_text(api: Api, token: str = "viewer") -> str:
    """A page that is made again."""
    parts: ApiParts = api.client.app.state.parts  # type: ignore[attr-defined]
    parts.cluster_page.made_s = ClusterPage().made_s
    answer = api.call("GET", "metrics", token=token)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return answer.text


def scraped(api: Api, token: str = "viewer") -> dict[str, float]:
    """Series with their values."""
    pairs = (
        line.rpartition(" ")
        for line in scraped_text(api, token).splitlines()
        if not line.startswith("#")
    )
    return {
        re.sub(r"^plimsoll_", "", series): float(value) for series, _, value in pairs
    }


def planned(api: Api) -> None:
    """A plan in force, and an agent that tells what it sees."""
    api.sync(services=[reading(arrivals=100)])
    assert api.tick().state == "target"
    api.clock.advance(2.0)
    # The first observation again: a repetition changes nothing, and its answer has the command.
    command = api.command()
    (gpu,) = (each for each in command["gpus"] if each["replicas"])
    chat = {
        "id": gpu["replicas"][0]["id"],
        "service": "chat",
        "gpu_index": gpu["index"],
        "state": "ready",
        "sm_percent": 50,
        "batch": 1,
        "memory_mib": 1200,
    }
    api.sync(
        sequence=2,
        window_start_s=NOW.timestamp(),
        services=[reading(arrivals=300)],
        replicas=[chat],
    )


def test_a_service_is_shown_as_it_is_planned_and_as_it_is(api: Api) -> None:
    planned(api)
    shown = scraped(api)
    assert shown[f'service_desired_replicas{{gpu_type="T4",{CHAT}}}'] >= 1
    for series, value in (
        (f'service_current_replicas{{gpu_type="T4",{CHAT},state="ready"}}', 1),
        # The first window began in the hour before.
        (f"service_requests_total{{{CHAT}}}", 300),
        (f"service_in_slo_total{{{CHAT}}}", 300),
        (f"service_slo_seconds{{{CHAT}}}", 0.1),
        (f"service_slo_ratio{{{CHAT}}}", 0.98),
        (f"service_slo_compliance_ratio{{{CHAT}}}", 1.0),
        (f"service_telemetry_stale{{{CHAT}}}", 0),
        ('service_telemetry_stale{project="team-a",service="quiet"}', 1),
    ):
        assert shown[series] == value, series
    rates = [series for series in shown if "arrivals_per_second" in series]
    assert not any("quiet" in series for series in rates)


@pytest.mark.parametrize("whose", ["service", "policy"])
def test_what_is_only_advised_is_shown_for_whoever_follows_it(
    api: Api, whose: str
) -> None:
    """KEDA and HPA, say, which then run the replicas."""
    own = {"mode": "advise"} if whose == "service" else {}
    api.put("services/chat", service(scaling={"min_replicas": 2}, **own))
    if whose == "policy":
        api.put_policy(mode="advise")
    api.sync(services=[reading()])
    assert api.tick().state == "proposed"
    shown = scraped(api)
    assert shown[f'service_desired_replicas{{gpu_type="T4",{CHAT}}}'] == 2
    assert f'service_cost_usd_per_hour{{gpu_type="T4",{CHAT}}}' not in shown


def advised(api: Api) -> dict[str, float]:
    """Replicas that the metrics ask for, by GPU type."""
    found = [
        (series, value)
        for series, value in scraped(api).items()
        if series.startswith("service_desired_replicas") and CHAT in series
    ]
    return {series.split('"')[1]: value for series, value in found}


def test_what_is_advised_no_longer_is_shown_as_0(api: Api) -> None:
    """Else what follows it could not tell it from a control plane that is away, and would never scale down."""
    api.put("services/chat", service(mode="advise"))
    sequence = 0
    for arrivals, windows in ((0, 2), (100, 10), (0, 160)):
        for _ in range(windows):
            sequence += 1
            began_s = api.clock.now().timestamp() - 2.0
            seen = {**reading(arrivals=arrivals), "latency_buckets": []}
            api.sync(sequence=sequence, window_start_s=began_s, services=[seen])
            api.clock.advance(2.0)
        # The target is an empty plan first: another one would outdate what is proposed by itself.
        api.tick()
        assert (advised(api)["T4"] > 0) == bool(arrivals)


def push(api: Api, *, rate_rps: float, window_s: float = 10.0) -> None:
    """What a gateway counted in the last seconds."""
    began = api.clock.now() - timedelta(seconds=window_s)
    count = round(rate_rps * window_s)
    body = {
        "source": "gateway",
        "window_start": began.isoformat(),
        "window_s": window_s,
        **dict.fromkeys(("arrivals", "served", "in_slo"), count),
    }
    api.call("POST", "services/chat/telemetry", body, token="operator")


def pass_time(
    api: Api, *, seconds: float, sequence: int, restarted: bool = False
) -> None:
    """The node reports of itself alone, not of the service, and the loop ticks, maybe as a new process."""
    api.clock.advance(seconds)
    api.sync(
        sequence=sequence, window_start_s=api.clock.now().timestamp() - 2.0, services=[]
    )
    api.tick(restarted=restarted)


def test_advice_stays_while_nothing_is_heard(api: Api) -> None:
    """Ten minutes, with a change of the catalogue that outdates what was proposed, and a restart of the loop."""
    api.put("services/chat", service(mode="advise", scaling={"min_replicas": 0}))
    for _ in range(5):
        api.clock.advance(10.0)
        push(api, rate_rps=200.0)
    pass_time(api, seconds=1.0, sequence=1)
    before = advised(api)
    assert before["T4"] > 0
    for minute in range(10):
        pass_time(api, seconds=60.0, sequence=2 + minute, restarted=minute == 7)
        assert advised(api) == before, minute
        if minute == 3:
            api.put("services/other", service("other"))
            # Before the next tick, too.
            assert advised(api) == before
    status = api.get("services/chat")["status"]
    (telemetry,) = (
        each for each in status["conditions"] if each["type"] == "TelemetryAvailable"
    )
    assert (telemetry["status"], telemetry["reason"]) == ("False", "MetricsMissing")
    assert "what is advised stays" in telemetry["message"]


def test_of_a_service_that_was_never_heard_no_advice_is_shown(api: Api) -> None:
    """Its replicas run elsewhere already: 0 would end them before the first figure is pushed."""
    api.put("services/chat", service(mode="advise", scaling={"min_replicas": 0}))
    for sequence in (1, 2):
        pass_time(api, seconds=30.0, sequence=sequence)
        assert advised(api) == {}
    push(api, rate_rps=0.0)
    pass_time(api, seconds=1.0, sequence=3)
    assert advised(api) == {"T4": 0.0}


def test_costs_are_those_of_the_reporting_view(api: Api) -> None:
    planned(api)
    api.clock.advance(1200.0)
    api.sync(sequence=3, window_start_s=api.clock.now().timestamp() - 2.0)
    shown = scraped(api)
    report = api.get("reports/cost_by_service_hour")
    rows = [dict(zip(report["columns"], row, strict=True)) for row in report["rows"]]
    assert {row["service"] for row in rows} == {"chat", "(idle)"}
    for row in rows:
        series = f'service_cost_usd_total{{project="{row["project"]}",service="{row["service"]}"}}'
        assert shown[series] == pytest.approx(float(row["cost_usd"]), rel=1e-12)
        # What its GPU has left is the service's: nothing is idle.
        assert (shown[series] > 0) == (row["service"] == "chat")


def test_nodes_and_gpus_are_shown_with_their_limits_while_they_are_heard(
    api: Api,
) -> None:
    planned(api)
    shown = scraped(api)
    on_gpu = '{gpu="n1/gpu-0",gpu_type="T4",node="n1"}'
    for series, value in (
        ('node_heard{node="n1"}', 1),
        ('node_silent_seconds{node="n1"}', 0),
        ('cluster_nodes{state="heard"}', 1),
        (f"gpu_power_limit_watts{on_gpu}", 70),
        (f"gpu_clock_limit_hertz{on_gpu}", 1.59e9),
        (f"gpu_power_watts{on_gpu}", 12),
        ('left_out{kind="gpu"}', 0),
    ):
        assert shown[series] == value, series
    assert 0 < shown[f"gpu_sm_granted_ratio{on_gpu}"] <= 1
    assert any("quiet" in series for series in shown)
    assert api.status("DELETE", "services/quiet", If_Match="*") == 204
    api.clock.advance(600.0)
    shown = scraped(api)
    assert not any("quiet" in series for series in shown)
    assert shown['node_heard{node="n1"}'] == 0
    assert shown['node_silent_seconds{node="n1"}'] == 600
    assert shown['cluster_nodes{state="silent"}'] == 1
    # An old reading is no reading.
    assert not any(series.startswith("gpu_power_watts") for series in shown)


def test_what_is_beyond_the_series_that_are_shown_is_counted(api: Api) -> None:
    planned(api)
    before = scraped(api)
    api.execute(
        # Before n1 by name, so that its own series are the ones left out; every second one was heard lately.
        "INSERT INTO node (id, created_at, last_seen_at) SELECT 'a' || n, created_at, "
        "CASE WHEN n % 2 = 0 THEN last_seen_at END FROM node, generate_series(1, 1004) n",
        "INSERT INTO gpu SELECT (jsonb_populate_record(gpu, jsonb_build_object("
        "'id', 'a' || n || '/gpu-0', 'node', 'a' || n))).* "
        "FROM gpu, generate_series(1, 1004) n WHERE id = 'n1/gpu-0'",
        "INSERT INTO allocation OVERRIDING SYSTEM VALUE "
        "SELECT (jsonb_populate_record(allocation, jsonb_build_object("
        "'id', 1000 + n, 'gpu', 'a' || n || '/gpu-0', 'node', 'a' || n))).* "
        "FROM allocation, generate_series(1, 1004) n WHERE gpu = 'n1/gpu-0'",
        "INSERT INTO service (name, project, generation, created_at) "
        "SELECT 's' || n, project, generation, created_at "
        "FROM service, generate_series(1, 1004) n WHERE name = 'quiet'",
        "INSERT INTO service_version SELECT (jsonb_populate_record(service_version, "
        "jsonb_build_object('service', 's' || n))).* "
        "FROM service_version, generate_series(1, 1004) n WHERE service = 'quiet'",
    )
    shown = scraped(api)
    assert [
        shown[f'left_out{{kind="{kind}"}}'] for kind in ("node", "gpu", "service")
    ] == [5, 6, 6]
    assert sum("node_heard" in series for series in shown) == 1000
    # n1, and 502 of the others.
    assert shown['cluster_nodes{state="heard"}'] == 503
    assert shown['cluster_nodes{state="silent"}'] == 502
    used = 'cluster_gpus{gpu_type="T4",state="used"}'
    assert shown[used] == before[used] + 1004


def told(api: Api, address: str | None, sequence: int) -> list[object]:
    """What scrapers are told after an agent said where its metrics are."""
    headers = {} if address is None else {METRICS_HEADER.replace("-", "_"): address}
    answer = api.call(
        "POST",
        "nodes/n1/sync",
        observation(sequence=sequence),
        token="agent",
        **headers,
    )
    assert answer.status_code == 200, answer.text
    targets: list[object] = api.get("metrics/targets", token="viewer")
    return targets


def test_prometheus_finds_the_agents_that_show_metrics(api: Api) -> None:
    assert told(api, None, 1) == []
    assert told(api, "10.0.0.7:9410", 2) == [
        {"targets": ["10.0.0.7:9410"], "labels": {"node": "n1"}}
    ]
    assert told(api, "gpu-7:9411", 3) == [
        {"targets": ["10.0.0.7:9411"], "labels": {"node": "n1"}}
    ]
    assert told(api, None, 4) == []
    no_addresses = ("http://evil/", "a b:1", ":9410", "host", "x" * 300 + ":1")
    for sequence, address in enumerate((*no_addresses, "169.254.169.254:80"), start=5):
        assert told(api, address, sequence) == [], address


def test_tasks_that_run_nowhere_are_counted_by_their_phase(api: Api) -> None:
    for name in ("waits", "ended"):
        api.put(f"tasks/{name}", task(name))
    assert api.status("POST", "tasks/ended/cancel") == 200
    found = scraped(api)
    assert found['tasks{kind="offline",state="queued"}'] == 1.0
    assert found['tasks{kind="offline",state="cancelled"}'] == 1.0
