"""Refuse fits whose coefficients are not what their technique wrote: of a file that was edited, cut off or mixed up.

What a technique keeps is its own business, so no list of names and shapes is held against it; it is asked for a few
values instead. Coefficients that cannot answer, or answer with what no latency, power or memory can be, are refused
before anything rests on them.
"""

import numpy as np

from solvers.predict.data.fit import Fit, Fits
from solvers.predict.data.samples import Neighbour, Queries, Reals, make_queries
from solvers.predict.data.techniques import find_interference, predict_fit
from solvers.types.errors import InvalidInput

_BATCHES, _SM_PERCENTS = (1.0, 8.0, 64.0), (100.0, 50.0, 10.0)
_ALONE_MS = 10.0


def check_fits(fits: Fits) -> None:
    """Raises InvalidInput, which names the fit, for the first one whose coefficients cannot be its technique's."""
    for index, fit in enumerate(fits.fits):
        if not _answers(fit):
            # An interference fit's network is "".
            name = " on ".join(part for part in fit.group if part)
            problem = (
                f"cannot be those of {fit.technique} for the {fit.quantity} of {name}; "
                "make the file again with `plimsoll fit`"
            )
            raise InvalidInput(f"fits[{index}].coefficients", problem)


def _answers(fit: Fit) -> bool:
    try:
        with np.errstate(all="ignore"):
            values = _ask(fit)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        # What indexing, unpacking and shaping raise when an array is missing or has another shape.
        return False
    is_possible = bool(np.all(np.isfinite(values) & (values > 0.0)))
    return is_possible and values.shape == (len(_BATCHES),)


def _ask(fit: Fit) -> Reals:
    """(N,) values under a few conditions; of interference, next to a network that the fit knows."""
    if fit.quantity not in ("interference", "stranger_interference"):
        return predict_fit(fit, _queries(fit, fit.group.network))
    network = fit.coefficients.labels.get("networks", ("",))[0]
    neighbours = (Neighbour(network, 8.0, 50.0),)
    alone_ms = np.full(len(_BATCHES), _ALONE_MS)
    return find_interference(fit.technique).predict(
        fit.coefficients, _queries(fit, network, neighbours=neighbours), alone_ms
    )


def _queries(
    fit: Fit, network: str, *, neighbours: tuple[Neighbour, ...] = ()
) -> Queries:
    size = len(_BATCHES)
    return make_queries(
        [network] * size,
        [fit.group.gpu_type] * size,
        batch=_BATCHES,
        sm_percent=_SM_PERCENTS,
        neighbours=[neighbours] * size,
    )
