"""The techniques by name, the one that is used until another proves better first."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from solvers.forecast import burst_aware, seasonal, smoothing
from solvers.forecast.types import (
    Forecast,
    ForecastTechnique,
    History,
    make_forecast,
)

DEFAULT = burst_aware.NAME

TECHNIQUES: Mapping[str, ForecastTechnique] = MappingProxyType(
    {
        DEFAULT: burst_aware.forecast,
        smoothing.LAST_VALUE_NAME: smoothing.last_value,
        smoothing.EWMA_NAME: smoothing.ewma,
        smoothing.FAST_EWMA_NAME: smoothing.fast_ewma,
        smoothing.HOLT_NAME: smoothing.holt,
        smoothing.FAST_HOLT_NAME: smoothing.fast_holt,
        seasonal.DAILY_NAME: seasonal.daily,
        seasonal.HOURLY_NAME: seasonal.hourly,
    }
)


def forecast_by(
    technique: str, history: History, *, horizon_s: float, levels: Sequence[float]
) -> Forecast | None:
    """The technique's forecast, else the default's: where it is not known (any more) or has nothing to say.

    None where nothing was heard.
    """
    # A choice is stored by name and may outlive its technique.
    chosen = technique if technique in TECHNIQUES else DEFAULT
    for name in (chosen, DEFAULT):
        expected = TECHNIQUES[name](history, horizon_s)
        if expected is not None:
            return make_forecast(name, expected, horizon_s=horizon_s, levels=levels)
    return None
