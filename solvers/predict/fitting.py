"""Fit: samples → fits. Every technique is tried on every group; the one that foresees held-out samples best is kept."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from solvers.errors import InvalidInput
from solvers.predict.check_samples import check_samples
from solvers.predict.cross_validation import hold_out, judge, predict_groups
from solvers.predict.fit import Fit, Quantity
from solvers.predict.fits import Fits
from solvers.predict.samples import Group, Reals, Samples
from solvers.predict.techniques import LEARNERS, Learner, find_learner

AUTO = "auto"


def make_fits(samples: Samples, *, technique: str = AUTO, seed: int = 0, source: str = "") -> Fits:
    """The best fit of every quantity and group that the samples tell of.

    `technique`: `auto`, or the one latency technique to use. The rows' order does not matter. Raises InvalidInput for
    rows that no measurement can be, for an unknown technique, and where a network cannot be learned from its rows.
    """
    check_samples(samples)
    learners = _latency_learners(technique)
    is_alone = np.array([not company for company in samples.at.neighbours], dtype=bool)
    alone = samples.take(np.flatnonzero(is_alone))
    latency = fit_quantity("latency_ms", alone, alone.latency_ms, learners=learners, seed=seed, source=source)
    return Fits(fits=latency)


def fit_quantity(
    quantity: Quantity,
    samples: Samples,
    measured: Reals,
    *,
    learners: tuple[Learner, ...],
    seed: int,
    source: str,
) -> tuple[Fit, ...]:
    """The chosen fit of one quantity for every group among the samples that some technique can learn, by group."""
    candidates: dict[Group, list[Fit]] = {}
    for learner in learners:
        for fit in _fits_of(quantity, learner, samples, measured, seed=seed):
            candidates.setdefault(fit.group, []).append(replace(fit, source=source))
    return tuple(choose(candidates[group]) for group in sorted(candidates))


def choose(candidates: list[Fit]) -> Fit:
    """The candidate with the least cross-validated error, the earlier of equals; it names the others."""
    ranked = sorted(candidates, key=lambda fit: fit.quality.cross_validated_error)
    rejected = tuple((fit.technique, fit.quality.cross_validated_error) for fit in ranked[1:])
    return replace(ranked[0], rejected=rejected)


def _fits_of(quantity: Quantity, learner: Learner, samples: Samples, measured: Reals, *, seed: int) -> Iterator[Fit]:
    """One technique's fit of every group that it can learn."""
    learned = learner.fit_groups(samples)
    fitted = predict_groups(learner, learned, samples.at)
    held_out = hold_out(learner, samples, seed=seed)
    for group, rows in samples.at.groups().items():
        if group in learned:
            yield Fit(
                quantity=quantity,
                group=group,
                technique=learner.name,
                coefficients=learned[group],
                quality=judge(measured[rows], fitted[rows], held_out[rows]),
            )


def _latency_learners(technique: str) -> tuple[Learner, ...]:
    if technique == AUTO:
        return LEARNERS["latency_ms"]
    try:
        return (find_learner("latency_ms", technique),)
    except KeyError:
        known = ", ".join((AUTO, *(learner.name for learner in LEARNERS["latency_ms"])))
        raise InvalidInput("technique", f"no technique is called {technique!r}; there are {known}") from None
