"""Refuse rows that no measurement can be, naming the row, the column and the remedy."""

import numpy as np
import numpy.typing as npt

from solvers.predict.data.interference_factor import pairs_of
from solvers.predict.data.samples import Queries, Reals, Samples
from solvers.types.documents.strict_json import MAX_NUMBER, describe
from solvers.types.errors import InvalidInput

Flags = npt.NDArray[np.bool_]

MAX_BATCH = 65536.0
MAX_NAME = 253


def check_samples(samples: Samples) -> None:
    """Raises InvalidInput for the first column with a row that no measurement can be, and when there are no rows."""
    if not len(samples):
        raise InvalidInput(
            "rows", "there are none; a fit needs at least one measurement"
        )
    check_queries(samples.at)
    size = len(samples)
    _check("latency_ms", samples.latency_ms, size, above=0.0)
    _check("power_w", samples.power_w, size, above=0.0, may_lack=True)
    _check("memory_mib", samples.memory_mib, size, above=0.0, may_lack=True)
    # An idle cache is 0 %, while no board draws 0 watts and no replica takes 0 MiB.
    l2_percent = samples.l2_util_percent
    _check(
        "l2_util_percent", l2_percent, size, at_least=0.0, at_most=100.0, may_lack=True
    )


def check_queries(queries: Queries) -> None:
    """Raises InvalidInput for the first column with a row that cannot be."""
    size = len(queries)
    _check_size("gpu_type", len(queries.gpu_type), size)
    _check_size("neighbours", len(queries.neighbours), size)
    _check_names("network", queries.network)
    _check_names("gpu_type", queries.gpu_type)
    _check("batch", queries.batch, size, at_least=1.0, at_most=MAX_BATCH)
    _check("sm_percent", queries.sm_percent, size, above=0.0, at_most=100.0)
    _check("clock_mhz", queries.clock_mhz, size, above=0.0, may_lack=True)
    _check(
        "time_quota_percent", queries.time_quota_percent, size, above=0.0, at_most=100.0
    )
    _check("power_limit_w", queries.power_limit_w, size, above=0.0, may_lack=True)
    _check_neighbours(queries)


def _check_names(column: str, names: tuple[str, ...]) -> None:
    # Distinct names only, for there are far fewer of them than rows.
    for name in sorted(set(names)):
        if not _is_name(name):
            problem = f"must have 1 to {MAX_NAME} characters, none of them a control character"
            raise InvalidInput(
                f"rows[{names.index(name)}].{column}",
                f"{problem}, not {describe(name)}",
            )


def _check_neighbours(queries: Queries) -> None:
    pairs = pairs_of(queries)
    is_name = {network: _is_name(network) for network in set(pairs.network)}
    is_wrong: Flags = np.array(
        [not is_name[network] for network in pairs.network], dtype=bool
    )
    # Written as what must hold, so that NaN, which fails every comparison, is wrong.
    is_wrong |= ~((pairs.batch >= 1.0) & (pairs.batch <= MAX_BATCH))
    is_wrong |= ~((pairs.sm_percent > 0.0) & (pairs.sm_percent <= 100.0))
    if is_wrong.any():
        pair = int(np.argmax(is_wrong))
        found = (
            f"{pairs.network[pair]}:{pairs.batch[pair]:g}:{pairs.sm_percent[pair]:g}"
        )
        raise InvalidInput(
            f"rows[{pairs.row[pair]}].neighbours",
            f"a neighbour needs a name of 1 to {MAX_NAME} characters, a batch of at least 1 and at most "
            f"{MAX_BATCH:g} and a share above 0 and at most 100 %, not {describe(found)}",
        )


def _is_name(text: str) -> bool:
    return 1 <= len(text) <= MAX_NAME and text.isprintable()


def _check(
    name: str,
    values: Reals,
    size: int,
    *,
    at_least: float = -np.inf,
    above: float = -np.inf,
    at_most: float = MAX_NUMBER,
    may_lack: bool = False,
) -> None:
    _check_size(name, values.size, size)
    is_lacking = np.isnan(values)
    is_wrong: Flags = ~((values >= at_least) & (values > above) & (values <= at_most))
    if may_lack:
        is_wrong &= ~is_lacking
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        bound = f"above {above:g}" if np.isfinite(above) else f"at least {at_least:g}"
        found = "nothing" if is_lacking[row] else f"{values[row]:g}"
        problem = f"must be a number {bound} and at most {at_most:g}, not {found}; correct the row or leave it out"
        raise InvalidInput(f"rows[{row}].{name}", problem)


def _check_size(name: str, found: int, size: int) -> None:
    if found != size:
        raise InvalidInput(
            name, f"has {found} values for {size} rows; every row needs one"
        )
