"""The factorisation machine's inputs: OLTunes Table 3 as numbers, and what is known of them before the first sample.

    Table 3                                   here
    application, GPU type                     one-hot, a column for each as it is first seen (by the learner)
    batch, SM, memory used, memory total      soft one-hot: knots at equal distances on a log scale; a value between two
                                              knots counts for both in part, so that it is near sizes that were seen
    input length, parameters                  continuous: the logarithm, 0 and 1 at two common values

Beyond the table: *work per share*, batch / (SM share · time quota), as a soft one-hot as well. It is made of the
table's numbers and is what a network's latency bends on: below its knee the host sets the time, above it the GPU does.
And three knobs that the paper does not turn: time quota (soft one-hot), clock and power limit (continuous).

A value that is not known (NaN) is absent: all its columns are 0. Below the first knot the encoding stays as it is, and
beyond the last one too, except for batch and work per share, which go on in a straight line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solvers.predict.data.samples import Indices, Queries, Reals

_NAN = float("nan")


class ServedConditions(NamedTuple):
    """One row of Table 3 as it is served; NaN = not known."""

    network: str
    gpu_type: str
    batch: float
    sm_percent: float
    memory_used_mib: float = _NAN
    memory_total_mib: float = _NAN
    input_length: float = _NAN
    """Tokens, or pixels of an edge."""
    parameter_count: float = _NAN
    time_quota_percent: float = 100.0
    clock_mhz: float = _NAN
    power_limit_w: float = _NAN


@dataclass(frozen=True, slots=True)
class _Feature:
    """How one number is encoded, on a log scale."""

    first: float
    """First knot of a soft one-hot; of a continuous feature the value that counts as 0."""
    last: float
    """Last knot; of a continuous feature the value that counts as 1."""
    knots: int = 1
    """1 = continuous."""
    goes_on: bool = False
    """Whether a soft one-hot goes on beyond its last knot."""


FEATURES = {
    # From 1 at 100 % to 8 at 5 %; beyond, the GPU sets the time of any network, and the line goes on.
    "batch_per_share": _Feature(1.0, 160.0, knots=13, goes_on=True),
    "batch": _Feature(1.0, 256.0, knots=9, goes_on=True),
    "sm_percent": _Feature(100.0, 5.0, knots=7),
    "memory_used_mib": _Feature(1024.0, 262144.0, knots=9),
    "memory_total_mib": _Feature(1024.0, 262144.0, knots=9),
    "input_length": _Feature(256.0, 5120.0),
    "parameter_count": _Feature(25e6, 500e6),
    "time_quota_percent": _Feature(100.0, 10.0, knots=5),
    "clock_mhz": _Feature(1500.0, 750.0),
    "power_limit_w": _Feature(250.0, 125.0),
}
_KNOWN_OF_QUERIES = (
    "batch_per_share",
    "batch",
    "sm_percent",
    "time_quota_percent",
    "clock_mhz",
    "power_limit_w",
)
_NAMES = tuple(FEATURES)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoding:
    """How F numbers become D columns."""

    columns: Indices
    """(D,) positions among all columns."""
    field: Indices
    """(D,) position of each column's number."""
    knot: Reals
    """(D,) number of each column's knot."""
    last_knot: Reals
    """(F,) 0 = continuous."""
    origin: Reals
    """(F,) ln of the first knot."""
    scale: Reals
    """(F,) knots per unit of the logarithm."""
    continuous: Indices
    """Numbers that are continuous."""
    going_on: Indices
    """Numbers whose encoding goes on."""
    beyond: Reals
    """(going on, D) what one knot's distance beyond the last adds: the straight line through the last two."""


def make_encoding(names: Sequence[str]) -> Encoding:
    """The encoding of some of FEATURES, in their order there."""
    specs = [FEATURES[name] for name in names]
    knots = [spec.knots for spec in specs]
    field = np.repeat(np.arange(len(specs)), knots)
    going_on = np.flatnonzero([spec.goes_on for spec in specs])
    beyond = np.zeros((len(going_on), len(field)))
    for row, feature in enumerate(going_on):
        beyond[row, np.flatnonzero(field == feature)[-2:]] = (-1.0, 1.0)
    return Encoding(
        columns=np.flatnonzero(np.isin(_FIELD, [_NAMES.index(name) for name in names])),
        field=field,
        knot=np.concatenate([np.arange(count, dtype=np.float64) for count in knots]),
        last_knot=np.array(knots, dtype=np.float64) - 1.0,
        origin=np.log([spec.first for spec in specs]),
        scale=np.array(
            [max(spec.knots - 1, 1) / np.log(spec.last / spec.first) for spec in specs]
        ),
        continuous=np.flatnonzero(np.array(knots) == 1),
        going_on=going_on,
        beyond=beyond,
    )


