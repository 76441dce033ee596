"""`plimsoll forecast`: back-tests of a trace offline; warm-up needs a database (tests/integration)."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from app.cli.objects.show.forecasts import SHOWN_LEVEL
from solvers.forecast.techniques import TECHNIQUES
from solvers.forecast.types import PLANNING_LEVEL
from tests.app.cli.fake_api import FakeApi, Json
from tests.app.runner import cli

SCORE: Json = {
    "forecasts": 240.4,
    "pinball_rps": 1.5,
    "coverage": 0.951,
    "interval_coverage": 0.9,
    "error_rps": 4.0,
    "observed_rps": 50.0,
    "margin": 1.2,
}
QUIET: Json = {
    "service": "chat",
    "technique": "burst_aware",
    "margin": 1.0,
    "telemetry": "heard",
    "silent_for_s": 0.8,
    "horizon_s": 5.0,
    "quantiles": [{"level": level, "rate_rps": 0.0} for level in (0.5, 0.95)],
    "scores": [],
    "judged_at": None,
}
BUSY: Json = QUIET | {
    "technique": "seasonal_daily",
    "margin": 1.253,
    "room_factor": 1.1,
    "floor_rps": 60.5,
    "quantiles": [{"level": 0.5, "rate_rps": 48.0}, {"level": 0.95, "rate_rps": 55.71}],
    "scores": [
        {"technique": "seasonal_daily", **SCORE},
        {"technique": "burst_aware", **SCORE, "pinball_rps": 2.0},
        {"technique": "seasonal_hourly", **SCORE, "pinball_rps": 2.0},
    ],
    "judged_at": "2026-03-01T12:00:00Z",
}
GONE: Json = QUIET | {"telemetry": "stopped", "silent_for_s": 40.2, "quantiles": []}
NEVER: Json = GONE | {"telemetry": "never", "silent_for_s": None}


def shown(forecast: Json, *options: str) -> str:
    """What the command says of a service that is forecast like this."""
    result = cli(
        "forecast show chat",
        *options,
        api=FakeApi(answers={"GET services/chat/forecast": forecast}),
    )
    assert (result.code, result.err) == (0, "")
    return result.out


def test_a_service_s_forecast_is_shown_with_what_it_rests_on() -> None:
    lines = shown(BUSY).splitlines()
    assert lines == [
        "Service chat",
        "technique: seasonal_daily, its spread × 1.25 by its back-test",
        "telemetry: heard 1 s ago",
        "forecast 5 s ahead:",
        "        P50   P95",
        "  rps  48.0  55.7",
        "plans carry 1.10 × the highest median of the downscale delay, and at least 60.5 rps, for bursts",
        "back-test: 240 forecasts until 2026-03-01 12:00:00 UTC, mean 50.0 rps",
        "TECHNIQUE        LOSS RPS  OF DEFAULT  BELOW P95  IN 90 %  ERROR",
        "seasonal_daily      1.500      75.0 %     95.1 %   90.0 %  8.0 %  chosen",
        "burst_aware         2.000     100.0 %     95.1 %   90.0 %  8.0 %  default",
        "seasonal_hourly     2.000     100.0 %     95.1 %   90.0 %  8.0 %  no season",
    ]
    assert (
        json.loads(shown(BUSY, "-o", "json"))
        == yaml.safe_load(shown(BUSY, "-o", "yaml"))
        == BUSY
    )


@pytest.mark.parametrize(
    ("forecast", "telemetry"),
    [
        (QUIET, "heard 1 s ago, quiet: no requests"),
        (GONE, "reports stopped 40 s ago; the planned rate stays"),
        (NEVER, "no node reported it in the last few minutes; the planned rate stays"),
    ],
)
def test_a_quiet_service_and_missing_telemetry_read_differently(
    forecast: Json, telemetry: str
) -> None:
    text = shown(forecast)
    assert f"telemetry: {telemetry}\n" in text
    assert ("  rps  0.0  0.0\n" in text) is (forecast is QUIET)
    assert text.endswith(
        "back-test: none yet; the first one comes minutes after the first report\n"
    )


@pytest.mark.parametrize(
    ("forecast", "line"),
    [
        (BUSY, "forecast: seasonal_daily, p95 55.7 rps in 5 s (heard 1 s ago)"),
        (
            QUIET,
            "forecast: burst_aware, p95 0.0 rps in 5 s (heard 1 s ago, quiet: no requests)",
        ),
        (GONE, "forecast: none, reports stopped 40 s ago; the planned rate stays"),
        (NEVER, "forecast: none, no node reported it in the last few minutes; the"),
    ],
)
def test_describe_service_says_the_forecast_in_one_line(
    forecast: Json, line: str
) -> None:
    service: Json = {"kind": "Service", "metadata": {"name": "chat"}}
    api = FakeApi(
        objects={"services/chat": service},
        answers={"GET services/chat/forecast": forecast},
    )
    result = cli("describe service chat", api=api)
    assert (result.code, result.err) == (0, "")
    assert line in result.out


def test_the_level_in_that_line_is_the_one_that_plans_serve() -> None:
    assert SHOWN_LEVEL == PLANNING_LEVEL


def a_trace(
    tmp_path: Path,
    rates_rps: np.ndarray[tuple[int], np.dtype[np.int64]],
    step_s: int = 1,
) -> Path:
    path = tmp_path / "trace.csv"
    lines = [
        f"{number * step_s},{rate}" for number, rate in enumerate(rates_rps.tolist())
    ]
    path.write_text("second,arrivals\n" + "\n".join(lines) + "\n")
    return path


def test_a_table_shows_every_technique_and_the_one_that_is_chosen(
    tmp_path: Path,
) -> None:
    draw = np.random.default_rng(1)
    walk = draw.poisson(500.0 * np.exp(np.cumsum(draw.normal(0.0, 0.05, size=400))))
    result = cli("forecast test", a_trace(tmp_path, walk))
    assert (result.code, result.err) == (0, "")
    first, heading, *rows = result.out.splitlines()
    assert first.startswith("395 forecasts 5 s ahead, windows of 1 s, mean ")
    assert heading.split()[0] == "TECHNIQUE"
    assert [row.split()[0] for row in rows] == list(TECHNIQUES)
    (chosen,) = [row for row in rows if row.endswith("chosen")]
    assert chosen.split()[0] in {"last_value", "ewma_fast", "holt_fast"}
    assert max(map(len, result.out.splitlines())) <= 80


def test_json_has_the_same_for_programs_and_windows_are_summed(tmp_path: Path) -> None:
    trace = a_trace(tmp_path, np.full(600, 7))
    result = cli(
        "forecast test", trace, "--window", "10s", "--horizon", "1m", "-o", "json"
    )
    document = json.loads(result.out)
    assert (document["window_s"], document["horizon_s"], document["chosen"]) == (
        10.0,
        60.0,
        "burst_aware",
    )
    assert list(document["scores"]) == list(TECHNIQUES)
    assert document["scores"]["ewma"]["observed_rps"] == 7.0
    assert document["scores"]["ewma"]["coverage"] == 1.0


def test_errors_are_told_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("second,rate_rps\n0,1\n1,x\n")
    result = cli("forecast test", path)
    assert (result.code, result.out) == (1, "")
    assert f"{path}:3: column rate_rps" in result.err
    path.write_text("second,rate_rps\n0,1\n1,1\n")
    assert "too few" in cli("forecast test", path, "--horizon", "1h").err
