"""Soft minimum: two ceilings, of which the lower one rules, with a rounded corner where they meet."""

import numpy as np
import numpy.typing as npt

from solvers.predict.data.samples import Reals


def soft_minimum(
    left: npt.ArrayLike, right: npt.ArrayLike, *, sharpness: float
) -> Reals:
    """(left^−n + right^−n)^(−1/n) with n = sharpness > 0, by element; both > 0, infinite = no ceiling.

    Never above the lower of the two, never falling in either, and 2^(−1/n) of them where they are equal.
    """
    low = np.minimum(left, right)
    high = np.maximum(left, right)
    # The ratio is at most 1, so that no power of it overflows.
    result: Reals = low * (1.0 + (low / high) ** sharpness) ** (-1.0 / sharpness)
    return result
