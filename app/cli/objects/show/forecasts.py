"""A service's forecast in words; `plimsoll describe` says it in one line."""

from collections.abc import Sequence

from app.cli.common.client import Document, documents, number, text
from app.cli.common.output import ColouredCell, amount, bad, good, show_line

SHOWN_LEVEL = 0.95
"""The line says this quantile; as `solvers.forecast.types.PLANNING_LEVEL`, without the time that its import takes."""


def show_forecast_line(forecast: Document) -> None:
    """`forecast: seasonal_daily, p95 55.7 rps in 5 s (heard 1 s ago)`, or why there is none."""
    telemetry = telemetry_cell(forecast)
    shown = [
        entry
        for entry in documents(forecast, "quantiles")
        if number(entry, "level") == SHOWN_LEVEL
    ]
    # A service without reports has no forecast; why is what the telemetry says.
    if not shown:
        show_line("forecast: none, ", telemetry)
        return
    (rate,) = rate_texts([number(shown[0], "rate_rps") or 0.0])
    ahead = f"p{100 * SHOWN_LEVEL:g} {rate} rps in {number(forecast, 'horizon_s'):g} s"
    show_line(f"forecast: {text(forecast, 'technique')}, {ahead} (", telemetry, ")")


def telemetry_cell(forecast: Document) -> ColouredCell:
    """Whether anybody reports of the service; a quiet one and one without reports are told apart."""
    silent_s = number(forecast, "silent_for_s")
    if text(forecast, "telemetry") == "heard":
        rates_rps = [
            number(entry, "rate_rps") for entry in documents(forecast, "quantiles")
        ]
        return good(
            f"heard {silent_s:.0f} s ago"
            # Nothing to serve, although the node reports: else a quiet service would look broken.
            + ("" if any(rates_rps) else ", quiet: no requests")
        )
    if silent_s is None:
        return bad(
            "no node reported it in the last few minutes; the planned rate stays"
        )
    return bad(f"reports stopped {silent_s:.0f} s ago; the planned rate stays")


def rate_texts(rates_rps: Sequence[float]) -> list[str]:
    """Rates with as many decimals as the highest of them needs."""
    highest = max(rates_rps, default=0.0)
    # The same number of decimals in all cells of a row, so that they can be compared by eye.
    digits = 0 if highest >= 10_000.0 else 1 if highest >= 1.0 or highest == 0.0 else 3
    return [amount(rate, digits) for rate in rates_rps]
