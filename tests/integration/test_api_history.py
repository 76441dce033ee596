"""The past of services and GPUs over the API: what a chart of an hour or a week is drawn from, and refusals."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast
from urllib.parse import quote

import numpy as np
import pytest
from fastapi import FastAPI

from app.db.maintenance import Retention
from app.db.predictions.rates import add_trace
from solvers.forecast.types import RequestSeries
from tests.integration.api_harness import NOW, Api, Prepared

pytestmark = pytest.mark.integration

DAY = timedelta(days=1)
LONG_AGO = NOW - 6 * DAY


@pytest.fixture
def api(demo_fleet: Prepared) -> Iterator[Api]:
    with demo_fleet.running_api() as api:
        yield api


def add_days_of_requests(api: Api, service: str, rate_rps: float) -> None:
    """Six days of one rate as they are kept when their windows are gone; a quarter of them late in each hour."""
    five_minutes = RequestSeries(
        start_s=LONG_AGO.timestamp(),
        window_s=300.0,
        arrivals=np.full(6 * 288 - 12, 300 * rate_rps),
    )
    api.on_connection(lambda connection: add_trace(connection, service, five_minutes))
    hours = """
        INSERT INTO service_hour (service, hour, arrivals, served, in_slo, rejected)
        SELECT :service, hour, 400, 400, 300, 0
        FROM generate_series(CAST(:since AS timestamptz), CAST(:until AS timestamptz), '1 hour') AS hour
    """
    until = NOW - timedelta(hours=2)
    api.execute(hours, service=service, since=LONG_AGO, until=until)


def at(point: Mapping[str, str]) -> datetime:
    return datetime.fromisoformat(point["at"])


def test_steps_count_requests_by_the_seconds_that_were_heard(api: Api) -> None:
    found = api.get("services/search/history")
    assert found["step_s"] == 15.0
    heard = [point for point in found["points"] if point["rate_rps"] is not None]
    # Eleven reports of two seconds, a minute apart from 11:59:58 on; the last window of the newest is open.
    assert len(heard) == 11
    assert at(heard[0]) <= NOW - timedelta(seconds=2) < at(heard[1])
    # 40 requests in 2 s; two of them in the bucket that ends at 256 ms, and 98 of 100 requests need all but 0.8 of 40.
    assert {(p["rate_rps"], p["latency_ms"], p["attainment"]) for p in heard} == {
        (20.0, 256.0, 0.95)
    }


def test_plans_rates_and_the_forecasts_that_looked_at_a_step_are_in_it(
    api: Api,
) -> None:
    (demand,) = api.get("demand/chat?limit=1")["items"]
    points = api.get("services/chat/history")["points"]
    planned = next(point for point in points if point["planned_rps"] is not None)
    assert planned["planned_rps"] == round(demand["arrival_rate_rps"], 2)
    foreseen = next(point for point in points if point["low_rps"] is not None)
    assert foreseen["low_rps"] == round(demand["low_rps"], 2)
    assert foreseen["high_rps"] == round(demand["high_rps"], 2)


def test_a_week_is_as_many_points_as_a_chart_shows(api: Api) -> None:
    add_days_of_requests(api, "search", 12.5)
    found = api.get(f"services/search/history?last_s={7 * 86_400}")
    assert found["step_s"] == 1800.0
    old = [point for point in found["points"] if at(point) < NOW - timedelta(hours=3)]
    assert 280 < len(old) <= len(found["points"]) <= 360
    assert {(p["rate_rps"], p["latency_ms"], p["attainment"]) for p in old} == {
        (12.5, None, 0.75)
    }
    # The present is known by windows, with their latencies.
    newest = [point for point in found["points"] if point["latency_ms"] is not None]
    assert newest and newest[-1]["rate_rps"] == 20.0


def test_a_short_time_long_ago_is_in_steps_of_five_minutes(api: Api) -> None:
    add_days_of_requests(api, "search", 12.5)
    since = LONG_AGO + DAY
    span = f"since={quote(since.isoformat())}&until={quote((since + timedelta(hours=1)).isoformat())}"
    found = api.get(f"services/search/history?{span}")
    assert (found["step_s"], len(found["points"])) == (300.0, 12)
    assert at(found["points"][0]) == since


@pytest.mark.parametrize(
    ("since", "until", "remedy"),
    [
        (NOW - 40 * DAY, NOW - 39 * DAY, "kept for 28 days only"),
        (NOW - DAY, NOW - 2 * DAY, "at least a minute before `until`"),
        (NOW + DAY, NOW + 2 * DAY, "not in the future"),
    ],
)
def test_a_range_without_a_past_is_refused_with_what_to_ask(
    api: Api, since: datetime, until: datetime, remedy: str
) -> None:
    span = f"since={quote(since.isoformat())}&until={quote(until.isoformat())}"
    answer = api.call("GET", f"services/chat/history?{span}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].endswith("since")
    assert remedy in answer.text


def test_it_answers_as_far_back_as_rows_are_kept(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Retention(rates_days=100, observations_days=60)
    app = cast(FastAPI, api.client.app)
    parts = replace(app.state.parts, retention=kept)
    monkeypatch.setattr(app.state, "parts", parts)
    # More than 360 of the longest usual step: whole days.
    old = api.get(f"services/search/history?last_s={90 * 86_400}")
    assert old["step_s"] == 86_400.0
    assert api.get(f"gpus/n1/gpu-0/readings?last_s={50 * 86_400}")["step_s"] == 86_400
    refused = api.call("GET", f"gpus/n1/gpu-0/readings?last_s={70 * 86_400}")
    assert (refused.status_code, "kept for 60 days" in refused.text) == (422, True)


def test_readings_of_a_week_are_means_of_the_first_minute_of_each_step(
    api: Api,
) -> None:
    rows = """
        INSERT INTO gpu_observation
        SELECT 'n1/gpu-0', start, 60, 1024, CASE WHEN extract(minute FROM start) IN (0, 30) THEN 100 ELSE 50 END, 0,
               1000, NULL, true
        FROM generate_series(CAST(:since AS timestamptz), CAST(:until AS timestamptz), '1 minute') AS start
    """
    day = LONG_AGO.replace(hour=0, minute=0)
    until = day + timedelta(hours=23, minutes=59)
    api.execute("SELECT ensure_observation_day(CAST(:day AS date))", day=day.date())
    api.execute(rows, since=day, until=until)
    found = api.get(f"gpus/n1/gpu-0/readings?last_s={7 * 86_400}")
    old = [each for each in found["readings"] if at(each) < NOW - DAY]
    assert (found["step_s"], len(old)) == (1800.0, 48)
    assert {(each["power_w"], each["busy_percent"]) for each in old} == {(100.0, None)}
    assert len(found["readings"]) <= 360
    assert api.status("GET", "gpus/n9/gpu-0/readings") == 404
