"""Grid intensity: grams of CO2 equivalent per kilowatt hour over time, and what an amount of energy comes to."""

import csv
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from app.errors import InvalidRequest

JOULES_PER_KWH = 3.6e6
_UNITS_S = {"second": 1.0, "hour": 3600.0}
_VALUE = "g_co2_per_kwh"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridIntensity:
    """A step function of time; before its first moment the first value holds."""

    starts_s: tuple[float, ...]
    """Ascending, from when on each value holds."""
    g_per_kwh: tuple[float, ...]

    def at(self, time_s: float) -> float:
        """Grams per kilowatt hour then."""
        return self.g_per_kwh[max(0, bisect_right(self.starts_s, time_s) - 1)]

    def grams(self, energy_j: float, at_s: float) -> float:
        """Of energy that was drawn around that time."""
        return energy_j / JOULES_PER_KWH * self.at(at_s)


def read_grid_intensity(path: Path) -> GridIntensity:
    """From a CSV with the columns `second` or `hour`, and `g_co2_per_kwh`. Raises InvalidRequest."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    unit = next((name for name in _UNITS_S if rows and name in rows[0]), None)
    if unit is None or _VALUE not in rows[0]:
        raise InvalidRequest(
            f"has no rows, or not the columns second or hour, and {_VALUE}; give it both", field=path.name
        )
    try:
        points = [(float(row[unit]) * _UNITS_S[unit], float(row[_VALUE])) for row in rows]
    except (TypeError, ValueError):
        raise InvalidRequest(f"{unit} and {_VALUE} must be numbers in every row", field=path.name) from None
    if any(later <= earlier for (earlier, _), (later, _) in pairwise(points)):
        raise InvalidRequest(f"{unit} must grow from row to row", field=path.name)
    if any(not 0.0 <= value <= 1e5 for _, value in points):
        raise InvalidRequest(f"{_VALUE} must be from 0 to 100,000", field=path.name)
    return GridIntensity(starts_s=tuple(at for at, _ in points), g_per_kwh=tuple(value for _, value in points))
