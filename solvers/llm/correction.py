"""What measurements say of the step law: a Gaussian process over the logarithm of measured over predicted times.

    ln(measured / law) = offsets of the network, of runtime and GPU type, of network and GPU type, and of the
                         configuration (all of these with precision and degree)
                       + smooth parts in the logarithms of clients, prompt and output: of runtime and network, of the
                         layout (these with precision and degree, on any GPU type), and of the configuration
                       + noise, by Student's t

Offsets and smooth parts are normal. Their deviations were chosen among the measured servers that ship with the
catalogue by leaving out random quarters, GPU types but for two points of each configuration, and networks but for four:
`python -m bench.llm.accuracy` prints what follows from them. The likelihood is no judge: it takes servers that differ
in what they are not described by for noise of all. Kriging: Rasmussen, Williams 2006, chapter 2. Intervals are widened
until about nine in ten rows that were left out lie within.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from solvers.llm.belief import UNMEASURED, StepBelief
from solvers.llm.closed_loop import ClosedClients, closed_loop_means
from solvers.llm.measured import MeasuredRun, RunConditions
from solvers.llm.runtimes import RUNTIMES
from solvers.llm.step_law import (
    EngineWork,
    Reals,
    RuntimeFactors,
    engine_work,
    stack_works,
    with_windows,
)

# Standard deviations of the parts of ln(measured / law).
_NETWORK = 0.2
_RUNTIME_GPU_TYPE = 0.07
_NETWORK_GPU_TYPE = 0.05
_CONFIGURATION = 0.1
_SMOOTH_NETWORK = 0.08
_SMOOTH_LAYOUT = 0.09
_SMOOTH_CONFIGURATION = 0.13
_NOISE = 0.035
_FREEDOM = 3.0
"""Degrees of freedom of the noise: 2 to 4 do as well."""
_WEIGHINGS = 2
"""Rounds in which runs are weighed: five change next to nothing."""
_SERVED_NOISE = 0.01
"""The same of a service's own replicas, whose every token is counted, and which are planned for as they are run."""
_BELIEVED = np.log(2.0)
"""How far replicas may be from what was known before: beyond it they have a fault, such as a throttled GPU, which says
nothing of others, and for which nothing is to be stopped."""
_WIDENING = 1.5
"""Times as wide as the process says: its errors have heavier tails."""
_SCALES = np.log([9.0, 8.0, 12.0])
"""Length scales of clients, prompt and output: this many times as much is another condition."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CorrectedTimes:
    """(N,) what ln(measured / law) is expected to be, and its standard deviation."""

    log_factor: Reals
    deviation: Reals


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeighedRuns:
    """M runs that were measured, and how far each may be off what it tells of others."""

    conditions: Sequence[RunConditions]
    log_ratio: Reals
    """(M,) ln(measured / law)."""
    noises: Reals
    """(M,) standard deviations."""
    noise: float
    """That of another run."""
    served: frozenset[RunConditions] = frozenset()
    """Those of replicas of one's own."""


def weigh(
    conditions: Sequence[RunConditions], log_ratio: Reals, *, noise: float = _NOISE
) -> WeighedRuns:
    """Runs, of which those that the others contradict count less. O(M³)."""
    variance = np.full(len(conditions), noise**2)
    if conditions:
        prior = _covariance(conditions, conditions)
        for _ in range(_WEIGHINGS):
            squared = _squared_noise(prior, variance, log_ratio)
            variance = (_FREEDOM * noise**2 + squared) / (_FREEDOM + 1.0)
    return WeighedRuns(
        conditions=conditions,
        log_ratio=log_ratio,
        noises=np.sqrt(variance),
        noise=noise,
    )


def _squared_noise(prior: Reals, variance: Reals, log_ratio: Reals) -> Reals:
    """(M,) the square that the noise of each run is expected to have, given all runs.

    Most runs of one configuration on one load are near each other, and some far apart (`python -m bench.llm.accuracy`):
    they differ in versions and settings that `RunConditions` does not hold. So their noise is Student's t, found by
    expectation and maximisation (Lange, Little, Taylor 1989, section 3).
    """
    factor = np.linalg.cholesky(prior + np.diag(variance))
    inverse = solve_triangular(factor, np.eye(len(variance)), lower=True)
    mean = variance * (inverse.T @ (inverse @ log_ratio))
    unsure = variance - variance**2 * np.sum(inverse**2, axis=0)
    return np.asarray(mean**2 + np.maximum(unsure, 0.0))


