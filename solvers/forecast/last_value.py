"""The newest rate that was heard, as it is: the yardstick that every other technique must beat.

    forecast = rate of the newest heard window;  spread = root mean square of rate(t) − rate(t − lag)

with lag the number of windows asked ahead (the "naive method": Hyndman and Athanasopoulos, *Forecasting: Principles
and Practice*, 3rd ed., §5.2). It wins where the rate jumps from plateau to plateau and a window counts many requests;
on short windows it takes noise for news, and its margin is √2 times the one that is needed.
"""

from collections.abc import Sequence

import numpy as np

from solvers.forecast.forecast import Forecast, History, make_forecast, windows_ahead
from solvers.forecast.spread import smoothing_of, spread_rps, weights_of

NAME = "last_value"


def forecast(history: History, *, horizon_s: float, levels: Sequence[float]) -> Forecast | None:
    """Quantiles around the newest rate. See `forecast.Technique`."""
    series = history.recent
    ahead, window_s = windows_ahead(series, horizon_s), series.window_s
    rates = series.rates_rps
    heard = series.heard
    if len(heard) == 0:
        return None
    expected = float(rates[heard[-1]])
    changes = rates[ahead:] - rates[:-ahead]
    known = np.flatnonzero(~np.isnan(changes))
    weights = weights_of(series.ages_s(known + ahead), smoothing_of(window_s))
    spread = spread_rps(changes[known], weights, expected_rps=expected, window_s=window_s)
    return make_forecast(NAME, expected_rps=expected, spread_rps=spread, horizon_s=horizon_s, levels=levels)
