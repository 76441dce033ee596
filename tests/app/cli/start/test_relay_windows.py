"""What a server counted becomes windows that the control plane takes."""

import math

import pytest

from agents.replicas.server_metrics import Histogram, ServerCounts
from app.cli.start.relay_windows import (
    MAX_WINDOW_S,
    MAX_WINDOWS,
    CountedWindow,
    InTime,
    Stretch,
    make_windows,
)

ENDS = (100.0, 200.0, math.inf)
ANSWER = InTime(until_ms=150.0)
TOKENS = InTime(until_ms=150.0, itl_ms=100.0)
START_S = 1_772_366_400.0  # 2026-03-01T12:00:00Z


def a_histogram(*counts: int) -> Histogram:
    return Histogram(ends_ms=ENDS, counts=counts)


def grown(
    *counts: int, first_tokens: int | None = None, **more: float | None
) -> ServerCounts:
    return ServerCounts(
        served=float(sum(counts)),
        latency=a_histogram(*counts),
        first_token=None if first_tokens is None else a_histogram(first_tokens, 0, 0),
        **more,  # type: ignore[arg-type]
    )


def windows(
    counts: ServerCounts, *, seconds: float = 10.0, slo_ms: float = 150.0
) -> tuple[CountedWindow, ...]:
    stretch = Stretch(begin_s=START_S, end_s=START_S + seconds)
    return make_windows(stretch, counts, InTime(until_ms=slo_ms))


def test_a_window_is_sent_as_the_control_plane_takes_it() -> None:
    (window,) = windows(grown(10, 4, 1, waiting=3.0, running=0.0))
    assert window.document("vllm-1") == {
        "source": "vllm-1",
        "window_start": "2026-03-01T12:00:00+00:00",
        "window_s": 10.0,
        "arrivals": 15 + 3,
        "served": 15,
        "in_slo": 12,  # 10 of the first bucket, half of the second one's 4
        "rejected": 0,
        "latency_ms": [
            {"count": 10, "up_to_ms": 100.0},
            {"count": 4, "up_to_ms": 200.0},
            {"count": 1},
        ],
    }


@pytest.mark.parametrize(
    ("counts", "arrivals", "served", "rejected"),
    [
        (grown(3, 0, 0, waiting=math.nan), 3, 3, 0),
        # Refusals came, too.
        (grown(1, 0, 0, failed=4.0), 5, 1, 4),
        # A queue that grows is demand.
        (grown(2, 0, 0, waiting=7.0, running=1.0), 10, 2, 0),
        # Five that were under way gave up while five others came and were served.
        (grown(5, 0, 0, running=-5.0), 5, 5, 0),
        (grown(5, 0, 0, running=-5.0, failed=2.0), 7, 5, 2),
        # Ten got a first token, of which six left before their end; two more wait.
        (grown(4, 0, 0, first_tokens=10, waiting=2.0), 12, 4, 0),
        (grown(0, 0, 0, first_tokens=3), 3, 0, 0),
        # Those that were answered got their first token in an earlier window.
        (grown(8, 0, 0, first_tokens=1, running=-7.0), 8, 8, 0),
    ],
)
def test_who_came_is_who_was_answered_refused_waits_or_left(
    counts: ServerCounts, arrivals: int, served: int, rejected: int
) -> None:
    (window,) = windows(counts)
    assert (window.arrivals, window.served, window.rejected) == (
        arrivals,
        served,
        rejected,
    )


