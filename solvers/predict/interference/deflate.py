"""Deflation: what co-located samples say of a network alone, for networks that were (almost) never measured alone.

The order in which a GPU type is learned:

    1. a solo fit for every group with samples alone; it gives `alone_ms` of the group's co-located rows, NaN elsewhere
    2. coefficients = pressure.fit(samples, alone_ms), which can use rows of unknown alone latency as well
    3. alone_samples(samples, pressure, coefficients): the samples alone, and for groups with too few of them also
       their co-located ones, divided by the factor
    4. a solo fit for the groups that step 1 had to leave out, from these
    5. prediction = solo fit × factor, as for any other group
"""

from dataclasses import replace

import numpy as np

from solvers.predict.data.fit import Coefficients
from solvers.predict.data.interference_factor import (
    InterferenceTechnique,
    neighbour_counts,
)
from solvers.predict.data.samples import Queries, Reals, Samples

_ROUNDS = 50
_TOLERANCE = 1e-12


def alone_samples(
    samples: Samples,
    technique: InterferenceTechnique,
    coefficients: Coefficients,
    *,
    min_alone: int = 1,
) -> Samples:
    """The samples (of one GPU type) without neighbours, plus deflated ones of groups with too few of them.

    A group with fewer than `min_alone` samples alone lends all its co-located ones: as if alone, with the latency
    that the factor stretches to the measured one, and with power, memory and counters unknown. Order is kept.
    """
    is_alone = neighbour_counts(samples.at) == 0
    is_lent = np.zeros(len(samples), dtype=bool)
    for rows in samples.at.groups().values():
        is_lent[rows] = np.count_nonzero(is_alone[rows]) < min_alone
    kept = np.flatnonzero(is_alone | is_lent)
    chosen = samples.take(kept)
    # What a counter or a meter showed next to neighbours is not the network's own: NaN spreads through the sums.
    unknown = np.where(is_alone[kept], 0.0, np.nan)
    return replace(
        chosen,
        at=chosen.at.alone(),
        latency_ms=deflated_ms(technique, coefficients, chosen.at, chosen.latency_ms),
        power_w=chosen.power_w + unknown,
        memory_mib=chosen.memory_mib + unknown,
        l2_util_percent=chosen.l2_util_percent + unknown,
    )


def deflated_ms(
    technique: InterferenceTechnique,
    coefficients: Coefficients,
    queries: Queries,
    latency_ms: Reals,
) -> Reals:
    """(N,) the latency alone for which the technique predicts these latencies (N,) next to the neighbours.

    A fixed point: the factor depends on the latency alone, through launch and transfer, but only weakly.
    """
    alone_ms = latency_ms
    for _ in range(_ROUNDS):
        before = alone_ms
        alone_ms = latency_ms / technique.predict(coefficients, queries, before)
        if np.all(np.abs(alone_ms - before) <= _TOLERANCE * before):
            break
    return alone_ms
