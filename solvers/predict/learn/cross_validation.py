"""Cross-validation: what a technique says of samples that it has not seen, and the Quality that follows from it."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import scipy

from solvers.predict.data.fit import LEVELS, Coefficients, Quality
from solvers.predict.data.sampled_range import MAX_LOG_RATIO
from solvers.predict.data.samples import Group, Indices, Queries, Reals, Samples
from solvers.predict.data.techniques import Family, TechniqueEntry, learn_family

Folds = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]

FOLDS = 5
LEAVE_ONE_OUT_UP_TO = 8
"""Conditions of one group up to which each is held out by itself."""
UNKNOWN_SIGMA = 0.3
"""Standard deviation of ln(measured / predicted) where nothing could be held out: the truth is within a factor 1.64
with 90 %. About what a curve scaled from another GPU type is off in the shipped catalogue."""
EMPIRICAL_FROM = 30
"""Held-out rows from which the quantiles of the ratios are read off; below, they follow Student's distribution."""


def hold_out_family(
    family: Family, samples: Samples, *, seed: int, judged: Indices | None = None
) -> Reals:
    """(L, N) predictions of a family's learners, learned at once, each by a fit that did not see its row.

    NaN where the others were too few. A pooled technique learns all groups in every fold, another one each group by
    itself. Only the `judged` rows are held out (None = all); the others serve every fit.
    """
    is_pooled = family[-1].is_pooled
    every_row = np.arange(len(samples))
    judged = every_row if judged is None else judged
    parts = [every_row] if is_pooled else list(samples.at.groups().values())
    predictions = np.full((len(family), len(samples)), np.nan)
    for rows in parts:
        part = samples.take(rows)
        judged_rows = np.flatnonzero(np.isin(rows, judged))
        # Fold −1 is never held out: those rows serve every fit.
        folds = np.full(len(rows), -1, dtype=np.intp)
        folds[judged_rows] = make_folds(
            part.at.take(judged_rows), seed=seed, singly=not is_pooled
        )
        for fold in range(int(folds.max(initial=-1)) + 1):
            held = np.flatnonzero(folds == fold)
            predictions[:, rows[held]] = _hold_out(family, part, folds != fold, held)
    return predictions


def _hold_out(
    family: Family, samples: Samples, is_kept: Flags, held: Indices
) -> list[Reals]:
    learned = learn_family(family, samples.take(np.flatnonzero(is_kept)))
    return [
        predict_groups(learner, own, samples.at.take(held))
        for learner, own in zip(family, learned, strict=True)
    ]


def predict_groups(
    learner: TechniqueEntry, learned: Mapping[Group, Coefficients], queries: Queries
) -> Reals:
    """(N,) predictions for queries of any groups; NaN where a group was not learned."""
    predictions = np.full(len(queries), np.nan)
    for group, rows in queries.groups().items():
        if group in learned:
            predictions[rows] = learner.predict(learned[group], queries.take(rows))
    return predictions


def make_folds(queries: Queries, *, seed: int, singly: bool = False) -> Folds:
    """(N,) the fold in which each row is held out; the rows' order does not matter.

    Rows of equal conditions are held out together, for a replicate would give the answer away. Each group is spread
    evenly over the folds. `singly`: few conditions are held out one by one.
    """
    folds = np.zeros(len(queries), dtype=np.intp)
    for rows in queries.groups().values():
        condition = _conditions(queries.take(rows))
        distinct = int(condition.max()) + 1
        count = distinct if singly and distinct <= LEAVE_ONE_OUT_UP_TO else FOLDS
        # A generator of its own for each group: what another group has does not change its folds.
        fold_of = np.random.default_rng(seed).permutation(distinct) % count
        folds[rows] = fold_of[condition]
    return folds


def _conditions(queries: Queries) -> Indices:
    """(N,) number of each row's condition, counted in sorted order."""
    # By their texts, since numpy cannot sort sets of different sizes.
    texts = np.array([repr(entry) for entry in queries.neighbours])
    _, neighbours = np.unique(texts, return_inverse=True)
    rows = np.column_stack((queries.conditions(unknown=-1.0), neighbours))
    _, condition = np.unique(rows, axis=0, return_inverse=True)
    # numpy 2.0.0 gives the inverse as a column.
    return np.asarray(condition.reshape(-1).astype(np.intp))


def judge(measured: Reals, fitted: Reals, held_out: Reals) -> Quality:
    """The quality of a fit from (N,) measured, fitted and held-out values."""
    errors = held_out_errors(measured, held_out)
    is_validated = bool(len(errors)) and bool(np.isfinite(errors).all())
    training_error = mean_error = p90_error = float("inf")
    if len(measured):
        training_error = float(np.mean(np.abs(fitted - measured) / measured))
    if is_validated:
        mean_error = float(np.mean(errors))
        p90_error = float(np.quantile(errors, 0.9))
    log_ratios = np.log(measured / held_out)[np.isfinite(held_out)]
    # Absurd ratios must remain numbers, for they are written to JSON.
    quantiles = np.clip(log_ratio_quantiles(log_ratios), -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return Quality(
        training_error=training_error,
        cross_validated_error=mean_error,
        cross_validated_error_p90=p90_error,
        sample_count=len(measured),
        ratio_quantiles=tuple(np.exp(quantiles).tolist()),
    )


def held_out_errors(measured: Reals, held_out: Reals) -> Reals:
    """(N,) relative errors; infinite where nothing was predicted."""
    errors = np.abs(held_out - measured) / measured
    return np.where(np.isfinite(held_out), errors, np.inf)


def log_ratio_quantiles(log_ratios: Reals) -> Reals:
    """(len(LEVELS),) quantiles of ln(measured / predicted) that the next measurement follows.

    Read off from EMPIRICAL_FROM ratios on, where the k-th of n has level k/(n + 1). Of fewer, by Student's distribution
    of the next normal value around 0 with their root mean square; of less than three, an unknown fit's.
    """
    count = len(log_ratios)
    if count >= EMPIRICAL_FROM:
        return np.asarray(np.quantile(log_ratios, LEVELS, method="weibull"))
    if count < 3:
        return UNKNOWN_SIGMA * np.asarray(scipy.special.ndtri(LEVELS))
    spread = float(np.sqrt(np.mean(log_ratios**2) * (1.0 + 1.0 / count)))
    return spread * np.asarray(scipy.special.stdtrit(count, LEVELS), dtype=np.float64)
