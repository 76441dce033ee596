"""What one fit says: its value for queries, and how far off it may be."""

import numpy as np

from solvers.predict.fit import LEVELS, Fit, Quality
from solvers.predict.samples import Queries, Reals
from solvers.predict.techniques import find_learner


def predict_fit(fit: Fit, queries: Queries) -> Reals:
    """(N,) what one fit says of queries of its group, neighbours not looked at."""
    return find_learner(fit.quantity, fit.technique).predict(fit.coefficients, queries)


def ratio_quantile(quality: Quality, level: float) -> float:
    """The quantile of measured / predicted at a level; between the known levels its logarithm is interpolated."""
    return float(np.exp(np.interp(level, LEVELS, np.log(quality.ratio_quantiles))))
