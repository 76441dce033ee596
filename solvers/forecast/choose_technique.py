"""Which technique forecasts a service, and with which margin: the one that loses least, when it clearly does."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from solvers.forecast.back_test import ForecastScore
from solvers.forecast.room import UNKNOWN_ROOM, Room
from solvers.forecast.techniques import DEFAULT, TECHNIQUES
from solvers.forecast.types import Season

MARGIN = 0.05
"""Another technique must have so much less loss before it takes over; without it the choice would flap."""
MIN_FORECASTS = 120.0
"""At level 0.95 one window in twenty is above the forecast: fewer forecasts would judge by a handful of windows."""
HALF_LIFE_S = 86_400.0
"""A day: long enough to see each hour of a season, short enough to follow a service that changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TechniqueChoice:
    """How a service is forecast, and why."""

    technique: str = DEFAULT
    seasons: tuple[Season, ...] = ()
    """Those that the technique needs."""
    margin: float = 1.0
    """Factor on the technique's spread, ≥ 1."""
    room: Room = UNKNOWN_ROOM
    """What plans carry of what they follow."""
    burst_until_s: float = 0.0
    """When a burst was last among what was judged, seconds since 1970; 0: never."""
    scores: Mapping[str, ForecastScore] = field(default_factory=dict)
    """By technique; older forecasts count less."""
    judged_until_s: float = 0.0
    """Seconds since 1970; windows before it are in the scores."""


def choose(scores: Mapping[str, ForecastScore], current: str = DEFAULT) -> str:
    """The name of the technique to use next.

    The current one stays unless another one's pinball loss is lower by MARGIN, over at least MIN_FORECASTS.
    Ties go to the one that comes first in TECHNIQUES. A name that is no technique counts as the default.
    """
    current = current if current in TECHNIQUES else DEFAULT
    # Judged in the order of TECHNIQUES, so that `min` below gives ties to the first.
    judged = [
        name
        for name in TECHNIQUES
        if name in scores and scores[name].forecasts >= MIN_FORECASTS
    ]
    if current not in judged:
        return current
    best = min(judged, key=lambda name: scores[name].pinball_rps)
    needed_rps = (1.0 - MARGIN) * scores[current].pinball_rps
    return best if scores[best].pinball_rps < needed_rps else current


def margin_of(score: ForecastScore | None) -> float:
    """The factor on a technique's spread that its back-tests ask for, ≥ 1; near 1 while there are few of them.

    A technique that promises more than is needed keeps its margin: back-tests know only what has been.
    """
    if score is None:
        return 1.0
    # A few windows above the forecast would widen every plan, so trust grows with their number: half at MIN_FORECASTS.
    trust = score.forecasts / (score.forecasts + MIN_FORECASTS)
    return 1.0 + trust * (max(1.0, score.margin) - 1.0)


def merge(
    old: Mapping[str, ForecastScore],
    new: Mapping[str, ForecastScore],
    *,
    elapsed_s: float,
) -> dict[str, ForecastScore]:
    """Scores over all forecasts, those of `old` counting half for each HALF_LIFE_S since they were made.

    Techniques that are no longer there are left out; one that `old` does not know is not chosen before it has made
    MIN_FORECASTS.
    """
    keep = 0.5 ** (max(0.0, elapsed_s) / HALF_LIFE_S)
    return {
        name: _merged(old.get(name), new.get(name), keep)
        for name in TECHNIQUES
        if name in old or name in new
    }


def _merged(
    old: ForecastScore | None, new: ForecastScore | None, keep: float
) -> ForecastScore:
    if old is None or new is None:
        known = old or new
        assert known is not None
        return known
    before = keep * old.forecasts
    total = before + new.forecasts
    share = new.forecasts / total if total else 0.0
    # Figures are means over forecasts and merge by the numbers of these; `margin`, a quantile, only roughly so.
    means = {
        entry.name: (1.0 - share) * getattr(old, entry.name)
        + share * getattr(new, entry.name)
        for entry in fields(ForecastScore)
    }
    return ForecastScore(**{**means, "forecasts": total})
