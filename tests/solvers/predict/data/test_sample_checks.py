"""Rows that no measurement can be are refused with their place, what is wrong and what to do."""

from dataclasses import replace

import numpy as np
import pytest

from solvers.predict.data.sample_checks import check_queries, check_samples
from solvers.predict.data.samples import Neighbour, Queries, Samples
from solvers.predict.estimate.predict import predict_latency
from solvers.predict.learn.fit_samples import make_fits
from solvers.types.errors import InvalidInput
from tests.solvers.synthetic_samples import grid_samples

NAN, INF = float("nan"), float("inf")
REMEDY = "correct the row or leave it out"


def with_value(samples: Samples, column: str, value: float, *, row: int = 3) -> Samples:
    """The samples with one figure replaced."""
    holder: Samples | Queries = samples if hasattr(samples, column) else samples.at
    values = getattr(holder, column).copy()
    values[row] = value
    if isinstance(holder, Samples):
        return replace(samples, **{column: values})
    return replace(samples, at=replace(holder, **{column: values}))


@pytest.mark.parametrize("value", [NAN, INF, -INF, 0.0, -1.0, 1e13])
@pytest.mark.parametrize(
    "column", ["latency_ms", "batch", "sm_percent", "time_quota_percent"]
)
def test_a_needed_figure_that_cannot_be_is_refused(column: str, value: float) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_samples(with_value(grid_samples(), column, value))
    assert refused.value.field == f"rows[3].{column}"
    found = "nothing" if np.isnan(value) else f"{value:g}"
    assert refused.value.problem.endswith(f", not {found}; {REMEDY}")


@pytest.mark.parametrize("value", [INF, -INF, 0.0, -1.0, 1e13])
@pytest.mark.parametrize(
    "column", ["clock_mhz", "power_limit_w", "power_w", "memory_mib"]
)
def test_a_figure_may_lack_but_not_be_impossible(column: str, value: float) -> None:
    check_samples(with_value(grid_samples(), column, NAN))
    with pytest.raises(
        InvalidInput,
        match=rf"rows\[3\]\.{column}.* must be a number above 0 .*{REMEDY}",
    ):
        check_samples(with_value(grid_samples(), column, value))


@pytest.mark.parametrize(
    ("column", "least", "most"),
    [
        ("batch", 1.0, 65536.0),
        ("sm_percent", 1e-9, 100.0),
        ("l2_util_percent", 0.0, 100.0),
        ("latency_ms", 1e-9, 1e12),
    ],
)
def test_the_ends_of_a_range_are_allowed(
    column: str, least: float, most: float
) -> None:
    for value in (least, most):
        check_samples(with_value(grid_samples(), column, value))
    with pytest.raises(InvalidInput, match=column):
        check_samples(with_value(grid_samples(), column, most * 1.001))


def test_the_first_wrong_row_is_named() -> None:
    samples = with_value(
        with_value(grid_samples(), "latency_ms", NAN, row=17), "latency_ms", -2.0, row=5
    )
    with pytest.raises(InvalidInput, match=r"rows\[5\]\.latency_ms"):
        check_samples(samples)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 254])
def test_a_name_that_no_document_can_hold_is_refused(name: str) -> None:
    at = grid_samples().at
    for column in ("network", "gpu_type"):
        names = (*("a",) * 7, name, *("a",) * 32)
        with pytest.raises(InvalidInput, match=rf"rows\[7\]\.{column}"):
            check_queries(replace(at, **{column: names}))
    with pytest.raises(InvalidInput, match=r"rows\[0\]\.neighbours"):
        check_queries(
            replace(at, neighbours=((Neighbour(name, 4.0, 50.0),),) * len(at))
        )


@pytest.mark.parametrize(
    ("batch", "share"),
    [(0.5, 50.0), (NAN, 50.0), (INF, 50.0), (4.0, 0.0), (4.0, 101.0)],
)
def test_a_neighbour_that_cannot_be_is_refused(batch: float, share: float) -> None:
    at = grid_samples().at
    neighbours = (Neighbour("b", 2.0, 10.0), Neighbour("vgg19", batch, share))
    with pytest.raises(InvalidInput, match=r"rows\[9\]\.neighbours: .*vgg19"):
        check_queries(replace(at, neighbours=(*((),) * 9, neighbours, *((),) * 30)))


@pytest.mark.parametrize("column", ["batch", "clock_mhz"])
def test_a_column_of_another_length_is_refused(column: str) -> None:
    at = grid_samples().at
    with pytest.raises(InvalidInput, match=f"{column}: has 39 values for 40 rows"):
        check_queries(replace(at, **{column: getattr(at, column)[1:]}))


def test_names_of_another_length_are_refused() -> None:
    at = grid_samples().at
    with pytest.raises(InvalidInput, match="gpu_type: has 2 values for 40 rows"):
        check_queries(replace(at, gpu_type=("T4", "T4")))


def test_no_rows_are_refused_in_samples_and_allowed_in_queries() -> None:
    nothing = grid_samples().take(np.zeros(0, dtype=np.intp))
    with pytest.raises(InvalidInput, match="there are none"):
        check_samples(nothing)
    check_queries(nothing.at)


def test_fits_and_predictions_refuse_what_cannot_be() -> None:
    samples = grid_samples()
    with pytest.raises(InvalidInput, match=r"rows\[3\]\.latency_ms"):
        make_fits(with_value(samples, "latency_ms", 0.0))
    fits = make_fits(samples, technique="linear_fractional")
    with pytest.raises(InvalidInput, match=r"rows\[3\]\.sm_percent"):
        predict_latency(fits, with_value(samples, "sm_percent", NAN).at)