def correct(known: WeighedRuns, asked: Sequence[RunConditions]) -> CorrectedTimes:
    """What measured runs say of N others. O(M³); M ≥ 1."""
    own = set(map(_configuration, known.served))
    covariance = _covariance(known.conditions, known.conditions)
    covariance[np.diag_indices_from(covariance)] += np.square(known.noises)
    between = _covariance(asked, known.conditions)
    factor = np.linalg.cholesky(covariance)
    solved = solve_triangular(factor, known.log_ratio, lower=True)
    explained = solve_triangular(factor, between.T, lower=True)
    mean = explained.T @ solved
    # Before anything is measured; what the measurements explain is known.
    before = _covariance(asked, asked).diagonal()
    left = np.maximum(before - np.sum(explained**2, axis=0), 0.0)
    # Another measurement of theirs would scatter as little.
    again = [
        _SERVED_NOISE if _configuration(each) in own else known.noise for each in asked
    ]
    return CorrectedTimes(
        log_factor=np.asarray(mean),
        deviation=_WIDENING * np.sqrt(left + np.square(again)),
    )


def _covariance(one: Sequence[RunConditions], other: Sequence[RunConditions]) -> Reals:
    """(N, M)"""
    of_configuration = _same(one, other, _configuration)
    found = _NETWORK**2 * _same(one, other, lambda each: each.network)
    found += _RUNTIME_GPU_TYPE**2 * _same(one, other, _runtime_gpu_type)
    found += _NETWORK_GPU_TYPE**2 * _same(one, other, _network_gpu_type)
    found += _CONFIGURATION**2 * of_configuration
    smooth = _SMOOTH_NETWORK**2 * _same(one, other, _runtime_network)
    smooth += _SMOOTH_LAYOUT**2 * _same(one, other, _layout)
    smooth += _SMOOTH_CONFIGURATION**2 * of_configuration
    return np.asarray(found + smooth * _nearness(one, other))


def _runtime_gpu_type(run: RunConditions) -> tuple[str, str]:
    return run.runtime, run.gpu_type


def _network_gpu_type(run: RunConditions) -> tuple[str, str]:
    return run.network, run.gpu_type


def _runtime_network(run: RunConditions) -> tuple[str, str]:
    return run.runtime, run.network


def _layout(run: RunConditions) -> tuple[object, ...]:
    return run.runtime, run.network, run.precision, run.tp


def _configuration(run: RunConditions) -> tuple[object, ...]:
    return run.runtime, run.network, run.gpu_type, run.precision, run.tp


def _same(
    one: Sequence[RunConditions],
    other: Sequence[RunConditions],
    key: Callable[[RunConditions], object],
) -> Reals:
    """(N, M) 1 where both have the same key, else 0."""
    numbers: dict[object, int] = {}
    of_one = np.array([numbers.setdefault(key(each), len(numbers)) for each in one])
    of_other = np.array([numbers.setdefault(key(each), len(numbers)) for each in other])
    return np.asarray(of_one[:, None] == of_other[None, :], dtype=np.float64)


def _nearness(one: Sequence[RunConditions], other: Sequence[RunConditions]) -> Reals:
    """(N, M) 1 for the same conditions, falling to 0 with the distance of their logarithms."""
    of_one, of_other = _places(one), _places(other)
    # (a − b)² = a² + b² − 2ab takes a tenth of the time that all differences take.
    squared = np.sum(of_one**2, axis=1)[:, None] + np.sum(of_other**2, axis=1)
    squared -= 2.0 * of_one @ of_other.T
    return np.asarray(np.exp(-0.5 * np.maximum(squared, 0.0)))


def _places(runs: Sequence[RunConditions]) -> Reals:
    rows = [(run.clients, run.prompt, run.output) for run in runs]
    return np.asarray(np.log(np.array(rows, dtype=np.float64)) / _SCALES)


