"""Readings from windows, and when telemetry is too old to decide on."""

from dataclasses import replace
from datetime import timedelta

import pytest

from agents.base.latency_buckets import bucket_end_ms, bucket_of
from app.loop.events import describe_hold
from app.loop.observe import (
    HeardNodes,
    HoldKind,
    hold_reason,
    latency_percentile_ms,
    make_reading,
    observe,
    silence_due_at,
    silent_nodes,
    usable_state,
)
from tests.app.fleets import SETTINGS, a_service
from tests.app.snapshots import NOW, a_snapshot, a_state, windows_of


def test_a_reading_sums_the_windows_of_the_last_minute() -> None:
    # 40 windows of 2 s: those that ended at most 60 s ago are the newest 31; each has 10 arrivals in 2 s.
    windows = windows_of("chat", [900] * 9 + [10] * 31)
    reading = make_reading(a_service(), windows, NOW)
    assert (reading.arrival_rate_rps, reading.served_rps, reading.age_s) == (
        5.0,
        5.0,
        0.0,
    )


def test_rejected_requests_are_misses() -> None:
    reading = make_reading(
        a_service(), windows_of("chat", [10], served=8, in_slo=6, rejected=2), NOW
    )
    assert reading.attainment == 0.6
    assert reading.served_rps == 4.0


def test_a_window_that_is_still_open_does_not_dilute_the_rate() -> None:
    closed, opened = windows_of("chat", [20, 1], last_ended_s=-1.0)
    assert make_reading(a_service(), (closed, opened), NOW).arrival_rate_rps == 10.0
    assert make_reading(a_service(), (opened,), NOW).arrival_rate_rps == 0.5


def test_a_service_unheard_for_long_keeps_its_last_reading_with_its_age() -> None:
    reading = make_reading(
        a_service(), windows_of("chat", [4, 8], last_ended_s=100.0), NOW
    )
    assert (reading.arrival_rate_rps, reading.age_s) == (4.0, 100.0)


def test_a_quiet_service_has_a_reading_and_an_unknown_one_has_none() -> None:
    observed = observe(
        a_snapshot(windows=(*windows_of("chat", [0, 0]), *windows_of("gone", [5])))
    )
    assert [
        (each.service, each.arrival_rate_rps, each.attainment, each.latency_ms)
        for each in observed.readings
    ] == [("chat", 0.0, None, None)]
    assert observed.at_s == NOW.timestamp()
    assert observe(a_snapshot()).readings == ()


@pytest.mark.parametrize(
    ("percentile", "latency_ms"),
    [(0.5, 10.0), (0.9, 10.0), (0.91, 80.0), (0.999, 80.0)],
)
def test_the_latency_is_the_upper_end_of_the_percentiles_bucket(
    percentile: float, latency_ms: float
) -> None:
    fast, slow = bucket_of(10.0), bucket_of(80.0)
    parts = [
        replace(window, latency_buckets=buckets)
        for window, buckets in zip(
            windows_of("chat", [5, 5]),
            [((fast, 45), (slow, 5)), ((fast, 45), (slow, 5))],
            strict=True,
        )
    ]
    assert latency_percentile_ms(parts, percentile) == bucket_end_ms(
        bucket_of(latency_ms)
    )


def test_one_fresh_node_is_enough_to_go_on() -> None:
    limit_s = SETTINGS.stale_after_s
    assert (
        hold_reason(a_snapshot(state=a_state(silent_for_s=(limit_s, 9000.0)))) is None
    )
    stale = hold_reason(a_snapshot(state=a_state(silent_for_s=(limit_s + 1.0, 9000.0))))
    assert stale is not None and stale.kind is HoldKind.TELEMETRY_STALE
    assert dict(stale.figures) == {"silent_s": limit_s + 1.0, "limit_s": limit_s}
    assert "16 s (limit 15 s)" in describe_hold(stale)


@pytest.mark.parametrize(
    ("silent_for_s", "period_s", "due_s"),
    [
        ((1.0, 4.5), 2.0, None),
        ((1.0, 9.0), 2.0, 6.0),
        ((12.0, 9.0), 2.0, 3.0),
        ((15.0, 1.0), 2.0, 0.0),
        ((15.1, 1.0), 2.0, None),
        # The next tick sees one that was heard 1 s ago when it is silent for 15 s, or for 16.
        ((1.0, 1.0), 14.0, None),
        ((1.0, 0.5), 15.0, 14.0),
        ((1.0, 0.5), 3600.0, 14.0),
    ],
)
def test_a_node_is_looked_at_when_it_comes_to_count_as_silent(
    silent_for_s: tuple[float, float], period_s: float, due_s: float | None
) -> None:
    snapshot = a_snapshot(
        state=a_state(silent_for_s=silent_for_s),
        settings=replace(SETTINGS, period_s=period_s),
    )
    due_at = silence_due_at(snapshot)
    assert due_at == (None if due_s is None else snapshot.at + timedelta(seconds=due_s))


def test_only_a_silence_that_began_after_the_last_tick_is_new() -> None:
    heard = HeardNodes()
    heard.hold_reason(a_snapshot(state=a_state(silent_for_s=(1.0, 16.0, 10.0))))

    def is_new(*silent_for_s: float) -> bool:
        return heard.has_new_silence(
            a_snapshot(state=a_state(silent_for_s=silent_for_s))
        )

    assert is_new(1.0, 21.0, 15.5)
    # The third is heard again, and the first misses reports.
    assert not is_new(6.0, 21.0, 0.5)
    assert heard.silence_due_at == NOW + timedelta(seconds=9.0)


def test_what_is_remembered_of_a_removed_node_is_forgotten() -> None:
    snapshot = a_snapshot(state=a_state(silent_for_s=(0.0, 0.0)))
    heard = HeardNodes()
    heard.note_silences(("n1", "gone"), snapshot.at)
    heard.hold_reason(snapshot)
    assert set(heard.silences) == {"n1"}


def test_a_silent_nodes_gpus_count_as_not_healthy() -> None:
    snapshot = a_snapshot(state=a_state(silent_for_s=(1.0, 16.0)))
    silent = silent_nodes(snapshot)
    assert silent == ("n2",)
    state = usable_state(snapshot)
    assert [(gpu.id, gpu.healthy) for gpu in state.gpus] == [
        ("n1/gpu-0", True),
        ("n2/gpu-0", False),
    ]


@pytest.mark.parametrize(
    ("nodes", "flapping", "expected"),
    [(3, ("n1",), {"n1"}), (3, ("n1", "n2"), set()), (2, ("n1",), set())],
    ids=["one of three", "two of three", "one of two"],
)
def test_where_many_nodes_come_and_go_it_is_not_the_nodes(
    nodes: int, flapping: tuple[str, ...], expected: set[str]
) -> None:
    snapshot = a_snapshot(state=a_state(silent_for_s=(0.0,) * nodes))
    heard = HeardNodes()
    for minutes in (50, 30, 10):
        heard.note_silences(flapping, snapshot.at - timedelta(minutes=minutes))
    assert heard.flapping(snapshot) == expected
    later = replace(snapshot, at=snapshot.at + timedelta(minutes=11))
    assert heard.flapping(later) == set()
