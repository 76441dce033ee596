"""Leases and wrong clocks over the sync endpoint, with the real application and database."""

from collections.abc import Iterator

import pytest

from agents.base.protocol import TIME_HEADER
from app.api.fleet.sync import SKEW_HEADER
from app.db.postgres_store import PostgresStore
from app.store.store import ServiceWindow
from tests.integration.api_harness import (
    NOW,
    Api,
    Prepared,
    observation,
    reading,
    service,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.put("services/chat", service())
        yield running


def _windows(api: Api) -> tuple[ServiceWindow, ...]:
    """What the control loop would see now of the service."""
    store, now = PostgresStore(api.engine), api.clock.now()
    return api.on_engine(lambda _: store.load_snapshot(now)).windows


@pytest.mark.parametrize("off_s", [3600.0, -3600.0])
def test_what_a_node_with_a_wrong_clock_counts_is_filed_under_the_right_time(
    api: Api, off_s: float
) -> None:
    """The same reading from the same moment, an hour ahead and an hour behind: the loop sees 600 arrivals now."""
    start_s = NOW.timestamp() - 2.0
    body = observation(window_start_s=start_s + off_s, services=[reading(arrivals=600)])
    told = {TIME_HEADER: f"{NOW.timestamp() + off_s:.3f}"}
    answer = api.call("POST", "nodes/n1/sync", body, token="agent", **told)
    assert (answer.status_code, float(answer.headers[SKEW_HEADER])) == (200, off_s)
    (event,) = api.get("events?kind=NodeClockSkewed")["items"]
    assert "3600 s" in event["reason"]
    windows = [each for each in _windows(api) if each.arrivals]
    assert sum(each.arrivals for each in windows) == 600
    assert all(abs(each.start.timestamp() - start_s) < 10.0 for each in windows)


def test_an_old_window_of_a_node_with_a_right_clock_stays_old(api: Api) -> None:
    api.call(
        "POST",
        "nodes/n1/sync",
        observation(
            window_start_s=NOW.timestamp() - 3600.0, services=[reading(arrivals=600)]
        ),
        token="agent",
        **{TIME_HEADER: f"{NOW.timestamp():.3f}"},
    )
    assert all(each.arrivals == 0 for each in _windows(api))


def test_every_answer_has_the_lease_that_is_set(small_fleet: Prepared) -> None:
    with small_fleet.running_api(lease_s=60, lease_end="restore") as api:
        assert api.sync(sequence=1).json()["lease"] == {
            "duration_s": 60.0,
            "on_end": "restore",
        }


def test_without_the_setting_nobody_gets_a_lease(api: Api) -> None:
    assert api.sync(sequence=1).json()["lease"] is None
