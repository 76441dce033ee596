"""Memory: MiB of a replica = a fixed part (weights, context) + a part per request of the batch (activations).

    memory_mib(b) = max( w + a · b,  the most measured at a batch ≤ b ),   w, a ≥ 0

a = median of the slopes through all pairs of samples of different batches, w = median of what is left (Theil 1950,
Sen 1968): up to 29 % of the samples may be wrong. The maximum is for safety: a replica that once took more will again.
Since too little memory kills a replica and too much only wastes some, `predict_upper` adds a margin for what is not
measured.

Wins wherever activations dominate; frameworks that double their pool instead of growing it (miso_mig) are stairs,
around which the margin is wide. SM percent, clock and neighbours are not looked at.
"""

import numpy as np
import scipy

from solvers.predict.data.fit import Coefficients, TooFewSamples
from solvers.predict.data.samples import Queries, Reals, Samples, even_choice

UNKNOWN_MARGIN = 0.25
"""Share of the predicted memory, where two samples leave nothing to judge the line by."""
_MAX_SAMPLES = 400
"""From more the line is drawn through an even choice: pairs grow with the square, 80,000 of them take 10 ms."""


def fit(samples: Samples) -> Coefficients:
    """Coefficients from the samples of one group that have memory_mib, at two batches or more."""
    measured = _measured(samples)
    batch = measured.at.batch
    memory = measured.memory_mib
    batches = np.unique(batch)
    # Sorted, so that an even choice is one over the batches and not over the order of arrival.
    order = np.lexsort((memory, batch))
    chosen = order[even_choice(len(order), max_rows=_MAX_SAMPLES)]
    fixed, per_request = _line(batch[chosen], memory[chosen])
    highest = np.maximum.accumulate([memory[batch == value].max() for value in batches])
    line = fixed + per_request * batch
    return Coefficients(
        arrays={
            "fixed_mib": np.array(fixed),
            "per_request_mib": np.array(per_request),
            "batch": batches,
            "highest_mib": highest,
            "relative_margin": np.array(_relative_margin(memory, line)),
        }
    )


def _measured(samples: Samples) -> Samples:
    measured = samples.take(np.flatnonzero(np.isfinite(samples.memory_mib)))
    batches = len(np.unique(measured.at.batch))
    # At one batch alone the fixed part cannot be told from that per request.
    if batches < 2:
        raise TooFewSamples(
            f"memory needs samples with memory_mib at two batches or more; {len(measured)} of {len(samples)} samples "
            f"have it, at {batches}"
        )
    return measured


def predict(coefficients: Coefficients, queries: Queries) -> Reals:
    """(N,) MiB; never falls with the batch, never below what was measured at that batch or a smaller one."""
    arrays = coefficients.arrays
    line = arrays["fixed_mib"] + arrays["per_request_mib"] * queries.batch
    measured_up_to = np.searchsorted(arrays["batch"], queries.batch, side="right")
    highest = np.concatenate(([0.0], arrays["highest_mib"]))[measured_up_to]
    return np.maximum(line, highest)


def predict_upper(coefficients: Coefficients, queries: Queries) -> Reals:
    """(N,) MiB that a replica exceeds in about one case of twenty; at a measured batch, the most that it took."""
    expected = predict(coefficients, queries)
    # What was measured needs no margin: `predict` is never below it.
    is_measured = np.isin(queries.batch, coefficients.arrays["batch"])
    margin = coefficients.arrays["relative_margin"]
    return np.where(is_measured, expected, expected * (1.0 + margin))


def _line(batch: Reals, memory: Reals) -> tuple[float, float]:
    """Fixed part and part per request, neither negative."""
    first, second = np.triu_indices(len(batch), k=1)
    apart = batch[first] != batch[second]
    first, second = first[apart], second[apart]
    slopes = (memory[second] - memory[first]) / (batch[second] - batch[first])
    slope = max(0.0, float(np.median(slopes)))
    fixed = float(np.median(memory - slope * batch))
    if fixed < 0.0:
        return 0.0, float(np.median(memory / batch))
    return fixed, slope


def _relative_margin(memory: Reals, line: Reals) -> float:
    """95 % quantile of the next sample's excess over the line, by Student's distribution of the relative residuals."""
    freedom = len(memory) - 2
    if freedom < 1:
        return UNKNOWN_MARGIN
    spread = float(np.sqrt(np.sum((memory / line - 1.0) ** 2) / freedom))
    return spread * float(
        np.sqrt(1.0 + 1.0 / len(memory)) * scipy.special.stdtrit(freedom, 0.95)
    )
