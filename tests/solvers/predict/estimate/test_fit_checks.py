"""Fits of a file that was edited are refused by name, before anything is predicted from them."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from solvers.predict.data.fit import Coefficients, Fit, Fits, Quantity
from solvers.predict.estimate.fit_checks import check_fits
from solvers.predict.learn.fit_samples import make_fits
from solvers.types.errors import InvalidInput
from tests.solvers.synthetic_samples import beside, grid_samples, joined


@pytest.fixture(scope="module")
def learned() -> Fits:
    """A fit of every quantity."""
    samples = joined(
        grid_samples(("a", "b"), noise=0.02),
        beside("a", "b", factor=1.1),
        beside("b", "a", factor=1.2),
    )
    is_alone = np.array([not neighbours for neighbours in samples.at.neighbours])
    power_w = np.where(is_alone, 60.0 + 1.5 * samples.at.sm_percent, np.nan)
    memory_mib = np.where(is_alone, 900.0 + 30.0 * samples.at.batch, np.nan)
    return make_fits(replace(samples, power_w=power_w, memory_mib=memory_mib))


def test_what_was_learned_is_accepted(learned: Fits) -> None:
    assert {fit.quantity for fit in learned.fits} == set(get_args(Quantity))
    check_fits(learned)


@pytest.mark.parametrize("quantity", get_args(Quantity))
def test_an_array_that_is_gone_or_empty_or_nothing_but_nan_is_refused(
    learned: Fits, quantity: Quantity
) -> None:
    fit = learned.of(quantity)[0]
    arrays = fit.coefficients.arrays
    for spoil in (
        lambda _: None,
        lambda _: np.zeros(0),
        lambda array: np.full_like(array, np.nan),
    ):
        spoilt = {name: spoil(array) for name, array in arrays.items()}
        _refuse(
            fit,
            Coefficients(
                arrays={
                    name: array for name, array in spoilt.items() if array is not None
                }
            ),
        )


def test_coefficients_of_another_technique_are_refused(learned: Fits) -> None:
    fit = learned.of("latency_ms")[0]
    other = (
        "linear_fractional"
        if fit.technique != "linear_fractional"
        else "piecewise_linear"
    )
    with pytest.raises(
        InvalidInput,
        match=rf"fits\[0\]\.coefficients: cannot be those of {other} .* a on ",
    ):
        check_fits(Fits(fits=(replace(fit, technique=other),)))


def test_a_latency_that_is_not_positive_is_refused() -> None:
    (fit,) = make_fits(grid_samples(), technique="factorisation_machine").fits
    level = fit.coefficients.arrays["level"]
    _refuse(
        fit,
        replace(
            fit.coefficients,
            arrays={**fit.coefficients.arrays, "level": np.full_like(level, -1e4)},
        ),
    )


def _refuse(fit: Fit, coefficients: Coefficients) -> None:
    with pytest.raises(InvalidInput, match=r"fits\[0\]\.coefficients"):
        check_fits(Fits(fits=(replace(fit, coefficients=coefficients),)))
