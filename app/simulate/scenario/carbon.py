"""Grid intensity: grams of CO2 equivalent per kilowatt hour over time, and what an amount of energy comes to."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from app.base.errors import InvalidRequest
from app.measurements.rows import open_rows, refusal

JOULES_PER_KWH = 3.6e6
# A hundred times the dirtiest grid; a larger figure is in another unit.
MAX_G_PER_KWH = 1e5
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
        """The carbon dioxide of energy that was drawn around that time."""
        return energy_j / JOULES_PER_KWH * self.at(at_s)


def read_grid_intensity(path: Path) -> GridIntensity:
    """From a CSV with the columns `second` or `hour`, and `g_co2_per_kwh`. Raises InvalidRequest."""
    rows = open_rows(path, _check_header)
    unit = _unit(rows.names)
    when = rows.names.index(unit)
    what = rows.names.index(_VALUE)
    points = []
    for line, cells in rows.rows:
        try:
            points.append((float(cells[when]) * _UNITS_S[unit], float(cells[what])))
        except ValueError:
            raise refusal(
                f"{unit} and {_VALUE} must be numbers", file=f"{rows.file}:{line}"
            ) from None
    # Written so that NaN, which is neither larger nor smaller, is refused, too.
    if any(not later > earlier for (earlier, _), (later, _) in pairwise(points)):
        raise refusal(f"{unit} must grow from row to row", file=rows.file)
    if any(not 0.0 <= value <= MAX_G_PER_KWH for _, value in points):
        raise refusal(
            f"{_VALUE} must be from 0 to {MAX_G_PER_KWH:,.0f}", file=rows.file
        )
    return GridIntensity(
        starts_s=tuple(at for at, _ in points),
        g_per_kwh=tuple(value for _, value in points),
    )


def _check_header(place: str, names: Sequence[str]) -> None:
    if _VALUE not in names or not any(unit in names for unit in _UNITS_S):
        raise InvalidRequest(
            f"has not the columns second or hour, and {_VALUE}; give it both",
            field=place,
        )


def _unit(names: Sequence[str]) -> str:
    return next(name for name in _UNITS_S if name in names)
