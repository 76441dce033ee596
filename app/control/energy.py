"""What a kWh costs a plan: its price, and that of the carbon that the grid emits for it. Pure.

    price_usd_per_kwh = energy_price_usd_per_kwh + carbon_g_per_kwh · carbon_price_usd_per_t / 1,000,000 g per t

At 0.20 USD per kWh, 400 g per kWh and 100 USD per t that is 0.20 + 0.04 USD.
"""

from datetime import datetime
from statistics import fmean

from app.control.store import PolicySettings

GRAMS_PER_TONNE = 1_000_000.0
HOURS = 24


def carbon_g_per_kwh(settings: PolicySettings, at: datetime | None) -> float:
    """Of the grid at that time, by the hour of the day in UTC; the mean over the hours where no time is given.

    0 where nothing is stated.
    """
    series = settings.carbon_g_per_kwh
    if not series:
        return 0.0
    if at is None or len(series) < HOURS:
        return fmean(series)
    return series[at.hour]


def price_usd_per_kwh(settings: PolicySettings, at: datetime | None) -> float:
    """What plans made at that time reckon with."""
    carbon_usd = carbon_g_per_kwh(settings, at) * settings.carbon_price_usd_per_t / GRAMS_PER_TONNE
    return settings.energy_price_usd_per_kwh + carbon_usd
