"""Telemetry that is pushed: counted once, with what agents see, and only where it can be true."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from agents.base.protocol import Observation, ReplicaReading, ServiceReading
from app.db.fleet.pushed_telemetry import MAX_SOURCES
from app.db.fleet.windows import _only_seen
from tests.integration.api_harness import NOW, Api, Prepared, reading, service

pytestmark = pytest.mark.integration

A_REPLICA = ReplicaReading(
    id="chat-1",
    service="chat",
    gpu_index=0,
    state="ready",
    sm_percent=20.0,
    batch=8,
    memory_mib=1000.0,
)


@pytest.fixture(scope="module")
def refusing(small_fleet: Prepared) -> Iterator[Api]:
    """An API that takes nothing of what tests push to it."""
    with small_fleet.running_api() as running:
        running.put("services/chat", service(project="team-a"))
        yield running


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.put("services/chat", service(project="team-a"))
        yield running


def window(start_s: float = -10.0, **fields: object) -> dict[str, Any]:
    """A window of ten seconds that ends now: 100 requests, 90 of them answered in time."""
    base = {
        "source": "gateway-1",
        "window_start": datetime.fromtimestamp(
            NOW.timestamp() + start_s, UTC
        ).isoformat(),
        "window_s": 10.0,
        "arrivals": 100,
        "served": 98,
        "in_slo": 90,
        "rejected": 2,
        "latency_ms": [
            {"up_to_ms": 50, "count": 90},
            {"up_to_ms": 200, "count": 7},
            {"count": 1},
        ],
    }
    return {**base, **fields}


def pushed(api: Api, body: dict[str, Any], token: str = "operator") -> tuple[int, Any]:
    answer = api.call("POST", "services/chat/telemetry", body, token=token)
    return answer.status_code, answer.json()


def sums(api: Api) -> tuple[int, ...]:
    """Arrivals, served, in time and rejected, over all windows and over all hours: both the same."""
    columns = "sum(arrivals), sum(served), sum(in_slo), sum(rejected)"
    windows, hours = (
        api.execute(f"SELECT {columns} FROM service_{table}")[0]
        for table in ("window", "hour")
    )
    assert windows == hours
    return tuple(int(each or 0) for each in windows)


def test_what_is_pushed_is_what_the_service_did(api: Api) -> None:
    assert pushed(api, window()) == (
        200,
        {
            "service": "chat",
            "source": "gateway-1",
            "window_start": "2026-03-01T11:59:50Z",
            "stored": True,
        },
    )
    # The same window again changes nothing.
    assert [pushed(api, window())[1]["stored"] for _ in range(2)] == [False, False]
    assert sums(api) == (100, 98, 90, 2)
    seen = api.get("services/chat")["status"]["reading"]
    assert seen["arrival_rate_rps"] == pytest.approx(10.0)
    assert seen["attainment"] == pytest.approx(0.9)
    assert seen["latency_ms"] >= 200


def test_sources_add_up_and_so_does_what_agents_see(api: Api) -> None:
    api.sync(services=[reading(arrivals=5)])
    pushed(api, window())
    pushed(api, window(source="gateway-2"))
    pushed(api, window(-20.0))
    assert sums(api) == (305, 299, 275, 6)


def heard(api: Api) -> int:
    """Windows of the loop in which anything is known of the service."""
    return int(api.execute("SELECT count(*) FROM service_window")[0][0])


def test_a_node_without_a_replica_hears_nothing_where_others_count(api: Api) -> None:
    sequences = count(1)

    def news(arrivals: int) -> int:
        """Windows in which more is known of the service, once a node has told of it."""
        number, before = next(sequences), heard(api)
        start_s = NOW.timestamp() - 900.0 + 2.0 * number
        seen = reading(arrivals=arrivals)
        api.sync(sequence=number, window_start_s=start_s, services=[seen])
        return heard(api) - before

    assert news(0)
    pushed(api, window(-1000.0))
    assert not news(0), "that nothing came to the node was taken for no load"
    assert news(1)


def test_a_node_with_a_replica_is_no_onlooker() -> None:
    idle = ServiceReading(service="chat", arrivals=0, served=0, in_slo=0)
    seen = Observation(
        node="n1",
        boot="b",
        sequence=1,
        window_start_s=0.0,
        window_s=1.0,
        generation=1,
        services=(idle, replace(idle, service="tag", queued=1)),
    )
    assert list(_only_seen(seen)) == ["chat"]
    assert not list(_only_seen(replace(seen, replicas=(A_REPLICA,))))


def test_a_window_that_contradicts_another_is_refused(api: Api) -> None:
    pushed(api, window())
    for body in (window(arrivals=101), window(-15.0), window(-5.0, window_s=5.0)):
        status, answer = pushed(api, body)
        assert (status, "must not overlap" in answer["detail"]) == (409, True)
        assert sums(api) == (100, 98, 90, 2)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (window(0.0), "/window_start"),
        (window(-90_000.0), "/window_start"),
        (window(in_slo=99), "/in_slo"),
        (window(latency_ms=[{"up_to_ms": 5, "count": 99}]), "/latency_ms"),
        (window(window_s=0.5), "/window_s"),
        (window(arrivals=-1), "/arrivals"),
        (window(arrivals=10**12, window_s=1.0), "/arrivals"),
        (window(served=10_000_001, arrivals=10_000_000), "/served"),
        (window(rejected=10_000_001), "/rejected"),
        (window(source="Not a name"), "/source"),
        (window(colour="red"), "/colour"),
        (window(latency_ms=[{"up_to_ms": 0, "count": 1}]), "/latency_ms/0/up_to_ms"),
    ],
)
def test_what_cannot_be_is_refused_with_the_name_of_its_field(
    refusing: Api, body: dict[str, Any], pointer: str
) -> None:
    status, answer = pushed(refusing, body)
    assert (status, answer["errors"][0]["pointer"]) == (422, pointer)
    assert sums(refusing) == (0, 0, 0, 0)


def test_the_sources_of_a_service_are_bounded_and_those_that_are_there_go_on(
    api: Api,
) -> None:
    for number in range(MAX_SOURCES):
        assert pushed(api, window(source=f"gateway-{number}"))[0] == 200
    status, answer = pushed(api, window(source="one-more"))
    assert (status, "add up their counts" in answer["detail"]) == (409, True)
    assert pushed(api, window(-20.0))[0] == 200


def test_the_total_of_a_counter_is_refused_in_words_and_a_busy_gateway_is_not(
    api: Api,
) -> None:
    status, answer = pushed(api, window(arrivals=10**12))
    assert status == 422
    assert "more than 1,000,000 requests per second" in answer["detail"]
    assert "not the total of a counter" in answer["detail"]
    assert pushed(api, window(arrivals=10_000_000))[0] == 200
