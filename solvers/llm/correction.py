"""What measurements say of the step law: a Gaussian process over the logarithm of measured over predicted times.

    ln(measured / law) = offsets of the network, of runtime and network, of runtime and GPU type, of network and GPU
                         type, and of the configuration (all of these with precision and degree)
                       + smooth parts in the logarithms of clients, prompt and output, one of runtime and network and
                         one of the configuration
                       + noise

Offsets and smooth parts are normal with deviations near the most likely ones among the measured servers that ship with
the catalogue; `python -m bench.llm.accuracy` prints what follows from them for rows that are left out. Kriging:
Rasmussen, Williams 2006, chapter 2. Intervals are widened until about nine in ten rows that were left out lie within.
"""

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from solvers.llm.belief import UNMEASURED, StepBelief
from solvers.llm.closed_loop import ClosedClients, closed_loop_means
from solvers.llm.measured import MeasuredRun, RunConditions
from solvers.llm.runtimes import RUNTIMES
from solvers.llm.step_law import Reals, RuntimeFactors, engine_work, stack_works

# Standard deviations of the parts of ln(measured / law).
_NETWORK = 0.09
_RUNTIME_NETWORK = 0.09
_RUNTIME_GPU_TYPE = 0.07
_NETWORK_GPU_TYPE = 0.08
_CONFIGURATION = 0.07
_SMOOTH_NETWORK = 0.09
_SMOOTH_CONFIGURATION = 0.09
_NOISE = 0.035
_SERVED_NOISE = 0.01
"""The same of a service's own replicas, whose every token is counted, and which are planned for as they are run."""
_BELIEVED = np.log(2.0)
"""How far replicas may be from what was known before: beyond it they have a fault, such as a throttled GPU, which says
nothing of others, and for which nothing is to be stopped."""
_WIDENING = 1.7
"""Times as wide as the process says: its errors have heavier tails."""
_SCALES = np.log([9.0, 5.0, 9.0])
"""Length scales of clients, prompt and output: so many times as much is another condition."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CorrectedTimes:
    """(N,) what ln(measured / law) is expected to be, and its standard deviation."""

    log_factor: Reals
    deviation: Reals


def correct(
    measured: Sequence[RunConditions],
    log_ratio: Reals,
    asked: Sequence[RunConditions],
    served: Collection[RunConditions] = (),
    noise: float = _NOISE,
) -> CorrectedTimes:
    """What runs that were measured, with their (M,) ln(measured / law), say of N others. O(M³); M ≥ 1.

    `served`: those of them that are of replicas of one's own; `noise`: the deviation of single others.
    """
    own = set(map(_configuration, served))
    noises = [_SERVED_NOISE if each in served else noise for each in measured]
    known = _covariance(measured, measured)
    known[np.diag_indices_from(known)] += np.square(noises)
    between = _covariance(asked, measured)
    factor = np.linalg.cholesky(known)
    solved = solve_triangular(factor, log_ratio, lower=True)
    explained = solve_triangular(factor, between.T, lower=True)
    mean = explained.T @ solved
    # Before anything is measured; what the measurements explain is known.
    before = _covariance(asked, asked).diagonal()
    left = np.maximum(before - np.sum(explained**2, axis=0), 0.0)
    # Another measurement of theirs would scatter as little.
    again = [_SERVED_NOISE if _configuration(each) in own else noise for each in asked]
    return CorrectedTimes(
        log_factor=np.asarray(mean),
        deviation=_WIDENING * np.sqrt(left + np.square(again)),
    )


def _covariance(one: Sequence[RunConditions], other: Sequence[RunConditions]) -> Reals:
    """(N, M)"""
    near = _nearness(one, other)
    of_runtime = _same(one, other, _runtime_network)
    of_configuration = _same(one, other, _configuration)
    found = _NETWORK**2 * _same(one, other, lambda each: each.network)
    found += _RUNTIME_NETWORK**2 * of_runtime
    found += _RUNTIME_GPU_TYPE**2 * _same(one, other, _runtime_gpu_type)
    found += _NETWORK_GPU_TYPE**2 * _same(one, other, _network_gpu_type)
    found += _CONFIGURATION**2 * of_configuration
    found += _SMOOTH_NETWORK**2 * of_runtime * near
    found += _SMOOTH_CONFIGURATION**2 * of_configuration * near
    return found


def _runtime_gpu_type(run: RunConditions) -> tuple[str, str]:
    return run.runtime, run.gpu_type


def _network_gpu_type(run: RunConditions) -> tuple[str, str]:
    return run.network, run.gpu_type


def _runtime_network(run: RunConditions) -> tuple[str, str]:
    return run.runtime, run.network


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
    apart = _places(one)[:, None, :] - _places(other)[None, :, :]
    return np.asarray(np.exp(-0.5 * np.sum(apart**2, axis=2)))


def _places(runs: Sequence[RunConditions]) -> Reals:
    rows = [(run.clients, run.prompt, run.output) for run in runs]
    return np.asarray(np.log(np.array(rows, dtype=np.float64)) / _SCALES)


class StepBeliefs:
    """What measured runs say of steps, for any network, GPU type and degree."""

    def __init__(self, runs: Sequence[MeasuredRun]) -> None:
        self._conditions = [run.conditions for run in runs]
        self._served: frozenset[RunConditions] = frozenset()
        self._log_ratio = _log_ratio(runs)

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
        # A copy, and not made of all runs anew: the law of a thousand takes a second.
        both = copy(self)
        both._conditions = [*self._conditions, *conditions]
        both._served = frozenset(conditions)
        both._log_ratio = np.append(self._log_ratio, ratios)
        return both

    def of(self, asked: RunConditions) -> StepBelief:
        """The belief under those conditions."""
        (belief,) = self.of_each([asked])
        return belief

    def of_each(self, asked: Sequence[RunConditions]) -> list[StepBelief]:
        """The beliefs under several conditions, in the time of one: O(M³) for M runs."""
        if not (self._conditions and asked):
            return [UNMEASURED] * len(asked)
        # The runs alone take long, those that are asked for next to nothing.
        found = correct(self._conditions, self._log_ratio, asked, self._served)
        measured = set(map(_configuration, self._conditions))
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
    work = stack_works([engine_work(run.engine) for run in runs])
    return closed_loop_means(work, _factors_of(runs), clients).tpot_ms


def _factors_of(runs: Sequence[MeasuredRun]) -> RuntimeFactors:
    """Each field is an array, with each run's own."""
    # All runs at once take less than one of them takes for itself.
    own = [RUNTIMES[run.engine.runtime] for run in runs]
    factors: dict[str, Any] = {
        each.name: np.array([getattr(one, each.name) for one in own])
        for each in fields(RuntimeFactors)
    }
    return RuntimeFactors(**factors)