@pytest.mark.parametrize(
    ("first_tokens", "gaps", "single_gaps", "in_slo", "latency"),
    [
        # 8 answers of 12 first tokens: 4 of 6 in the first bucket, half of the second one's 4.
        ((6, 6, 0), (8, 0, 0), None, 6, (4, 4, 0)),
        # Six of eight had their tokens in time, of which fewer had their first one.
        ((12, 0, 0), (6, 2, 0), None, 6, (8, 0, 0)),
        ((6, 6, 0), (7, 1, 0), None, 6, (4, 4, 0)),
        # All that were served got their first token before.
        ((0, 0, 0), (6, 0, 2), None, 6, ()),
        (None, None, None, 8, ()),
        # Of an older vLLM: a quarter of all gaps was too long.
        ((8, 0, 0), None, (75, 25, 0), 6, (8, 0, 0)),
    ],
)
def test_of_a_language_model_first_tokens_and_gaps_are_in_time(
    first_tokens: tuple[int, ...] | None,
    gaps: tuple[int, ...] | None,
    single_gaps: tuple[int, ...] | None,
    in_slo: int,
    latency: tuple[int, ...],
) -> None:
    # As entire answers all eight would be late.
    counts = ServerCounts(
        served=8.0,
        latency=a_histogram(0, 0, 8),
        first_token=first_tokens and a_histogram(*first_tokens),
        mean_gaps=gaps and a_histogram(*gaps),
        between_tokens=single_gaps and a_histogram(*single_gaps),
    )
    stretch = Stretch(begin_s=START_S, end_s=START_S + 10.0)
    (window,) = make_windows(stretch, counts, TOKENS)
    assert (window.served, window.in_slo) == (8, in_slo)
    pairs = zip(ENDS, latency, strict=False)
    assert window.latency == tuple(pair for pair in pairs if pair[1])


@pytest.mark.parametrize(("newest", "in_slo"), [((0, 0, 3), 0), ((5, 0, 0), 8)])
def test_answers_that_end_when_none_begins_had_the_newest_first_tokens(
    newest: tuple[int, ...], in_slo: int
) -> None:
    counts = ServerCounts(
        served=8.0, latency=a_histogram(0, 0, 8), first_token=a_histogram(0, 0, 0)
    )
    stretch = Stretch(begin_s=START_S, end_s=START_S + 10.0)
    (window,) = make_windows(stretch, counts, TOKENS, first_token=a_histogram(*newest))
    assert (window.arrivals, window.served, window.in_slo) == (8, 8, in_slo)


@pytest.mark.parametrize("first_tokens", [(0, 0, 0), (3, 3, 5)])
def test_a_silence_of_a_language_model_is_spread_over_windows(
    first_tokens: tuple[int, ...],
) -> None:
    counts = ServerCounts(
        served=7.0,
        latency=a_histogram(0, 0, 7),
        first_token=a_histogram(*first_tokens),
        mean_gaps=a_histogram(5, 0, 2),
    )
    stretch = Stretch(begin_s=START_S, end_s=START_S + 5 * MAX_WINDOW_S)
    parts = make_windows(stretch, counts, TOKENS)
    assert sum(each.served for each in parts) == 7
    for each in parts:
        assert each.in_slo <= each.served <= each.arrivals
        assert sum(count for _, count in each.latency) <= each.served


def test_a_server_that_tells_no_latencies_makes_no_window() -> None:
    assert windows(ServerCounts(served=5.0)) == ()


def test_a_long_silence_becomes_windows_that_together_hold_everything() -> None:
    found = windows(grown(1000, 7, 13, failed=5.0, waiting=3.0), seconds=9000.0)
    assert [each.stretch.end_s - each.stretch.begin_s for each in found] == [3000.0] * 3
    assert sum(each.arrivals for each in found) == 1028
    assert sum(each.served for each in found) == 1020
    assert sum(each.rejected for each in found) == 5
    for each in found:
        assert each.in_slo <= each.served == sum(count for _, count in each.latency)
        assert each.arrivals >= each.served + each.rejected


def test_of_many_hours_those_are_kept_that_the_control_plane_takes() -> None:
    found = windows(grown(48_000, 0, 0), seconds=48 * 3600.0)
    assert len(found) == MAX_WINDOWS
    assert found[-1].stretch.end_s == START_S + 48 * 3600.0
    assert {each.served for each in found} == {1000}


def test_windows_that_follow_each_other_are_joined_up_to_an_hour() -> None:
    (first,) = windows(grown(3, 0, 1, failed=1.0))
    (second,) = make_windows(
        Stretch(begin_s=START_S + 10.0, end_s=START_S + 30.0), grown(2, 5, 0), ANSWER
    )
    both = first.plus(second)
    assert both is not None
    assert (both.arrivals, both.served, both.rejected) == (12, 11, 1)
    assert both.latency == ((100.0, 5), (200.0, 5), (math.inf, 1))
    assert both.stretch == Stretch(begin_s=START_S, end_s=START_S + 30.0)
    (hour,) = make_windows(
        Stretch(begin_s=START_S + 10.0, end_s=START_S + 10.0 + MAX_WINDOW_S),
        grown(1, 0, 0),
        ANSWER,
    )
    assert first.plus(hour) is None
