"""Which of the loop's windows an agent's window counts in, and which of them wake the loop."""

from datetime import UTC, datetime

import pytest
from msgspec import structs

from agents.base.protocol import Observation, ServiceReading
from app.store.windows import (
    MAX_ROWS,
    MAX_WINDOWS,
    Sums,
    add_all,
    is_notable,
    make_windows,
    parts_of,
    placed_start_s,
    snapshot_numbers,
    sums_of,
    window_number,
)
from tests.app.fleets import a_service

RECEIVED_S = 1_000_000.0


def make_observation(start_s: float = 0.0, *readings: ServiceReading) -> Observation:
    return Observation(
        node="n1",
        boot="b",
        sequence=1,
        window_start_s=start_s,
        window_s=2.0,
        generation=0,
        services=readings,
    )


@pytest.mark.parametrize(
    ("end_s", "number"),
    [
        (10.0, 4),  # [8, 10) ends here and is window 4 of 2 s.
        (9.7, 4),
        (9.2, 4),
        (10.9, 4),  # An aligned agent that is 900 ms late, less than half of 2 s.
        (11.1, 5),
        (8.9, 3),
    ],
)
def test_a_reading_counts_in_the_window_whose_end_is_nearest_to_its_own(
    end_s: float, number: int
) -> None:
    assert window_number(end_s, 2.0) == number


@pytest.mark.parametrize(
    ("start_s", "placed_s"),
    [
        (RECEIVED_S - 5.0, RECEIVED_S - 5.0),
        # A clock ahead: the window cannot end after it was received.
        (RECEIVED_S + 1e6, RECEIVED_S - 2.0),
        (0.0, RECEIVED_S - 7 * 86400.0),  # A clock that starts in 1970.
    ],
)
def test_a_window_that_cannot_be_true_is_moved(start_s: float, placed_s: float) -> None:
    assert placed_start_s(make_observation(start_s), RECEIVED_S) == placed_s


@pytest.mark.parametrize(
    ("delay_s", "count"),
    [
        (0.0, 60),
        (100.0, 60),
        (300.0, 151),
        (86_400.0, 600),
    ],  # 300 s / 2 s and the open one
)
def test_a_snapshot_looks_back_as_far_as_the_longest_delay_within_limits(
    delay_s: float, count: int
) -> None:
    services = [
        a_service("quick", downscale_delay_s=0.0),
        a_service("slow", downscale_delay_s=delay_s),
    ]
    assert len(snapshot_numbers(1001.0, 2.0, services)) == count


def test_readings_of_all_nodes_are_added_and_given_oldest_first() -> None:
    one = make_observation(
        0.0, ServiceReading(service="chat", arrivals=3, served=2, in_slo=1, rejected=1)
    )
    (service, sums), (_, other) = *sums_of(one), *sums_of(one)
    other.latency_buckets[7] = 2
    totals = add_all(
        [((service, 5), sums), ((service, 4), Sums(arrivals=1)), ((service, 5), other)]
    )
    older, newer = make_windows(totals, 2.0)
    assert (older.arrivals, older.start) == (1, datetime.fromtimestamp(8, UTC))
    assert (newer.arrivals, newer.served, newer.in_slo, newer.rejected) == (6, 4, 2, 2)
    assert newer.latency_buckets == ((7, 2),)


def a_reading(window_s: float, arrivals: int) -> Observation:
    service = ServiceReading(
        service="a",
        arrivals=arrivals,
        served=arrivals,
        in_slo=arrivals - 1,
        rejected=0,
        latency_buckets=((3, arrivals - 2), (9, 2)),
    )
    return Observation(
        node="n",
        boot="b",
        sequence=1,
        window_start_s=0.0,
        window_s=window_s,
        generation=0,
        services=(service,),
    )


def test_a_reading_of_an_agent_that_was_held_up_counts_in_equal_parts() -> None:
    # 11 requests in 8.3 s that end at 20.2: windows of 2 s number 6 to 9 (ends 14 to 20), 2 or 3 requests each.
    parts = dict(parts_of(a_reading(8.3, 11), 20.2, 2.0))
    assert sorted(parts) == [("a", number) for number in (6, 7, 8, 9)]
    assert sorted(counts.arrivals for counts in parts.values()) == [2, 3, 3, 3]
    whole = Sums()
    for counts in parts.values():
        whole.add(counts)
    assert whole == Sums(
        arrivals=11, served=11, in_slo=10, rejected=0, latency_buckets={3: 9, 9: 2}
    )


def test_of_an_hour_that_an_agent_was_held_up_only_what_a_snapshot_holds_is_counted() -> (
    None
):
    parts = dict(parts_of(a_reading(3600.0, 7200), 3600.0, 1.0))
    assert [number for _, number in parts] == list(range(3599, 3599 - MAX_WINDOWS, -1))
    assert {counts.arrivals for counts in parts.values()} == {2}


def test_an_hour_of_many_services_adds_to_a_bounded_number_of_windows() -> None:
    readings = tuple(
        ServiceReading(service=f"s{number}", arrivals=9, served=9, in_slo=9)
        for number in range(200)
    )
    held_up = structs.replace(make_observation(0.0, *readings), window_s=3600.0)
    rows = sum(1 for _ in parts_of(held_up, 3600.0, 1.0))
    assert rows == MAX_ROWS
    # One window always counts, however many services there are.
    each = structs.replace(held_up, services=readings * 50)
    assert len({number for (_, number), _ in parts_of(each, 3600.0, 1.0)}) == 1


@pytest.mark.parametrize(
    ("arrivals", "planned_rps", "notable"),
    [
        # 250 in 5 s, and four times their standard deviation of 15.8: from 314 on.
        (280, 50.0, False),
        (313, 50.0, False),
        (314, 50.0, True),
        (0, 0.0, False),
        (4, 0.0, False),  # Nothing was planned for: five requests wake, not one.
        (5, 0.0, True),
        (0, 50.0, False),  # A fall costs money until the next period, and no request.
    ],
)
def test_the_loop_is_woken_by_more_than_chance_adds_to_what_was_planned(
    arrivals: int, planned_rps: float, notable: bool
) -> None:
    assert is_notable(arrivals, planned_rps, 5.0) is notable
