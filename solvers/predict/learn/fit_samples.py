"""Fit: samples → fits. Every technique is tried on every group; the one that foresees held-out samples best is kept."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from solvers.predict.data.fit import Fit, Fits, Quantity
from solvers.predict.data.interference_factor import neighbour_counts
from solvers.predict.data.sample_checks import check_samples
from solvers.predict.data.sampled_range import sampled_range
from solvers.predict.data.samples import Group, Indices, LayerCounts, Reals, Samples
from solvers.predict.data.techniques import (
    LEARNERS,
    Family,
    TechniqueEntry,
    families,
    find_learner,
    learn_family,
)
from solvers.predict.estimate.predict import predict_quantity
from solvers.predict.interference.layer_counts import NO_LAYERS
from solvers.predict.learn.choose_technique import TechniqueCandidate, choose
from solvers.predict.learn.cross_validation import (
    held_out_errors,
    hold_out_family,
    judge,
    predict_groups,
)
from solvers.predict.learn.fit_interference import (
    Colocated,
    fit_interference,
    lend_alone,
)
from solvers.types.errors import InvalidInput

AUTO = "auto"
NO_FITS = Fits(fits=())


def make_fits(
    samples: Samples,
    *,
    technique: str = AUTO,
    layers: Mapping[str, LayerCounts] = NO_LAYERS,
    seed: int = 0,
    source: str = "",
) -> Fits:
    """The best fit of every quantity and group that the samples tell of.

    `technique`: `auto`, or the one latency technique to use. `layers` by network, for neighbours that were never
    sampled. The rows' order does not matter. Raises InvalidInput for rows that no measurement can be and for an
    unknown technique.
    """
    check_samples(samples)
    samples = samples.take(_order(samples))
    maker = _Maker(
        learners=_latency_learners(technique), layers=layers, seed=seed, source=source
    )
    alone = samples.take(np.flatnonzero(neighbour_counts(samples.at) == 0))
    fits = [*maker.fit_latency(alone), *maker.fit_others(alone)]
    for rows in _colocated_types(samples):
        fits += maker.fit_interference(samples.take(rows), Fits(fits=tuple(fits)))
    return Fits(fits=tuple(sorted(fits, key=lambda fit: (fit.quantity, fit.group))))


def _order(samples: Samples) -> Indices:
    """The rows in an order of their own, so that sums come out the same to the last bit."""
    at = samples.at
    measured = np.column_stack(
        (
            samples.latency_ms,
            samples.power_w,
            samples.memory_mib,
            samples.l2_util_percent,
        )
    )
    # NaN has no order; nothing that is measured is negative.
    known = np.nan_to_num(measured, nan=-1.0)
    rows = np.hstack((at.conditions(unknown=-1.0), known)).tolist()
    keys = list(zip(at.network, at.gpu_type, at.neighbours, rows, strict=True))
    return np.array(sorted(range(len(samples)), key=keys.__getitem__), dtype=np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """What all fits of one run have in common."""

    learners: tuple[TechniqueEntry, ...]
    layers: Mapping[str, LayerCounts]
    seed: int
    source: str

    def fit_latency(self, alone: Samples, *, known: Fits = NO_FITS) -> tuple[Fit, ...]:
        """The fits of groups that are not known yet; the others serve techniques that learn all groups at once."""
        return self._fit(
            "latency_ms", self.learners, alone, alone.latency_ms, known=known
        )

    def fit_others(self, alone: Samples) -> Iterator[Fit]:
        """Power and memory, where measured."""
        yield from self._fit("power_w", LEARNERS["power_w"], alone, alone.power_w)
        yield from self._fit(
            "memory_mib", LEARNERS["memory_mib"], alone, alone.memory_mib
        )

    def fit_interference(self, samples: Samples, known: Fits) -> Iterator[Fit]:
        """Interference on one GPU type, and the latency alone of networks that were only measured with neighbours."""
        # Without a latency alone there is no factor: such networks are first fitted to deflated samples.
        lent = lend_alone(samples, _alone_ms(known, samples))
        added = self.fit_latency(lent, known=known)
        yield from added
        alone_ms = _alone_ms(Fits(fits=(*known.fits, *added)), samples)
        colocated = Colocated(samples=samples, alone_ms=alone_ms, layers=self.layers)
        yield from fit_interference(colocated, seed=self.seed, source=self.source)

    def _fit(
        self,
        quantity: Quantity,
        learners: tuple[TechniqueEntry, ...],
        samples: Samples,
        measured: Reals,
        *,
        known: Fits = NO_FITS,
    ) -> tuple[Fit, ...]:
        """The chosen fit of one quantity for every group that some technique can learn and is not known, by group."""
        groups = samples.at.groups()
        new = {
            group: rows
            for group, rows in groups.items()
            if known.find(quantity, group) is None
        }
        own = np.sort(np.concatenate([np.zeros(0, dtype=np.intp), *new.values()]))
        judged = own[np.isfinite(measured[own])]
        if not len(judged):
            return ()
        candidates: dict[Group, list[TechniqueCandidate]] = defaultdict(list)
        for family in families(_worth_trying(learners, len(groups))):
            # What is known of other groups helps a pooled technique; another one would only take longer.
            rows = np.arange(len(samples)) if family[-1].is_pooled else own
            part = samples.take(rows)
            judged_there = np.searchsorted(rows, judged)
            trial = _Trial(quantity, family, judged_there, self.seed)
            for candidate in _candidates(trial, part, measured[rows]):
                if candidate.fit.group in new:
                    candidates[candidate.fit.group].append(candidate)
        return tuple(replace(fit, source=self.source) for fit in choose(candidates))


def _worth_trying(
    learners: tuple[TechniqueEntry, ...], groups: int
) -> tuple[TechniqueEntry, ...]:
    """The learners for `groups` groups; one that was asked for by name is tried all the same."""
    return tuple(each for each in learners if groups >= each.min_groups) or learners


def _colocated_types(samples: Samples) -> Iterator[Indices]:
    """The rows of every GPU type on which something was measured next to neighbours."""
    gpu_type = np.array(samples.at.gpu_type)
    has_neighbours = neighbour_counts(samples.at) > 0
    for name in sorted(set(gpu_type[has_neighbours].tolist())):
        yield np.flatnonzero(gpu_type == name)


def _alone_ms(fits: Fits, samples: Samples) -> Reals:
    """(N,) latency that each row would have alone; NaN where its network is not known."""
    return predict_quantity(fits, "latency_ms", samples.at.alone())


class _Trial(NamedTuple):
    """What is learned at once, and on which rows of the samples it is judged."""

    quantity: Quantity
    family: Family
    judged: Indices
    seed: int


def _candidates(
    trial: _Trial, samples: Samples, measured: Reals
) -> Iterator[TechniqueCandidate]:
    """A family's fits of every group that it can learn."""
    family = trial.family
    learned_at_once = learn_family(family, samples)
    held_out_at_once = hold_out_family(
        family, samples, seed=trial.seed, judged=trial.judged
    )
    for learner, learned, held_out in zip(
        family, learned_at_once, held_out_at_once, strict=True
    ):
        fitted = predict_groups(learner, learned, samples.at)
        for group, of_group in samples.at.groups().items():
            if group not in learned:
                continue
            rows = np.intersect1d(of_group, trial.judged)
            fit = Fit(
                quantity=trial.quantity,
                group=group,
                technique=learner.name,
                coefficients=learned[group],
                quality=judge(measured[rows], fitted[rows], held_out[rows]),
                sampled=sampled_range(samples.at.take(rows)),
            )
            errors = held_out_errors(measured[rows], held_out[rows])
            yield TechniqueCandidate(fit=fit, errors=errors)


def _latency_learners(technique: str) -> tuple[TechniqueEntry, ...]:
    if technique == AUTO:
        return LEARNERS["latency_ms"]
    try:
        return (find_learner("latency_ms", technique),)
    except KeyError:
        known = ", ".join((AUTO, *(learner.name for learner in LEARNERS["latency_ms"])))
        raise InvalidInput(
            "technique", f"no technique is called {technique!r}; there are {known}"
        ) from None
