"""`plimsoll forecast`: back-tests of a trace offline; warm-up needs a database (tests/integration)."""

import json
from pathlib import Path

import numpy as np

from solvers.forecast.techniques import TECHNIQUES
from tests.app.cli.runner import cli


def a_trace(tmp_path: Path, rates_rps: np.ndarray[tuple[int], np.dtype[np.int64]], step_s: int = 1) -> Path:
    path = tmp_path / "trace.csv"
    lines = [f"{number * step_s},{rate}" for number, rate in enumerate(rates_rps.tolist())]
    path.write_text("second,arrivals\n" + "\n".join(lines) + "\n")
    return path


def test_a_table_shows_every_technique_and_the_one_that_is_chosen(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    walk = draw.poisson(500.0 * np.exp(np.cumsum(draw.normal(0.0, 0.05, size=400))))
    result = cli("forecast", "test", a_trace(tmp_path, walk))
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
    result = cli("forecast", "test", trace, "--window", "10s", "--horizon", "1m", "-o", "json")
    document = json.loads(result.out)
    assert (document["window_s"], document["horizon_s"], document["chosen"]) == (10.0, 60.0, "burst_aware")
    assert list(document["scores"]) == list(TECHNIQUES)
    assert document["scores"]["ewma"]["observed_rps"] == 7.0
    assert document["scores"]["ewma"]["coverage"] == 1.0


def test_a_seasonal_trace_chooses_the_season(tmp_path: Path) -> None:
    hour = np.full(60, 600)
    hour[:5] = 6000
    noisy = np.random.default_rng(2).poisson(np.tile(hour, 30))
    document = json.loads(cli("forecast", "test", a_trace(tmp_path, noisy, step_s=60), "-o", "json").out)
    assert document["chosen"] == "seasonal_hourly"


def test_errors_are_told_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("second,rate_rps\n0,1\n1,x\n")
    result = cli("forecast", "test", path)
    assert (result.code, result.out) == (1, "")
    assert f"{path}:3: column rate_rps" in result.err
    path.write_text("second,rate_rps\n0,1\n1,1\n")
    assert "too few" in cli("forecast", "test", path, "--horizon", "1h").err