class StepBeliefs:
    """What measured runs say of steps, for any network, GPU type and degree."""

    def __init__(self, runs: Sequence[MeasuredRun]) -> None:
        conditions = [run.conditions for run in runs]
        self._known = weigh(conditions, _log_ratio(runs))

    def with_stated(self, runs: Sequence[MeasuredRun]) -> "StepBeliefs":
        """These and what users measured of servers of their own, which counts in full: others contradict it in vain."""
        known = self._known
        return self._with(
            [run.conditions for run in runs],
            _log_ratio(runs) if runs else [],
            noise=known.noise,
            served=known.served,
        )

    def with_served(self, runs: Sequence[MeasuredRun]) -> "StepBeliefs":
        """These and what a service's own replicas say, as far as it can be."""
        if not runs:
            return self
        before = self.of_each([run.conditions for run in runs])
        believed = [
            (run.conditions, ratio)
            for run, ratio, belief in zip(runs, _log_ratio(runs), before, strict=True)
            if abs(ratio - belief.log_factor) <= _BELIEVED
        ]
        if not believed:
            return self
        conditions, ratios = zip(*believed, strict=True)
        served = frozenset(conditions)
        return self._with(conditions, ratios, noise=_SERVED_NOISE, served=served)

    def _with(
        self,
        conditions: Sequence[RunConditions],
        ratios: Sequence[float] | Reals,
        *,
        noise: float,
        served: frozenset[RunConditions],
    ) -> "StepBeliefs":
        """These and more runs of one noise."""
        # A copy, and not made of all runs again: the law of a thousand takes a second.
        both = copy(self)
        known = self._known
        both._known = replace(
            known,
            conditions=[*known.conditions, *conditions],
            log_ratio=np.append(known.log_ratio, ratios),
            noises=np.append(known.noises, np.full(len(conditions), noise)),
            served=served,
        )
        return both

    def of(self, asked: RunConditions) -> StepBelief:
        """The belief under those conditions."""
        (belief,) = self.of_each([asked])
        return belief

    def of_each(self, asked: Sequence[RunConditions]) -> list[StepBelief]:
        """The beliefs under several conditions, in the time of one: O(M³) for M runs."""
        if not (self._known.conditions and asked):
            return [UNMEASURED] * len(asked)
        # The runs alone take long, those that are asked for next to nothing.
        found = correct(self._known, asked)
        measured = set(map(_configuration, self._known.conditions))
        return [
            StepBelief(
                log_factor=float(log_factor),
                # What was left out as a whole was off by less than the sum of all parts may be.
                deviation=min(float(deviation), UNMEASURED.deviation),
                is_measured=_configuration(each) in measured,
            )
            for each, log_factor, deviation in zip(
                asked, found.log_factor, found.deviation, strict=True
            )
        ]


def _log_ratio(runs: Sequence[MeasuredRun]) -> Reals:
    """(M,) ln(measured / law)."""
    return np.asarray(np.log([run.tpot_ms for run in runs]) - np.log(_law_ms(runs)))


def _law_ms(runs: Sequence[MeasuredRun]) -> Reals:
    """(M,) the times between tokens that the law says of runs."""
    conditions = [run.conditions for run in runs]
    clients = ClosedClients(
        count=np.array([each.clients for each in conditions]),
        prompt=np.array([each.prompt for each in conditions]),
        output=np.array([max(2.0, each.output) for each in conditions]),
        budget=np.array([each.budget for each in conditions]),
    )
    work = stack_works([_work_of(run) for run in runs])
    return closed_loop_means(work, _factors_of(runs), clients).tpot_ms


def _work_of(run: MeasuredRun) -> EngineWork:
    prompt, output = run.conditions.prompt, run.conditions.output
    return with_windows(
        engine_work(run.engine),
        run.engine,
        cached=prompt + output / 2.0,
        prompt=prompt,
    )


def _factors_of(runs: Sequence[MeasuredRun]) -> RuntimeFactors:
    """Each field is an array, with each run's own."""
    # All runs at once take less than one of them takes for itself.
    own = [RUNTIMES[run.engine.runtime] for run in runs]
    factors: dict[str, Any] = {
        each.name: np.array([getattr(one, each.name) for one in own])
        for each in fields(RuntimeFactors)
    }
    return RuntimeFactors(**factors)
