"""Fit interference: co-located samples and solo fits → the interference fits of every GPU type."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from solvers.predict.data.fit import (
    Coefficients,
    Fit,
    Quantity,
    TooFewSamples,
    interference_group,
)
from solvers.predict.data.interference_factor import neighbour_counts
from solvers.predict.data.samples import Indices, LayerCounts, Reals, Samples
from solvers.predict.data.techniques import find_interference, technique_names
from solvers.predict.interference import layer_counts, pressure
from solvers.predict.interference.deflate import alone_samples
from solvers.predict.learn.choose_technique import TechniqueCandidate, choose
from solvers.predict.learn.cross_validation import held_out_errors, judge, make_folds

Split = tuple[Indices, Indices]
"""Rows that are held out, and rows that are learned from."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Colocated:
    """Samples of one GPU type, alone and co-located, with what each row's latency would be alone."""

    samples: Samples
    alone_ms: Reals
    """(N,) what the solo fits say; NaN = not known."""
    layers: Mapping[str, LayerCounts]

    def take(self, rows: Indices) -> "Colocated":
        """The rows at these positions."""
        return Colocated(
            samples=self.samples.take(rows),
            alone_ms=self.alone_ms[rows],
            layers=self.layers,
        )


def fit_interference(
    colocated: Colocated, *, seed: int, source: str
) -> tuple[Fit, ...]:
    """The chosen fits for known and for unknown neighbours; none where no row has neighbours and a known alone latency.

    The error is that of the latency next to the neighbours, from the solo fit times the factor. Unknown neighbours
    are judged by leaving all samples next to one network out at a time.
    """
    has_neighbours = neighbour_counts(colocated.samples.at) > 0
    known = np.flatnonzero(has_neighbours & np.isfinite(colocated.alone_ms))
    if not len(known):
        return ()
    # Each is judged by what it is for: rows like those that were sampled, or neighbours that were not.
    tried: dict[Quantity, list[Split]] = {
        "interference": _splits_at_random(colocated.samples, known, seed=seed),
        "stranger_interference": _splits_by_neighbour(colocated.samples, known),
    }
    chosen: list[Fit] = []
    for quantity, splits in tried.items():
        candidates = list(_candidates(quantity, colocated, known, splits))
        chosen += choose({candidates[0].fit.group: candidates}) if candidates else ()
    return tuple(replace(fit, source=source) for fit in chosen)


def lend_alone(samples: Samples, alone_ms: Reals) -> Samples:
    """The samples alone, and as if alone, by the pressure law, those of networks whose latency alone is not known.

    `samples` of one GPU type; `alone_ms` (N,) as in `Colocated`. Empty when there is no such network, or no law.
    """
    is_unknown = np.zeros(len(samples), dtype=bool)
    for rows in samples.at.groups().values():
        is_unknown[rows] = not np.isfinite(alone_ms[rows]).any()
    none = samples.take(np.zeros(0, dtype=np.intp))
    if not is_unknown.any():
        return none
    try:
        coefficients = pressure.fit(samples, alone_ms)
    except TooFewSamples:
        return none
    # No group has that number of samples alone, so every row is kept and positions stay those of the samples.
    min_alone = len(samples) + 1
    every_row = alone_samples(samples, pressure, coefficients, min_alone=min_alone)
    is_alone = neighbour_counts(samples.at) == 0
    return every_row.take(np.flatnonzero(is_alone | is_unknown))


def _splits_at_random(samples: Samples, known: Indices, *, seed: int) -> list[Split]:
    folds = np.full(len(samples), -1, dtype=np.intp)
    folds[known] = make_folds(samples.at.take(known), seed=seed, singly=True)
    return [
        (np.flatnonzero(folds == fold), np.flatnonzero(folds != fold))
        for fold in range(int(folds.max()) + 1)
    ]


def _splits_by_neighbour(samples: Samples, known: Indices) -> list[Split]:
    """For each network, the rows next to it against all others."""
    neighbour_sets = [
        {neighbour.network for neighbour in neighbours}
        for neighbours in samples.at.neighbours
    ]
    splits = []
    for network in sorted(set().union(*neighbour_sets)):
        beside = np.array([network in names for names in neighbour_sets], dtype=bool)
        held = np.intersect1d(np.flatnonzero(beside), known)
        splits.append((held, np.flatnonzero(~beside)))
    return splits


def _candidates(
    quantity: Quantity, colocated: Colocated, known: Indices, splits: list[Split]
) -> Iterator[TechniqueCandidate]:
    measured = colocated.samples.latency_ms[known]
    for name in technique_names(quantity):
        try:
            coefficients = _fit(name, colocated)
        except TooFewSamples:
            continue
        held_out = _hold_out(name, colocated, splits)[known]
        fitted = _latency_ms(name, coefficients, colocated.take(known))
        fit = Fit(
            quantity=quantity,
            group=interference_group(colocated.samples.at.gpu_type[0]),
            technique=name,
            coefficients=coefficients,
            quality=judge(measured, fitted, held_out),
        )
        errors = held_out_errors(measured, held_out)
        yield TechniqueCandidate(fit=fit, errors=errors)


def _hold_out(name: str, colocated: Colocated, splits: list[Split]) -> Reals:
    """(N,) latencies next to the neighbours, each by a fit that did not see its row; NaN where there is none."""
    predictions = np.full(len(colocated.samples), np.nan)
    for held, kept in splits:
        try:
            coefficients = _fit(name, colocated.take(kept))
        except TooFewSamples:
            continue
        predictions[held] = _latency_ms(name, coefficients, colocated.take(held))
    return predictions


def _fit(name: str, colocated: Colocated) -> Coefficients:
    if name == "layer_counts":
        return layer_counts.fit(colocated.samples, colocated.alone_ms, colocated.layers)
    return find_interference(name).fit(colocated.samples, colocated.alone_ms)


def _latency_ms(name: str, coefficients: Coefficients, colocated: Colocated) -> Reals:
    at = colocated.samples.at
    alone_ms = colocated.alone_ms
    return alone_ms * find_interference(name).predict(coefficients, at, alone_ms)
