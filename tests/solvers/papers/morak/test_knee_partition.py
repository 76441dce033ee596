"""A GPU split by knees: in proportion, on the grid, nothing left that somebody could take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.papers.morak.knee_partition import ShareRequest, knee_percent, partition
from solvers.types.problem import OperatingPoint

TENS = tuple(10.0 * step for step in range(1, 11))


def a_request(knee: float, shares: tuple[float, ...] = TENS) -> ShareRequest:
    return ShareRequest(knee_percent=knee, shares=shares)


def a_row(sm_percent: float, time_ms: float) -> OperatingPoint:
    return OperatingPoint(sm_percent, 1, 1000.0, 0.0, 0.0, time_ms, 1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("knees", "shares"),
    [
        (
            (20.0, 30.0, 30.0, 20.0),
            (20.0, 30.0, 30.0, 20.0),
        ),  # MobileNet, GoogLeNet, ResNet-101 and one more: full
        ((20.0,), (100.0,)),
        ((30.0, 30.0), (50.0, 50.0)),
        # 33.3 and 66.7 become 30 and 60, both 90 % of their part: the first gets what is left.
        ((20.0, 40.0), (40.0, 60.0)),
        # 14.3, 28.6 and 57.1 become 10, 20 and 50: 70, 70 and 87.5 %; the first two get more.
        ((10.0, 20.0, 40.0), (20.0, 30.0, 50.0)),
        # 44.4 and 55.6 become 40 and 50, both 90 %.
        ((80.0, 100.0), (50.0, 50.0)),
    ],
)
def test_shares_are_in_proportion_to_knees(
    knees: tuple[float, ...], shares: tuple[float, ...]
) -> None:
    assert partition([a_request(knee) for knee in knees]) == shares


def test_a_least_share_above_its_part_takes_from_the_others() -> None:
    # Wishes are 10 and 90, but the first is 50 at least: the second goes down from 90 to 50.
    assert partition([a_request(10.0, (50.0, 100.0)), a_request(90.0)]) == (50.0, 50.0)


def test_least_shares_that_do_not_fit_have_no_partition() -> None:
    assert partition([a_request(10.0, (60.0,)), a_request(10.0, (50.0,))]) is None


@given(
    st.lists(
        st.tuples(st.floats(1.0, 100.0), st.sets(st.sampled_from(TENS), min_size=1)),
        min_size=1,
        max_size=6,
    ).filter(lambda requests: sum(min(shares) for _, shares in requests) <= 100.0)
)
def test_a_partition_fits_uses_allowed_shares_and_leaves_nothing_that_could_be_given(
    requests: list[tuple[float, set[float]]],
) -> None:
    found = partition(
        [a_request(knee, tuple(sorted(shares))) for knee, shares in requests]
    )
    assert found is not None
    assert sum(found) <= 100.0
    for share, (_, allowed) in zip(found, requests, strict=True):
        assert share in allowed
        larger = min((each for each in allowed if each > share), default=float("inf"))
        assert larger - share > 100.0 - sum(found)


def test_the_knee_of_rows_is_where_their_latency_bends() -> None:
    # Down by 1 ms per percent up to 30 %, then by 0.02.
    rows = [
        a_row(share, 40.0 - share if share <= 30.0 else 10.0 - 0.02 * (share - 30.0))
        for share in TENS
    ]
    assert knee_percent(rows) == pytest.approx(30.0, abs=0.5)
    assert knee_percent(rows[:2]) == 20.0
    assert knee_percent([a_row(share, 5.0) for share in TENS]) == 10.0
