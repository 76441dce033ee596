"""A service's forecast over the API: what it says of a busy, a quiet and a silent service, and to whom."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from datetime import timedelta

import pytest

from app.db.predictions import forecasts
from app.learn.choose_forecasts import SHOWN_LEVELS
from solvers.forecast.back_test import ForecastScore
from solvers.forecast.choose_technique import TechniqueChoice
from solvers.forecast.room import UNKNOWN_ROOM
from tests.integration.api_harness import NOW, Api, Prepared, reading, service

pytestmark = pytest.mark.integration

SCORE = ForecastScore(
    forecasts=240.5,
    pinball_rps=2.0,
    coverage=0.94,
    interval_coverage=0.9,
    error_rps=4.0,
    observed_rps=50.0,
)


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.put("services/chat", service())
        running.put("services/search", service("search", project="team-a"))
        yield running


def observe(api: Api, arrivals: Mapping[str, int], *, windows: int = 10) -> None:
    """Windows of a second with as many arrivals of each service in every one."""
    for sequence in range(1, windows + 1):
        api.clock.advance(1.0)
        readings = [reading(name, count) for name, count in arrivals.items()]
        answer = api.sync(
            sequence=sequence,
            services=readings,
            window_s=1.0,
            window_start_s=api.clock.now_s() - 1.0,
        )
        assert answer.status_code == 200, answer.text


def save(api: Api, name: str, choice: TechniqueChoice) -> None:
    api.on_connection(lambda connection: forecasts.save(connection, {name: choice}))


def test_a_service_that_was_never_reported_has_no_forecast(api: Api) -> None:
    assert api.get("services/chat/forecast", token="viewer") == {
        "service": "chat",
        "technique": "burst_aware",
        "margin": 1.0,
        "room_factor": pytest.approx(UNKNOWN_ROOM.factor),
        "floor_rps": 0.0,
        "telemetry": "never",
        "silent_for_s": None,
        "horizon_s": 5.0,
        "quantiles": [],
        "scores": [],
        "judged_at": None,
    }


def test_a_busy_a_quiet_and_a_silent_service_are_told_apart(api: Api) -> None:
    observe(api, {"chat": 60, "search": 0})
    busy, quiet = (api.get(f"services/{name}/forecast") for name in ("chat", "search"))
    assert (
        (busy["telemetry"], busy["silent_for_s"])
        == (quiet["telemetry"], quiet["silent_for_s"])
        == ("heard", 0.0)
    )
    assert [entry["level"] for entry in busy["quantiles"]] == list(SHOWN_LEVELS)
    rates = [entry["rate_rps"] for entry in busy["quantiles"]]
    assert rates == sorted(rates)
    assert rates[SHOWN_LEVELS.index(0.5)] == pytest.approx(60.0, rel=0.05)
    assert [entry["rate_rps"] for entry in quiet["quantiles"]] == [0.0] * len(
        SHOWN_LEVELS
    )
    api.clock.advance(30.0)
    gone = api.get("services/chat/forecast")
    assert gone["telemetry"] == "stopped"
    assert gone["silent_for_s"] == 30.0
    assert gone["quantiles"] == []


def test_the_choice_its_margin_and_its_back_tests_are_shown_the_least_loss_first(
    api: Api,
) -> None:
    def rates() -> dict[float, float]:
        found = api.get("services/chat/forecast")["quantiles"]
        return {entry["level"]: entry["rate_rps"] for entry in found}

    observe(api, {"chat": 60})
    plain = rates()
    scores = {
        "burst_aware": SCORE,
        "last_value": replace(SCORE, pinball_rps=3.0),
        "ewma": replace(SCORE, margin=1.4),
    }
    judged_s = (NOW - timedelta(minutes=3)).timestamp()
    choice = TechniqueChoice(margin=2.0, scores=scores, judged_until_s=judged_s)
    save(api, "chat", choice)
    found = api.get("services/chat/forecast")
    assert (found["technique"], found["margin"]) == ("burst_aware", 2.0)
    assert found["judged_at"] == "2026-03-01T11:57:00Z"
    order = [entry["technique"] for entry in found["scores"]]
    assert order == ["burst_aware", "ewma", "last_value"]
    assert found["scores"][1] == {"technique": "ewma", **asdict(scores["ewma"])}
    wide = rates()
    assert wide[0.95] - wide[0.5] == pytest.approx(2.0 * (plain[0.95] - plain[0.5]))
