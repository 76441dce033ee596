import numpy as np
import pytest

from solvers.predict.data.samples import Reals, make_queries
from solvers.predict.latency.factorisation_features import (
    ALL,
    COLUMNS,
    OF_QUERIES,
    ServedConditions,
    encode,
    make_start,
    numbers_of,
    numbers_of_queries,
)


def _field(columns: Reals, position: int) -> Reals:
    return np.asarray(columns[0, ALL.field == position])


def test_a_power_of_two_batch_is_one_hot_and_one_between_two_counts_for_both() -> None:
    four, between = (
        encode(ALL, numbers_of([ServedConditions("a", "V100", batch, 50.0)]))
        for batch in (4.0, 2.0**2.25)
    )
    assert _field(four, 1) == pytest.approx([0, 0, 1, 0, 0, 0, 0, 0, 0], abs=1e-12)
    assert _field(between, 1) == pytest.approx(
        [0, 0, 0.75, 0.25, 0, 0, 0, 0, 0], abs=1e-12
    )


def test_beyond_the_last_knot_batch_goes_on_straight_and_share_stays() -> None:
    columns = encode(ALL, numbers_of([ServedConditions("a", "V100", 512.0, 1.0)]))
    assert _field(columns, 1)[-2:] == pytest.approx([-1.0, 2.0])
    assert _field(columns, 2) == pytest.approx([0, 0, 0, 0, 0, 0, 1])


def test_what_is_not_known_is_absent() -> None:
    columns = encode(ALL, numbers_of([ServedConditions("a", "V100", 4.0, 50.0)]))
    known = np.isin(ALL.field, [0, 1, 2, 7])
    assert np.all(columns[0, ~known] == 0.0)
    assert columns[0, known].sum() == pytest.approx(4.0)


def test_continuous_numbers_are_logarithms() -> None:
    row = ServedConditions(
        "a",
        "V100",
        4.0,
        50.0,
        input_length=5120.0,
        parameter_count=25e6,
        clock_mhz=3000.0,
    )
    columns = encode(ALL, numbers_of([row]))
    assert [_field(columns, position)[0] for position in (5, 6, 8)] == pytest.approx(
        [1.0, 0.0, -1.0]
    )


def test_queries_are_encoded_as_rows_are() -> None:
    queries = make_queries(
        ["a", "a"],
        ["V100"] * 2,
        batch=[3.0, 8.0],
        sm_percent=[10.0, 70.0],
        time_quota_percent=[100.0, 40.0],
    )
    rows = [
        ServedConditions("a", "V100", 3.0, 10.0),
        ServedConditions("a", "V100", 8.0, 70.0, time_quota_percent=40.0),
    ]
    of_rows = encode(ALL, numbers_of(rows))
    assert encode(OF_QUERIES, numbers_of_queries(queries)) == pytest.approx(
        of_rows[:, OF_QUERIES.columns]
    )


def test_the_starting_factors_hold_every_hinge() -> None:
    start = make_start()
    assert start.factors.shape[0] == COLUMNS
    hinge = ALL.field == 0
    knots = np.linspace(0.0, np.log(160.0), hinge.sum())
    for knee in (0.7, 1.9, 3.3):
        curve = np.maximum(knots, knee) - start.weights[hinge]
        inputs = np.column_stack([np.ones(len(knots)), start.factors[hinge]])
        solution = np.linalg.lstsq(inputs, curve)[0]
        assert np.abs(inputs @ solution - curve).max() < 0.12
        # Factors of about 1 are what the penalty on a network's own factors counts on.
        assert np.abs(solution[1:]).max() < 3.0
