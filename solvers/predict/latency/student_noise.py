"""Noise with outliers: how much a sample counts whose residual is known.

Student's distribution of few degrees of freedom is a normal one whose width differs from sample to sample; given the
residual r in standard deviations, the expected weight is (ν + 1) / (ν + r²). Source: Lange, Little, Taylor 1989.
"""

import numpy as np

from solvers.predict.samples import Reals

_TAIL = 4.0  # ν. Neighbouring points of measured image networks differ by 3 % (median) but 5 % (root mean square).


def weigh(residuals: Reals) -> Reals:
    """Weights, at most 1.25, of residuals in standard deviations; of any shape."""
    return np.asarray((_TAIL + 1.0) / (_TAIL + residuals**2))
