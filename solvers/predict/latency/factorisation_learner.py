"""The factorisation machine as it learns: one row at a time, in place.

Formula, source and limits stand in `factorisation_machine`.
"""

from dataclasses import astuple, dataclass, fields
from math import isfinite, isinf, isnan, log
from typing import NamedTuple, Self

import numpy as np

from solvers.predict.data.fit import Coefficients
from solvers.predict.data.samples import Group, Reals
from solvers.predict.latency.factorisation_features import (
    ALL,
    COLUMNS,
    ServedConditions,
    encode,
    make_start,
    numbers_of,
)
from solvers.predict.latency.ftrl_proximal import (
    CoordinateWeights,
    FtrlRates,
    RowWeights,
)

TARGETS = 2
"""ln latency in ms; ln throughput in requests per second, less ln batch."""
LATENCY, THROUGHPUT = range(TARGETS)
_BIAS = COLUMNS
"""Column of w₀, always 1; the GPU types follow it."""
_FIELD_STARTS = np.concatenate(
    [np.flatnonzero(np.diff(ALL.field, prepend=-1)), [_BIAS, _BIAS + 1]]
)
"""First column of every feature, of w₀ and of the GPU types."""
START_MS = 20.0
"""Latency where w₀ starts when no row was seen: it only has to be nearer than nothing, the networks' own weights are
hardly held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRates:
    """How the machine learns; the defaults were chosen on orders of arrival that the bench does not use."""

    eta: float = 0.02
    zeta: float = 1.0
    l1: float = 0.001
    l2: float = 0.0
    row_penalty: float = 0.05
    """λ₂ of a network's own factors, whose spread is about 1: variance of a row around the best machine."""
    level_penalty: float = 0.0025
    """λ₂ of a network's own weight: networks differ by factors of a hundred."""
    clip: float = 0.4
    """Residual in ln (a factor of 1.5) from which on a row of a network that is known well is an outlier."""
    start_spread: float = 0.02
    """Standard deviation of the random part of the starting factors."""


class FactorisationLearner:
    """Learns latency and throughput of any networks on any GPU types from a stream of rows."""

    def __init__(
        self,
        *,
        seed: int = 0,
        settings: LearningRates | None = None,
        start_ms: float = START_MS,
    ) -> None:
        """`start_ms`: the latency, in the unit of the rows, that is foreseen before the first of them."""
        self.settings = settings or LearningRates()
        start = _start_weights(seed, self.settings.start_spread, start_ms=start_ms)
        self._shared = CoordinateWeights.at(start, _rates(self.settings))
        self._own: dict[str, RowWeights] = {}
        self._gpu_types: dict[str, int] = {}
        """GPU type to its column."""

    def update(
        self, conditions: ServedConditions, *, latency_ms: float, throughput_rps: float
    ) -> None:
        """Learn what was measured under these conditions.

        Raises ValueError, having learned nothing, unless both are finite and > 0 and so is all that is known of the
        conditions.
        """
        targets = _log_targets(conditions, latency_ms, throughput_rps)
        clip = self.settings.clip
        columns = self._columns(conditions)
        own = self._own_of(conditions.network)
        outputs, own_inputs, slopes = evaluate(self._shared.values, own.values, columns)
        left = own.step(own_inputs, targets - outputs, clip)
        gradient = slopes * -np.minimum(np.maximum(left, -clip), clip)[:, None, None]
        # w₀ has no factors: its product with a network's factors would be that network's own weight once more.
        gradient[:, _BIAS, 1:] = 0.0
        self._shared.step(gradient)

    def forget_networks(self) -> None:
        """Forget the networks' own weights and keep what is shared, so that another pass counts no row twice."""
        self._own.clear()

    def group_coefficients(self, group: Group) -> Coefficients:
        """All that predicts this group, with network and GPU type folded in; one never seen is a mean one."""
        values = self._shared.values
        own, gpu = self._weights_of(group)
        level = (
            values[:, _BIAS, 0]
            + own[:, 0]
            + gpu[:, 0]
            + (own[:, 1:] * gpu[:, 1:]).sum(axis=1)
        )
        columns = values[:, :COLUMNS]
        factors = columns[:, :, 1:]
        folded = np.matmul(factors, (own + gpu)[:, 1:, None])[:, :, 0]
        weights = columns[:, :, 0] + folded
        return Coefficients(
            arrays={"level": level, "weights": weights, "factors": factors.copy()}
        )

    def _weights_of(self, group: Group) -> tuple[Reals, Reals]:
        """(targets, 1 + K) of the network and of the GPU type; 0 where one was never seen."""
        values = self._shared.values
        unseen = np.zeros((TARGETS, values.shape[2]))
        own = self._own.get(group.network)
        column = self._gpu_types.get(group.gpu_type)
        return (
            unseen if own is None else own.values,
            unseen if column is None else values[:, column],
        )

    def state(self) -> Coefficients:
        """Everything the learner knows, as data; `from_state` goes on where it stood."""
        shared = self._shared
        own = self._own.values()
        width = shared.values.shape[2]
        return Coefficients(
            arrays={
                "settings": np.array(astuple(self.settings)),
                "start": shared.start.copy(),
                "values": shared.values.copy(),
                "gradient_sum": shared.gradient_sum.copy(),
                "square_sum": shared.square_sum.copy(),
                "own_values": np.array([row.values for row in own]).reshape(
                    -1, TARGETS, width
                ),
                "own_covariance": np.array([row.covariance for row in own]).reshape(
                    -1, TARGETS, width, width
                ),
            },
            labels={"networks": tuple(self._own), "gpu_types": tuple(self._gpu_types)},
        )

    @classmethod
    def from_state(cls, state: Coefficients) -> Self:
        """The learner whose state this was."""
        arrays = state.arrays
        labels = state.labels
        names = [field.name for field in fields(LearningRates)]
        learner = cls(
            settings=LearningRates(
                **dict(zip(names, arrays["settings"].tolist(), strict=True))
            )
        )
        learner._shared = CoordinateWeights(
            rates=_rates(learner.settings),
            start=arrays["start"].copy(),
            values=arrays["values"].copy(),
            gradient_sum=arrays["gradient_sum"].copy(),
            square_sum=arrays["square_sum"].copy(),
        )
        learner._gpu_types = {
            name: _BIAS + 1 + place for place, name in enumerate(labels["gpu_types"])
        }
        learner._own = {
            name: RowWeights(values=values.copy(), covariance=covariance.copy())
            for name, values, covariance in zip(
                labels["networks"],
                arrays["own_values"],
                arrays["own_covariance"],
                strict=True,
            )
        }
        return learner

    def _columns(self, conditions: ServedConditions) -> Reals:
        """(columns,) inputs of one row; a new GPU type gets a column."""
        column = self._gpu_types.get(conditions.gpu_type)
        if column is None:
            column = self._gpu_types[conditions.gpu_type] = (
                _BIAS + 1 + len(self._gpu_types)
            )
            self._grow(column + 1)
        columns = np.zeros(self._shared.values.shape[1])
        columns[:COLUMNS] = encode(ALL, numbers_of([conditions]))[0]
        columns[_BIAS] = columns[column] = 1.0
        return columns

    def _own_of(self, network: str) -> RowWeights:
        own = self._own.get(network)
        if own is None:
            penalty = np.full(self._shared.values.shape[2], self.settings.row_penalty)
            penalty[0] = self.settings.level_penalty
            own = self._own[network] = RowWeights.at(TARGETS, penalty)
        return own

    def _grow(self, size: int) -> None:
        """Room for `size` columns; new ones start at 0, so that a new GPU type is the mean of the others."""
        shared = self._shared
        missing = size - shared.values.shape[1]
        if missing > 0:
            for name in ("start", "values", "gradient_sum", "square_sum"):
                setattr(
                    shared,
                    name,
                    np.pad(getattr(shared, name), ((0, 0), (0, missing), (0, 0))),
                )


