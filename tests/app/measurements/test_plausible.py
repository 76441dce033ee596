"""Figures that refute each other are found, and those that can be true are not."""

import math
from dataclasses import replace

import pytest

from app.measurements.plausible import (
    RunFigures,
    failure_note,
    failure_problem,
    find_contradiction,
    order_problem,
    server_problem,
)

# 8 clients, a request takes 2 s: 4 per second, of 100 tokens each.
RUN = RunFigures(
    clients=8.0,
    completed=400.0,
    failed=0.0,
    duration_s=100.0,
    rate_rps=4.0,
    output_tokens=100.0,
    output_tokens_per_s=400.0,
    request_ms=2000.0,
    ttft_ms=120.0,
    tpot_ms=19.0,
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        # What is not known refutes nothing.
        (dict.fromkeys(("rate_rps", "request_ms", "ttft_ms"), math.nan), ""),
        ({"ttft_ms": 2500.0}, "the first token comes after 2500 ms"),
        ({"tpot_ms": 19_000.0}, "a token takes 19000 ms"),
        ({"duration_s": 10.0}, "400 requests in 10 s are 40 per second, not 4"),
        ({"output_tokens_per_s": 4000.0}, "are 400 tokens per second, not 4000"),
        ({"clients": 2.0}, "are 8 at a time, more than the 2 of the clients"),
        # 400 tokens per second at 60 ms each are 24 answers at a time.
        ({"request_ms": math.nan, "tpot_ms": 60.0}, "24 answers at a time"),
        # Windows that cut requests off make the rate a little too high.
        ({"rate_rps": 4.2, "output_tokens_per_s": 415.0}, ""),
    ],
)
def test_a_run_that_cannot_be_true_is_found(
    changes: dict[str, float], words: str
) -> None:
    found = find_contradiction(replace(RUN, **changes))
    assert words in found
    assert bool(found) is bool(words)


@pytest.mark.parametrize(
    ("completed", "failed", "problem", "note"),
    [
        (200.0, 0.0, "", ""),
        (200.0, math.nan, "", ""),
        (195.0, 5.0, "", "5 of 200 requests failed, and are left out"),
        (181.0, 19.0, "", "19 of 200 requests failed"),
        (180.0, 20.0, "20 of 200 requests failed; from 10% on", ""),
        (12.0, 188.0, "188 of 200 requests failed", ""),
        (0.0, 3.0, "3 of 3 requests failed", ""),
    ],
)
def test_failures_are_said_and_refused_from_a_tenth_on(
    completed: float, failed: float, problem: str, note: str
) -> None:
    run = RunFigures(completed=completed, failed=failed)
    assert failure_problem(run).startswith(problem)
    assert bool(failure_problem(run)) is bool(problem)
    if not problem:
        assert failure_note(run).startswith(note)


@pytest.mark.parametrize(
    ("levels", "mean", "words"),
    [
        ({0.5: 10.0, 0.9: 12.0, 0.99: 30.0}, 11.0, ""),
        ({0.5: 10.0, 0.99: 10.0}, math.nan, ""),
        ({0.5: 100.0, 0.99: 30.0}, 50.0, "the median is 100, above p99, which is 30"),
        ({0.0: 5.0, 0.9: 4.0}, 5.0, "the minimum is 5, above p90"),
        ({0.9: 50.0, 1.0: 40.0}, 30.0, "p90 is 50, above the maximum"),
        ({0.0: 5.0, 1.0: 40.0}, 90.0, "the mean is 90, outside"),
        ({0.5: 10.0, 0.9: math.nan, 0.99: 30.0}, 11.0, ""),
    ],
)
def test_quantiles_rise(levels: dict[float, float], mean: float, words: str) -> None:
    found = order_problem("ttft_ms", levels, mean=mean)
    assert words in found
    assert bool(found) is bool(words)


@pytest.mark.parametrize(
    ("parts", "client", "levels", "is_wrong"),
    [
        ((100.0, 7000.0), 9000.0, {0.99: 9500.0}, False),
        ((100.0, 12_000.0), 9000.0, {0.99: 15_000.0}, True),
        ((100.0, 776_538_442_544.0), math.nan, {0.99: 155_897.0}, True),
        ((100.0, 7000.0), math.nan, {0.5: 6500.0}, False),
        ((100.0, 7e6), math.nan, {0.5: 6500.0}, True),
        ((100.0, 7e6), math.nan, {}, False),
    ],
)
def test_a_server_cannot_take_longer_than_its_clients_wait(
    parts: tuple[float, ...], client: float, levels: dict[float, float], is_wrong: bool
) -> None:
    assert bool(server_problem(parts, client, levels, unit="µs")) is is_wrong
