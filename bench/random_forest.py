"""The reference to beat: a random forest on ln latency, for benches and documentation only.

It sees every condition as a number (network and GPU type as their positions by name, the rest in logarithms), which a
forest splits better than one-hot columns. A forest is thousands of thresholds rather than coefficients that can be
stored, and it cannot say anything beyond the rows it saw; so it takes no part in the automatic choice.

Source: Breiman, "Random Forests" (Machine Learning 2001), the RFR of OLTunes Table 8. Needs the extra `ml`.
"""

import numpy as np

from solvers.predict.data.fit import TooFewSamples
from solvers.predict.data.samples import Queries, Reals, Samples

TREES = 200


def fit_predict(samples: Samples, queries: Queries, *, seed: int = 0) -> Reals:
    """(N,) latencies in ms of the queries, from a forest of the samples; neighbours are not looked at.

    Raises TooFewSamples without samples, ValueError for a network or GPU type that is not among them, and
    ModuleNotFoundError without the extra `ml`.
    """
    # Here and not above: the import takes seconds, and the extra is optional.
    from sklearn.ensemble import RandomForestRegressor  # type: ignore[import-untyped]

    if not len(samples):
        raise TooFewSamples("a random forest needs at least one sample")
    networks, gpu_types = (
        sorted(set(samples.at.network)),
        sorted(set(samples.at.gpu_type)),
    )
    if strangers := sorted(
        {*queries.network} - {*networks} | {*queries.gpu_type} - {*gpu_types}
    ):
        raise ValueError(f"no samples of {', '.join(strangers)}")
    forest = RandomForestRegressor(TREES, random_state=seed, n_jobs=1)
    forest.fit(_columns(samples.at, networks, gpu_types), np.log(samples.latency_ms))
    return np.asarray(
        np.exp(forest.predict(_columns(queries, networks, gpu_types))), dtype=np.float64
    )


def _columns(queries: Queries, networks: list[str], gpu_types: list[str]) -> Reals:
    """(N, 6) numbers; a clock that is not known counts as 0."""
    return np.column_stack(
        [
            [networks.index(name) for name in queries.network],
            [gpu_types.index(name) for name in queries.gpu_type],
            np.log(queries.batch),
            np.log(queries.sm_percent),
            np.nan_to_num(queries.clock_mhz),
            np.log(queries.time_quota_percent),
        ]
    )
