"""How many lines of the audit a node may cause in an hour."""

from datetime import UTC, datetime, timedelta

import pytest

from app.store.event_limits import MAX_PER_HOUR, EventLimits
from app.store.store import AuditEvent

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def lines(
    count: int, kind: str = "GpuFailed", node: str = "n1", at: datetime = NOON
) -> list[AuditEvent]:
    name = f"node/{node}"
    return [AuditEvent(at=at, actor=name, kind=kind, subject=name)] * count


def write(
    limits: EventLimits, given: list[AuditEvent], at: datetime = NOON
) -> tuple[AuditEvent, ...]:
    """What one transaction writes."""
    with limits.transaction(at) as limited:
        return (*limited.passing(given), *limited.summary)


def roll_back(limits: EventLimits, given: list[AuditEvent]) -> None:
    """One transaction that fails after its lines have passed."""
    with pytest.raises(ZeroDivisionError), limits.transaction(NOON) as limited:
        limited.passing(given)
        raise ZeroDivisionError


def test_the_first_lines_pass_and_the_rest_is_counted_once_at_the_end_of_the_hour() -> (
    None
):
    told: list[int] = []
    limits = EventLimits(told.append)
    written = [write(limits, lines(8)) for _ in range(100)]
    assert sum(map(len, written)) == MAX_PER_HOUR and len(written[0]) == 8
    assert sum(told) == 800 - MAX_PER_HOUR
    later = NOON + timedelta(hours=1)
    first, summary = write(limits, lines(1, at=later), later)
    assert (first.kind, summary.kind) == ("GpuFailed", "NodeEventsLeftOut")
    assert "from 12:00 UTC: 740 of GpuFailed" in summary.reason
    # The summary is written once, and the new hour has room again.
    assert [each.kind for each in write(limits, lines(1), later)] == ["GpuFailed"]


def test_one_kind_and_one_node_take_no_room_from_others() -> None:
    limits = EventLimits()
    write(limits, lines(1000))
    assert len(write(limits, lines(3, "OveruseBegan"))) == 3
    assert len(write(limits, lines(3, node="n2"))) == 3


def test_a_finished_task_is_always_written() -> None:
    limits = EventLimits()
    assert len(write(limits, lines(1000, "TaskFinished"))) == 1000


def test_lines_of_a_transaction_that_is_rolled_back_are_not_counted() -> None:
    limits = EventLimits()
    for _ in range(20):
        roll_back(limits, lines(MAX_PER_HOUR))
    assert len(write(limits, lines(MAX_PER_HOUR))) == MAX_PER_HOUR


def test_of_transactions_at_the_same_time_one_writes_the_summary() -> None:
    limits = EventLimits()
    write(limits, lines(100))
    later = NOON + timedelta(hours=1)
    with pytest.raises(ZeroDivisionError), limits.transaction(later) as first:
        with limits.transaction(later) as second:
            assert [len(each.summary) for each in (first, second)] == [1, 0]
        raise ZeroDivisionError
    # Where it is rolled back the next one writes it.
    with limits.transaction(later) as third:
        assert third.summary == first.summary


def test_a_transaction_of_the_hour_before_does_not_begin_that_hour_again() -> None:
    limits = EventLimits()
    later = NOON + timedelta(hours=1)
    with limits.transaction(NOON) as late:
        late.passing(lines(5))
        assert len(write(limits, lines(100, at=later), later)) == MAX_PER_HOUR
    assert write(limits, lines(1, at=later), later) == ()
    # Nor does one that begins with what was received before.
    assert write(limits, lines(1), NOON) == ()
