"""How a service is forecast, as the API answers it."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from app.api.schemas import View


class QuantileView(View):
    """One quantile of the arrival rate."""

    level: float = Field(description="The chance that the rate stays below, 0 to 1")
    rate_rps: float


class ScoreView(View):
    """How a technique did in back-tests, as means over its forecasts; those of yesterday count half."""

    technique: str
    forecasts: float = Field(description="How many were judged; a fraction, because older ones count less")
    pinball_rps: float = Field(description="Pinball loss at the level that plans serve, 0.95; the least one wins")
    coverage: float = Field(description="Share of the windows below the forecast of that level; 0.95 is wanted")
    interval_coverage: float = Field(description="Share of the windows within the 90 % interval")
    error_rps: float = Field(description="Mean distance of the median from what came")
    observed_rps: float = Field(description="Mean rate that came")
    margin: float = Field(description="Factor on the technique's own spread with which the level would have been kept")


class ServiceForecast(View):
    """What the control loop expects of a service, and what that rests on."""

    service: str
    technique: str = Field(description="The one that was chosen by back-tests; `burst_aware` before the first one")
    margin: float = Field(description="Factor on the technique's spread that the back-tests ask for, 1 or more")
    telemetry: Literal["heard", "stopped", "never"] = Field(
        description="heard: nodes report of the service, be it that no request comes. stopped: they did, and no longer "
        "do. never: not in any window that the loop looks at. Without reports the planned rate stays"
    )
    silent_for_s: float | None = Field(
        description="Since the end of the newest window that was reported; null: there is none that the loop looks at"
    )
    horizon_s: float = Field(description="How far ahead a plan looks, and this forecast with it")
    quantiles: list[QuantileView] = Field(
        description="Of the arrival rate at the horizon, without headroom, lowest level first. All rates 0: a quiet "
        "service. Empty: nobody reports"
    )
    scores: list[ScoreView] = Field(description="Back-test of every technique, least loss first; empty before one")
    judged_at: datetime | None = Field(description="What came until then is in the scores; null: never judged")
