"""Cross-validation: who is held out together, and what follows for a fit's quality."""

import numpy as np
import pytest

from solvers.predict.data.fit import LEVELS, Coefficients
from solvers.predict.data.samples import Group, Queries, Reals, Samples
from solvers.predict.data.techniques import TechniqueEntry
from solvers.predict.learn.cross_validation import (
    EMPIRICAL_FROM,
    FOLDS,
    UNKNOWN_SIGMA,
    hold_out_family,
    judge,
    log_ratio_quantiles,
    make_folds,
)
from tests.solvers.synthetic_samples import grid_samples, samples_at


def test_equal_conditions_are_held_out_together() -> None:
    samples = samples_at(
        [1, 2, 1, 4, 2, 1], [50, 50, 50, 50, 50, 100], [1, 2, 3, 4, 5, 6]
    )
    folds = make_folds(samples.at, seed=3, singly=True)
    assert folds[0] == folds[2]
    assert folds[1] == folds[4]
    assert len(set(folds.tolist())) == 4


def test_each_group_is_spread_evenly_over_the_folds() -> None:
    folds = make_folds(grid_samples(("a", "b")).at, seed=0)
    for part in (folds[:40], folds[40:]):
        assert np.bincount(part).tolist() == [8] * FOLDS


def test_rows_with_other_neighbours_are_other_conditions() -> None:
    alone, beside = grid_samples(), grid_samples(neighbours=(("b", 4.0, 50.0),))  # type: ignore[arg-type]
    at = Queries(
        network=alone.at.network + beside.at.network,
        gpu_type=alone.at.gpu_type + beside.at.gpu_type,
        batch=np.concatenate((alone.at.batch, beside.at.batch)),
        sm_percent=np.concatenate((alone.at.sm_percent, beside.at.sm_percent)),
        clock_mhz=np.concatenate((alone.at.clock_mhz, beside.at.clock_mhz)),
        time_quota_percent=np.concatenate(
            (alone.at.time_quota_percent, beside.at.time_quota_percent)
        ),
        power_limit_w=np.concatenate((alone.at.power_limit_w, beside.at.power_limit_w)),
        neighbours=alone.at.neighbours + beside.at.neighbours,
    )
    assert np.bincount(make_folds(at, seed=0)).tolist() == [16] * FOLDS


class _MeanLearner(TechniqueEntry):
    """Predicts the mean of what it has seen, and remembers how much that was."""

    __slots__ = ()

    def fit_groups(self, samples: Samples) -> dict[Group, Coefficients]:
        return {
            group: Coefficients(
                arrays={"mean": np.array(samples.latency_ms[rows].mean())}
            )
            for group, rows in samples.at.groups().items()
        }

    def predict(self, coefficients: Coefficients, queries: Queries) -> Reals:
        return np.full(len(queries), float(coefficients.arrays["mean"]))


def hold_out(learner: TechniqueEntry, samples: Samples, *, seed: int) -> Reals:
    """(N,) what a learner says of each row by a fit that did not see it."""
    predictions: Reals = hold_out_family((learner,), samples, seed=seed)[0]
    return predictions


def test_a_held_out_row_does_not_tell_of_itself() -> None:
    samples = samples_at([1, 2, 4], [50, 50, 50], [3.0, 6.0, 12.0])
    predictions = hold_out(_MeanLearner(name="mean", package=""), samples, seed=0)
    # Each is the mean of the other two.
    assert predictions == pytest.approx([9.0, 7.5, 4.5])


class _EmptyHandedLearner(_MeanLearner):
    __slots__ = ()

    def fit_groups(self, samples: Samples) -> dict[Group, Coefficients]:
        return {}


def test_what_cannot_be_learned_is_not_a_number() -> None:
    assert np.isnan(
        hold_out(_EmptyHandedLearner(name="none", package=""), grid_samples(), seed=0)
    ).all()


def test_errors_are_relative_to_the_measurement() -> None:
    quality = judge(np.array([2.0, 4.0]), np.array([2.2, 4.0]), np.array([1.0, 5.0]))
    # Training: (0.1 + 0) / 2. Held out: (0.5 + 0.25) / 2.
    assert quality.training_error == pytest.approx(0.05)
    assert quality.cross_validated_error == pytest.approx(0.375)
    assert quality.sample_count == 2


def test_a_row_without_prediction_makes_the_error_infinite() -> None:
    quality = judge(np.ones(3), np.ones(3), np.array([1.0, np.nan, 1.0]))
    assert quality.cross_validated_error == float("inf")


def test_of_many_ratios_the_quantiles_are_read_off() -> None:
    # The k-th of 199 has level k/200.
    ratios = np.linspace(-0.99, 0.99, 199)
    assert log_ratio_quantiles(ratios) == pytest.approx(
        [-0.9, -0.5, 0.0, 0.5, 0.8, 0.9, 0.98], abs=1e-12
    )


def test_without_ratios_the_uncertainty_is_that_of_an_unknown_fit() -> None:
    assert log_ratio_quantiles(np.array([]))[LEVELS.index(0.95)] == pytest.approx(
        1.645 * UNKNOWN_SIGMA, rel=1e-3
    )


@pytest.mark.parametrize("count", [5, 12, EMPIRICAL_FROM, 200])
def test_the_ninety_percent_interval_covers_about_ninety_percent(count: int) -> None:
    generator = np.random.default_rng(count)
    low, high = LEVELS.index(0.05), LEVELS.index(0.95)
    covered = []
    for _ in range(400):
        quantiles = log_ratio_quantiles(generator.normal(0.0, 0.2, count))
        covered.append(quantiles[low] <= generator.normal(0.0, 0.2) <= quantiles[high])
    assert 0.85 <= np.mean(covered) <= 0.95