class Evaluation(NamedTuple):
    """What one row gives under the present weights."""

    outputs: Reals
    """(targets,)."""
    own_inputs: Reals
    """(targets, 1 + K): what the network's own weight and factors are multiplied with."""
    slopes: Reals
    """(targets, columns, 1 + K): derivatives of the outputs in the shared weights."""


def evaluate(shared: Reals, own: Reals, columns: Reals) -> Evaluation:
    """One row. `shared`: (targets, columns, 1 + K), `own`: (targets, 1 + K), weight first, then factors."""
    by_field = np.add.reduceat(shared * columns[:, None], _FIELD_STARTS, axis=1)
    own_inputs = by_field.sum(axis=1)
    both = own + own_inputs
    # Products of different fields are half of (square of the sum − squares of the fields), the own field among them.
    squares = both * both - own * own - (by_field * by_field).sum(axis=1)
    slopes = np.repeat(
        both[:, None, :] - by_field, np.diff(_FIELD_STARTS, append=len(columns)), axis=1
    )
    slopes[:, :, 0] = 1.0
    slopes *= columns[:, None]
    own_inputs[:, 0] = 1.0
    return Evaluation(both[:, 0] + 0.5 * squares[:, 1:].sum(axis=1), own_inputs, slopes)


def _log_targets(
    conditions: ServedConditions, latency_ms: float, throughput_rps: float
) -> Reals:
    """(targets,) and nothing that no measurement can be."""
    for name, value in (("latency_ms", latency_ms), ("throughput_rps", throughput_rps)):
        if not (isfinite(value) and value > 0.0):
            raise ValueError(f"{name} must be finite and > 0, not {value}")
    for name, value in zip(ServedConditions._fields[2:], conditions[2:], strict=True):
        is_required = name in ("batch", "sm_percent", "time_quota_percent")
        if value <= 0.0 or isinf(value) or (is_required and isnan(value)):
            raise ValueError(f"{name} must be finite and > 0, not {value}")
    return np.array([log(latency_ms), log(throughput_rps / conditions.batch)])


def _start_weights(seed: int, spread: float, *, start_ms: float) -> Reals:
    """(targets, columns, 1 + K): throughput per batch starts as the reciprocal of latency."""
    known = make_start()
    factors = known.factors + np.random.default_rng(seed).normal(
        0.0, spread, (TARGETS, *known.factors.shape)
    )
    start = np.zeros((TARGETS, _BIAS + 1, 1 + factors.shape[2]))
    start[:, :COLUMNS, 1:] = factors
    start[LATENCY, :COLUMNS, 0], start[THROUGHPUT, :COLUMNS, 0] = (
        known.weights,
        -known.weights,
    )
    start[LATENCY, _BIAS, 0], start[THROUGHPUT, _BIAS, 0] = (
        log(start_ms),
        log(1000.0 / start_ms),
    )
    return start


def _rates(settings: LearningRates) -> FtrlRates:
    return FtrlRates(
        eta=settings.eta, zeta=settings.zeta, l1=settings.l1, l2=settings.l2
    )
