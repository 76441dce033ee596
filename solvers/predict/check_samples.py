"""Refuse rows that no measurement can be, naming the row, the column and the remedy."""

import numpy as np
import numpy.typing as npt

from solvers.document import LARGEST_NUMBER
from solvers.errors import InvalidInput
from solvers.predict.samples import Queries, Reals, Samples

Flags = npt.NDArray[np.bool_]

LARGEST_BATCH = 65536.0


def check_samples(samples: Samples) -> None:
    """Raises InvalidInput for the first column with a row that no measurement can be, and when there are no rows."""
    if not len(samples):
        raise InvalidInput("rows", "there are none; a fit needs at least one measurement")
    check_queries(samples.at)
    _check("latency_ms", samples.latency_ms, above=0.0)
    _check("power_w", samples.power_w, above=0.0, may_lack=True)
    _check("memory_mib", samples.memory_mib, above=0.0, may_lack=True)
    _check("l2_util_percent", samples.l2_util_percent, at_least=0.0, at_most=100.0, may_lack=True)


def check_queries(queries: Queries) -> None:
    """Raises InvalidInput for the first column with a row that cannot be."""
    for name, values in (("network", queries.network), ("gpu_type", queries.gpu_type)):
        if "" in values:
            raise InvalidInput(f"rows[{values.index('')}].{name}", "is empty; every row needs one")
    _check("batch", queries.batch, at_least=1.0, at_most=LARGEST_BATCH)
    _check("sm_percent", queries.sm_percent, above=0.0, at_most=100.0)
    _check("clock_mhz", queries.clock_mhz, above=0.0, may_lack=True)
    _check("time_quota_percent", queries.time_quota_percent, above=0.0, at_most=100.0)
    _check("power_limit_w", queries.power_limit_w, above=0.0, may_lack=True)
    for row, company in enumerate(queries.neighbours):
        for neighbour in company:
            if not (1.0 <= neighbour.batch <= LARGEST_BATCH and 0.0 < neighbour.sm_percent <= 100.0):
                raise InvalidInput(
                    f"rows[{row}].neighbours",
                    f"{neighbour.network} has batch {neighbour.batch:g} and {neighbour.sm_percent:g} % of the SMs; "
                    "a batch is at least 1, and a share above 0 and at most 100",
                )


def _check(
    name: str,
    values: Reals,
    *,
    at_least: float = -np.inf,
    above: float = -np.inf,
    at_most: float = LARGEST_NUMBER,
    may_lack: bool = False,
) -> None:
    is_lacking = np.isnan(values)
    is_wrong: Flags = ~((values >= at_least) & (values > above) & (values <= at_most))
    if may_lack:
        is_wrong &= ~is_lacking
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        least = f"above {above:g}" if np.isfinite(above) else f"at least {at_least:g}"
        found = "nothing" if is_lacking[row] else f"{values[row]:g}"
        raise InvalidInput(f"rows[{row}].{name}", f"must be a number {least} and at most {at_most:g}, not {found}")
