"""One observation stops no telemetry: what is too large is refused, and what cannot be kept is refused alone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.db.fleet.agent_boots import NEW_BOOTS_PER_HOUR
from app.db.fleet.agent_events import MAX_REFUSALS
from tests.integration.api_harness import (
    NOW,
    Api,
    Prepared,
    reading,
    service,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.put("services/chat", service())
        yield running


REPLICA = {
    "id": "chat-1",
    "service": "chat",
    "gpu_index": 0,
    "state": "ready",
    "sm_percent": 50.0,
    "batch": 8,
    "memory_mib": 900.0,
}
TASK = {
    "name": "nightly",
    "gpu_index": 0,
    "state": "running",
    "sm_percent": 50.0,
    "batch": 8,
    "done_iterations": 1.0,
}
BUCKETS = [[bucket, 1] for bucket in range(80)]


TOO_LARGE: list[tuple[dict[str, Any], str]] = [
    ({"replicas": [{**REPLICA, "batch": 10**400}]}, "/replicas/0/batch"),
    ({"tasks": [{**TASK, "batch": 10**400}]}, "/tasks/0/batch"),
    ({"tasks": [{**TASK, "done_iterations": 1e300}]}, "/tasks/0/done_iterations"),
    ({"repartition": [2**31]}, "/repartition/0"),
    ({"window_s": 5e-324}, "/window_s"),
    ({"agent_version": "v" * 10_000}, "/agent_version"),
    ({"problems": ["p" * 10_000]}, "/problems/0"),
    (
        {"services": [{**reading(), "latency_buckets": [[3, 1], [3, 1]]}]},
        "/services/0/latency_buckets",
    ),
    (
        {"services": [{**reading(), "latency_buckets": BUCKETS * 2}]},
        "/services/0/latency_buckets",
    ),
    (
        {"services": [{**reading(), "latency_buckets": BUCKETS}] * 1000},
        "/services",
    ),
]


def test_what_is_too_large_is_refused_with_the_name_of_its_field(api: Api) -> None:
    for fields, pointer in TOO_LARGE:
        answer = api.sync(**fields)
        assert answer.status_code == 422, pointer
        assert [each["pointer"] for each in answer.json()["errors"]] == [pointer]
    assert api.sync().status_code == 200


def test_an_observation_that_fails_the_commit_is_refused_alone_and_honest_nodes_go_on(
    api: Api,
) -> None:
    nodes = ("n7", "n8", "n9")
    for node in nodes:
        assert api.sync(node).status_code == 200
    # A fault in the middle of the transaction that no bound of the protocol knows.
    odd = "CHECK (node <> 'n8' OR sequence < 2)"
    api.execute(f"ALTER TABLE observation ADD CONSTRAINT odd {odd}")

    def report(node: str) -> int:
        return api.sync(node, sequence=2).status_code

    with ThreadPoolExecutor() as threads:
        for _ in range(2):
            assert list(threads.map(report, nodes)) == [200, 422, 200]
    (event,) = api.get("events?kind=ObservationRefused")["items"]
    assert event["subject"] == "node/n8"
    page = api.client.get("/metrics").text
    assert 'plimsoll_sync_observations_total{result="refused"} 2.0' in page


def test_acknowledgements_of_commands_that_never_were_leave_no_line_and_no_row(
    api: Api,
) -> None:
    refusals = [
        {"generation": number, "status": "refused", "detail": f"no {number}"}
        for number in range(1, 17)
    ]
    assert api.sync(acks=refusals).status_code == 200
    assert api.get("events?kind=CommandRefused")["items"] == []
    assert api.execute("SELECT count(*) FROM acknowledgement") == [(0,)]
    page = api.client.get("/metrics").text
    assert 'plimsoll_sync_dropped_readings_total{kind="acks"} 16.0' in page


def test_a_command_that_is_refused_for_ever_new_reasons_leaves_few_lines(
    api: Api,
) -> None:
    api.sync(services=[reading()])
    api.tick()
    for sequence in range(2, 2 * MAX_REFUSALS + 2):
        refusal = {"generation": 1, "status": "refused", "detail": f"no {sequence}"}
        assert api.sync(sequence=sequence, acks=[refusal]).status_code == 200
    lines = api.get("events?kind=CommandRefused")["items"]
    assert len(lines) == MAX_REFUSALS


def test_a_node_that_starts_its_agent_too_often_is_refused_alone_with_its_new_starts(
    api: Api,
) -> None:
    assert [api.sync(node, boot="old").status_code for node in ("n1", "n9")] == [
        200
    ] * 2
    api.execute(
        "INSERT INTO agent_boot (node, boot, first_seen_at) "
        f"SELECT 'n1', 'b' || n, '{NOW}' FROM generate_series(2, {NEW_BOOTS_PER_HOUR}) n",
    )
    answer = api.sync(boot="another")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/boot"
    for node in ("n1", "n9"):
        assert api.sync(node, boot="old", sequence=2).status_code == 200
    assert api.sync("n9", boot="another").status_code == 200
    assert len(api.get("events?kind=ObservationRefused")["items"]) == 1
    # An hour later it may start again.
    api.clock.advance(3601.0)
    assert api.sync(boot="another", sequence=3).status_code == 200


def test_services_that_never_existed_leave_no_rows_and_a_metric_says_so(
    api: Api,
) -> None:
    # 38 KB of these took 14 s and left 120,000 rows.
    strangers = [{**reading(), "service": f"s{number}"} for number in range(200)]
    start_s = NOW.timestamp() - 3600.0
    answer = api.sync(
        services=[reading(), *strangers], window_start_s=start_s, window_s=3600.0
    )
    assert answer.status_code == 200
    for table in ("observation", "window", "step", "hour"):
        names = api.execute(f"SELECT DISTINCT service FROM service_{table}")
        assert names == [("chat",)]
    page = api.client.get("/metrics").text
    assert 'plimsoll_sync_dropped_readings_total{kind="services"} 200.0' in page
