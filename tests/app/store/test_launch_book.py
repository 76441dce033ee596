"""When a GPU is avoided after failed launches, for how long, and when that is forgotten."""

from datetime import UTC, datetime, timedelta

from agents.base.protocol import Observation
from app.store.launch_book import (
    FAILURES,
    FIRST,
    FORGOTTEN_AFTER,
    LONGEST,
    WINDOW,
    LaunchRecord,
    with_failure,
)

START = datetime(2026, 3, 1, tzinfo=UTC)
OBSERVATION = Observation(
    node="n1", boot="b", sequence=1, window_start_s=0.0, window_s=1.0, generation=1
)


def after(
    times: int, *, every: timedelta, since: LaunchRecord | None = None
) -> LaunchRecord:
    """The record after these failures."""
    record = since
    at = START if since is None else since.failed_at + every
    for _ in range(times):
        record = with_failure(record, "no", at)
        at += every
    assert record is not None
    return record


def test_a_gpu_is_avoided_after_some_failures_in_a_row_and_not_after_rare_ones() -> (
    None
):
    second = timedelta(seconds=1)
    assert after(FAILURES - 1, every=second).avoided_until is None
    record = after(FAILURES, every=second)
    assert record.avoided_until == record.failed_at + FIRST
    assert after(10 * FAILURES, every=WINDOW + second).avoided_until is None


def test_each_further_time_lasts_twice_as_long_up_to_a_limit() -> None:
    record: LaunchRecord | None = None
    lasted = []
    for _ in range(8):
        if record is not None and record.avoided_until is not None:
            # Tried again as soon as it may be.
            gap = record.avoided_until - record.failed_at
            record = after(1, every=gap, since=record)
            record = after(FAILURES - 1, every=timedelta(seconds=5), since=record)
        else:
            record = after(FAILURES, every=timedelta(seconds=5))
        assert record.avoided_until is not None
        lasted.append(record.avoided_until - record.failed_at)
    assert lasted[:3] == [FIRST, 2 * FIRST, 4 * FIRST]
    assert lasted[-1] == LONGEST


def test_failures_while_it_is_avoided_do_not_move_the_time_that_was_announced() -> None:
    record = after(FAILURES, every=timedelta(seconds=1))
    again = after(FAILURES, every=timedelta(seconds=30), since=record)
    assert (again.times, again.avoided_until) == (1, record.avoided_until)


def test_what_lies_a_day_back_is_forgotten() -> None:
    record = after(FAILURES, every=timedelta(seconds=1))
    later = record.failed_at + FORGOTTEN_AFTER + timedelta(seconds=1)
    assert with_failure(record, "no", later) == LaunchRecord(
        failures=1, failed_at=later, detail="no"
    )
