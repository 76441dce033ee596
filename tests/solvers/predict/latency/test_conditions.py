"""Beyond what was measured: never slower with less to do, at most in proportion with more."""

import numpy as np
import pytest

from solvers.predict.data.samples import Queries, make_samples
from solvers.predict.latency.conditions import (
    clip_to_measured,
    highest_clock_mhz,
    log_conditions,
    measured_range,
    sorted_samples,
    varies,
)
from tests.solvers.synthetic_samples import queries_at


def queries(
    batch: list[float],
    sm_percent: list[float],
    clock_mhz: list[float],
    time_quota_percent: list[float],
) -> Queries:
    return queries_at(
        batch=batch,
        sm_percent=sm_percent,
        clock_mhz=clock_mhz,
        time_quota_percent=time_quota_percent,
        gpu_type="T4",
    )


MEASURED = measured_range(
    log_conditions(
        queries([2.0, 8.0], [20.0, 80.0], [600.0, 1200.0], [50.0, 100.0]),
        highest_clock_mhz=1200.0,
    )
)


@pytest.mark.parametrize(
    ("batch", "sm_percent", "clock_mhz", "quota", "factor"),
    [
        (4.0, 50.0, 900.0, 70.0, 1.0),
        (1.0, 100.0, 1500.0, 100.0, 1.0),  # Less work and more means: as at the edge.
        (16.0, 50.0, 900.0, 70.0, 2.0),
        (4.0, 5.0, 900.0, 70.0, 4.0),
        (4.0, 50.0, 300.0, 70.0, 2.0),
        (4.0, 50.0, 900.0, 10.0, 5.0),
        (16.0, 5.0, 900.0, 70.0, 8.0),
    ],
)
def test_the_factor_for_the_way_beyond(
    batch: float, sm_percent: float, clock_mhz: float, quota: float, factor: float
) -> None:
    logs = log_conditions(
        queries([batch], [sm_percent], [clock_mhz], [quota]), highest_clock_mhz=1200.0
    )
    inside, found = clip_to_measured(logs, MEASURED)
    assert found == pytest.approx([factor])
    assert np.all((inside >= MEASURED.low) & (inside <= MEASURED.high))


def test_an_unknown_clock_is_the_highest() -> None:
    at = queries(
        [1.0, 1.0, 1.0], [50.0] * 3, [float("nan"), 1400.0, 700.0], [100.0] * 3
    )
    logs = log_conditions(at, highest_clock_mhz=highest_clock_mhz(at))
    np.testing.assert_allclose(logs[:, 2], np.log([1.0, 1.0, 0.5]))


def test_clocks_do_not_count_when_none_was_measured() -> None:
    nowhere = queries([1.0], [50.0], [float("nan")], [100.0])
    assert highest_clock_mhz(nowhere) == 0.0
    asked = queries([1.0], [50.0], [700.0], [100.0])
    assert log_conditions(asked, highest_clock_mhz=0.0)[0, 2] == 0.0


def test_only_conditions_with_two_values_vary() -> None:
    at = queries([1.0, 2.0], [50.0, 50.0], [600.0, 600.0], [100.0, 50.0])
    logs = log_conditions(at, highest_clock_mhz=600.0)
    assert varies(measured_range(logs)).tolist() == [True, False, False, True]


def test_samples_have_an_order_of_their_own() -> None:
    at = queries([2.0, 1.0, 1.0], [50.0, 80.0, 20.0], [float("nan")] * 3, [100.0] * 3)
    samples = make_samples(at, [3.0, 1.0, 2.0])
    assert sorted_samples(samples).latency_ms.tolist() == [2.0, 1.0, 3.0]