_FIELD = np.repeat(
    np.arange(len(FEATURES)), [feature.knots for feature in FEATURES.values()]
)
COLUMNS = len(_FIELD)
ALL = make_encoding(_NAMES)
OF_QUERIES = make_encoding([name for name in _NAMES if name in _KNOWN_OF_QUERIES])
"""Memory, input length and parameters are not known of queries."""


def encode(encoding: Encoding, numbers: Reals) -> Reals:
    """(N, D) from (N, F) numbers, each > 0 or NaN."""
    place = (np.log(numbers) - encoding.origin) * encoding.scale
    inside = np.minimum(np.maximum(place, 0.0), encoding.last_knot)
    # fmax takes the 0 where the number is NaN: absent.
    columns: Reals = np.fmax(
        1.0 - np.abs(inside[:, encoding.field] - encoding.knot), 0.0
    )
    going_on = encoding.going_on
    columns += (
        np.fmax(place[:, going_on] - encoding.last_knot[going_on], 0.0)
        @ encoding.beyond
    )
    if len(encoding.continuous):
        value = place[:, encoding.continuous]
        columns[:, np.searchsorted(encoding.field, encoding.continuous)] = np.where(
            np.isnan(value), 0.0, value
        )
    return columns


def numbers_of(rows: Sequence[ServedConditions]) -> Reals:
    """(N, F) numbers, of ALL."""
    return np.array(
        [
            (1e4 * row.batch / (row.sm_percent * row.time_quota_percent), *row[2:])
            for row in rows
        ]
    )


def numbers_of_queries(queries: Queries) -> Reals:
    """(N, F) numbers, of OF_QUERIES."""
    per_share = 1e4 * queries.batch / (queries.sm_percent * queries.time_quota_percent)
    return np.column_stack(
        [per_share, *(getattr(queries, name) for name in _KNOWN_OF_QUERIES[1:])]
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeaturePrior:
    """What is known of the columns before the first sample."""

    weights: Reals
    """(COLUMNS,) of ln latency."""
    factors: Reals
    """(COLUMNS, K)."""


HINGES = 4
"""Factors that span the family of hinges: the fifth adds less than 0.1 % of its variance."""
BATCH_SPREAD = 0.15
"""Standard deviation over networks of the exponent with which latency grows by batch, apart from the hinge."""


def make_start() -> FeaturePrior:
    """Weights and factors from the shape that every network's latency has: max(host time, work / share).

    In logs that is a hinge, max(c, ln(batch / share)), with a knee c of the network's own. The mean hinge over all
    knees is where the weights of work per share start, and the HINGES largest principal components around it are where
    its factors start, scaled so that a network's own factors have a spread of about 1. One more factor is ln batch.
    """
    mean, components = _hinge_components()
    weights = np.zeros(COLUMNS)
    factors = np.zeros((COLUMNS, HINGES + 1))
    hinge_columns = _columns_of("batch_per_share")
    weights[hinge_columns], factors[hinge_columns, :HINGES] = mean, components
    batch_columns = _columns_of("batch")
    # Around batch 4, so that it says nothing of the level.
    factors[batch_columns, HINGES] = (
        BATCH_SPREAD * np.log(2.0) * (np.arange(len(batch_columns)) - 2.0)
    )
    return FeaturePrior(weights=weights, factors=factors)


def _columns_of(name: str) -> Indices:
    return np.flatnonzero(_NAMES.index(name) == _FIELD)


def _hinge_components() -> tuple[Reals, Reals]:
    """(J,) mean and (J, HINGES) scaled principal components at the knots of work per share, both with mean 0."""
    spec = FEATURES["batch_per_share"]
    knots = np.linspace(np.log(spec.first), np.log(spec.last), spec.knots)
    # Knees up to half a step before the first and after the last knot: networks that the GPU or the host always sets.
    half = (knots[1] - knots[0]) / 2.0
    knees = np.linspace(knots[0] - half, knots[-1] - half, 60)
    hinges = np.maximum(knots, knees[:, None])
    hinges -= hinges.mean(axis=1, keepdims=True)
    mean = hinges.mean(axis=0)
    _, spread, directions = np.linalg.svd(
        (hinges - mean) / np.sqrt(len(knees)), full_matrices=False
    )
    return mean, (spread[:HINGES, None] * directions[:HINGES]).T
