"""Retries of a fleet and skews of clocks: what one exchange proves, and that none comes back in step."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.base.backoff import RETRY_FIRST_S, RETRY_LONGEST_S, retry_s
from agents.sync.transport import (
    LIMIT_S,
    MAX_RETRY_AFTER_S,
    ClockSkew,
    ControlPlaneSilent,
    read_answer,
)
from tests.examples import examples

FLEET = [f"node-{number}" for number in range(1000)]


@given(
    failures=st.integers(1, 10_000),
    seed=st.integers(0, 2**32),
    asked_s=st.floats(0.0, MAX_RETRY_AFTER_S),
)
def test_a_pause_is_bounded_and_never_shorter_than_was_asked(
    failures: int, seed: int, asked_s: float
) -> None:
    wait_s = retry_s(failures, Random(seed), asked_s=asked_s)
    assert (
        max(0.5 * RETRY_FIRST_S, asked_s)
        <= wait_s
        <= max(RETRY_LONGEST_S, 2.0 * asked_s)
    )


def test_the_same_node_and_start_waits_alike_and_others_do_not() -> None:
    def waits() -> dict[str, list[float]]:
        return {
            name: [retry_s(at, Random(f"{name} boot-1")) for at in (1, 2, 3)]
            for name in FLEET[:50]
        }

    assert waits() == waits() and len({tuple(each) for each in waits().values()}) == 50


@settings(max_examples=examples(12))
@given(
    outage_s=st.floats(30.0, 600.0),
    boot=st.text(alphabet="0123456789abcdef", min_size=8, max_size=8),
)
def test_after_an_outage_a_fleet_does_not_come_back_in_step(
    outage_s: float, boot: str
) -> None:
    """All of a thousand agents lose the control plane at once; each one's first try after the outage is noted."""
    backs_s = []
    for name in FLEET:
        random, at_s, failures = Random(f"{name} {boot}"), 0.0, 0
        while at_s < outage_s:
            failures += 1
            at_s += retry_s(failures, random)
        backs_s.append(at_s - outage_s)
    assert max(backs_s) <= RETRY_LONGEST_S
    # Pauses of 1.5 to 3 s: a tenth of a second holds 1000 · 0.1 / 2.25 = 44 on average once phases have mixed, and
    # after few pauses up to 1000 · 0.1 / 1.5 = 67. Five standard deviations above 67: 67 + 5 · 8.2 = 108.
    busiest = max(Counter(int(each * 10.0) for each in backs_s).values())
    assert busiest <= 108


def test_the_tenth_failure_in_a_row_costs_no_more_than_three_seconds() -> None:
    """Of a control plane that was killed and is back after ten seconds; it was 10 s."""
    assert max(retry_s(10, Random(name)) for name in FLEET) <= 3.0


def test_a_fleet_told_the_same_retry_after_comes_back_over_as_long_again() -> None:
    waits = [retry_s(1, Random(name), asked_s=30.0) for name in FLEET]
    assert min(waits) >= 30.0 and max(waits) <= 60.0
    # 1000 over 30 s: 33 a second on average; five standard deviations above: 33 + 5 · 5.8 = 62.
    assert max(Counter(int(each) for each in waits).values()) <= 62


@pytest.mark.parametrize(
    ("header", "asked_s"),
    [
        (None, 0.0),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("99999999", 60.0),
        ("-1", 0.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0),
    ],
)
def test_retry_after_is_read_and_bounded(header: str | None, asked_s: float) -> None:
    with pytest.raises(ControlPlaneSilent) as caught:
        read_answer(503, b"", header)
    assert caught.value.retry_after_s == asked_s


@given(
    ahead_s=st.floats(-1e5, 1e5),
    up_s=st.floats(0.0, 30.0),
    down_s=st.floats(0.0, 30.0),
    sent_s=st.floats(1e6, 2e9),
)
def test_a_slow_network_alone_is_never_taken_for_a_wrong_clock(
    ahead_s: float, up_s: float, down_s: float, sent_s: float
) -> None:
    skew = ClockSkew()
    skew.note(
        sent_s=sent_s,
        received_s=sent_s + up_s + down_s,
        server_time_s=sent_s + up_s - ahead_s,
    )
    assert abs(skew.certain_s) <= abs(ahead_s) + 1e-5
    if abs(ahead_s) < LIMIT_S:
        assert skew.problem == ""
    if abs(ahead_s) > LIMIT_S + up_s + down_s + 1e-5:
        assert skew.problem


@pytest.mark.parametrize(
    ("ahead_s", "words"), [(3600.0, "3599.5 s ahead of"), (-3600.0, "3600.5 s behind")]
)
def test_a_wrong_clock_is_told_with_value_side_and_what_to_do(
    ahead_s: float, words: str
) -> None:
    """Sent at 10000, received at 10001, when the server read its clock: the middle is half a second off."""
    skew = ClockSkew()
    skew.note(sent_s=10_000.0, received_s=10_001.0, server_time_s=10_001.0 - ahead_s)
    assert (
        words in skew.problem
        and "give or take 0.5" in skew.problem
        and "NTP" in skew.problem
    )
    skew.note(sent_s=10_002.0, received_s=10_002.1, server_time_s=10_002.0)
    assert skew.problem == ""
