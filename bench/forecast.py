"""Forecasts on published traces: each technique's loss, coverage and error, and what choosing by back-test is worth.

Run: `python -m bench.forecast`. Prints two tables and writes bench/results/forecast.json and forecast_chosen.json. The
traces lie in ../shared/data; without them only the made ones are measured.

`chosen` is the loop's own way, without knowing what comes: each stretch is forecast by what was chosen from the
stretches before it, with the margin that they asked for. The default is first: on five minutes that is half of them.
`best` is the technique that, seen from the end, lost least; `last` the one that stands chosen at the end. `settled` is
the technique chosen from the first half against the best one of the second half, over the second half.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from app.measurements.traces import read_trace
from bench.report import Figures, print_table, write_results
from solvers.forecast.back_test import (
    BackTestOrigin,
    ForecastScore,
    SeasonsBefore,
    back_test,
)
from solvers.forecast.choose_technique import TechniqueChoice, choose, margin_of, merge
from solvers.forecast.seasons import COARSE_S, DAY_S, HOUR_S, coarsen, make_seasons
from solvers.forecast.techniques import DEFAULT, TECHNIQUES
from solvers.forecast.types import RequestSeries, Season, windows_ahead

DATA = Path(__file__).parents[2] / "shared" / "data"
HORIZON_S = 5.0
"""The default period of the loop; one window where windows are longer."""
STRETCH_S = 60.0
"""Between two choices, in windows of a second; the longest traces of them last an hour, the shortest five minutes."""
STRETCHES = 60
"""For longer windows the trace is cut into this number."""
GENERATED_DAYS = 14


def traces() -> Iterator[tuple[str, RequestSeries]]:
    """Names and traces."""
    if DATA.exists():
        for pattern in ("bursty_zipf", "low_load", "medium_normal", "twitter_zipf"):
            path = DATA / "proteus_traces" / f"{pattern}_per_second.csv"
            with path.open(encoding="utf-8") as stream:
                families = next(csv.reader(stream))[1:]
            yield from (
                (f"{pattern}/{family}", read_trace(path, family).series)
                for family in families
            )
        for name in ("code", "conv"):
            yield (
                f"azure_llm/{name}",
                read_trace(DATA / "azure_llm_2023" / f"per_second_{name}.csv").series,
            )
        path = DATA / "alibaba_genai_2026" / "qps_10min.csv"
        for column in (
            "api_requests_sum_of_samples",
            "generative_requests_sum_of_samples",
        ):
            # The scale is anonymised; a hundredfold makes counts of it.
            shape = read_trace(path, column).series
            yield (
                f"genai/{column.split('_')[0]}",
                _replaced(shape, 100.0 * shape.arrivals),
            )
        yield "philly/jobs 1 h", _philly(3600.0)
    else:
        sys.stderr.write(f"{DATA} is missing: made traces only\n")
    yield from _generated()


def _philly(window_s: float) -> RequestSeries:
    with (DATA / "philly_jobs" / "jobs.csv").open(encoding="utf-8") as stream:
        times_s = np.array([float(row["submit_s"]) for row in csv.DictReader(stream)])
    counts = np.bincount((times_s // window_s).astype(int)).astype(float)
    return RequestSeries(start_s=0.0, window_s=window_s, arrivals=counts)


def _generated() -> Iterator[tuple[str, RequestSeries]]:
    """What no short trace shows: seasons of many days, drawn from Poisson with a level that wanders from day to day."""
    draw = np.random.default_rng(1)
    for name, window_s, period_s in (
        ("made/daily 5 min", COARSE_S, DAY_S),
        ("made/hourly job 1 min", 60.0, HOUR_S),
    ):
        times_s = (
            np.arange(
                round(
                    GENERATED_DAYS
                    * period_s
                    * (1 if period_s == DAY_S else 4)
                    / window_s
                )
            )
            * window_s
        )
        phase = times_s % period_s / period_s
        shape = (
            1.0 - 0.8 * np.cos(2.0 * np.pi * phase)
            if period_s == DAY_S
            else np.where(phase < 0.1, 8.0, 1.0)
        )
        level = 20.0 * np.exp(np.cumsum(draw.normal(0.0, 0.003, size=len(times_s))))
        yield (
            name,
            RequestSeries(
                start_s=0.0,
                window_s=window_s,
                arrivals=draw.poisson(level * shape * window_s).astype(float),
            ),
        )


def _replaced(
    series: RequestSeries, arrivals: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> RequestSeries:
    return RequestSeries(
        start_s=series.start_s, window_s=series.window_s, arrivals=arrivals
    )


def measure(name: str, series: RequestSeries) -> tuple[list[Figures], Figures]:
    """A row for each technique as it is, and one for what the loop makes of them."""
    raw = back_test(
        series,
        BackTestOrigin(horizon_s=_horizon_s(series), max_origins=len(series.arrivals)),
        _seasons_of(series),
    )
    every: dict[str, ForecastScore] = {}
    chosen: dict[str, ForecastScore] = {}
    current = TechniqueChoice()
    switches = 0
    for first, end in _stretches(series):
        margins = {technique: margin_of(score) for technique, score in every.items()}
        question = BackTestOrigin(horizon_s=_horizon_s(series), max_origins=end - first)
        since = max(1, first - windows_ahead(series, question.horizon_s) + 1)
        scores = back_test(
            series.part(0, end),
            question,
            _seasons_of(series),
            margins=margins,
            since=since,
        )
        if not scores:
            continue
        every = merge(every, scores, elapsed_s=0.0)
        # Under the default's name, so that `merge` adds it up.
        chosen = merge(chosen, {DEFAULT: scores[current.technique]}, elapsed_s=0.0)
        following = choose(every, current.technique)
        switches += following != current.technique
        current = TechniqueChoice(technique=following)
    best = min(every, key=lambda technique: every[technique].pinball_rps)
    rows = [_row(name, technique, score) for technique, score in raw.items()]
    return rows, {
        **_row(name, "chosen", chosen[DEFAULT]),
        "margin": margin_of(every[current.technique]),
        "switches": switches,
        "last": current.technique,
        "best": best,
        "last_over_best_percent": 100.0
        * (every[current.technique].pinball_rps / every[best].pinball_rps - 1.0),
        "settled_over_best_percent": _settled_over_best_percent(series),
        "over_best_percent": 100.0
        * (chosen[DEFAULT].pinball_rps / every[best].pinball_rps - 1.0),
        "under_default_percent": 100.0
        * (1.0 - chosen[DEFAULT].pinball_rps / every[DEFAULT].pinball_rps),
    }


def _settled_over_best_percent(series: RequestSeries) -> float:
    middle, windows = len(series.arrivals) // 2, len(series.arrivals)
    question, seasons = (
        BackTestOrigin(horizon_s=_horizon_s(series), max_origins=windows),
        _seasons_of(series),
    )
    first = back_test(series.part(0, middle), question, seasons)
    margins = {technique: margin_of(score) for technique, score in first.items()}
    second = back_test(series, question, seasons, margins=margins, since=middle)
    best_rps = min(score.pinball_rps for score in second.values())
    return 100.0 * (second[choose(first)].pinball_rps / best_rps - 1.0)


def _horizon_s(series: RequestSeries) -> float:
    return max(HORIZON_S, series.window_s)


def _seasons_of(series: RequestSeries) -> SeasonsBefore:
    coarse = coarsen(series, COARSE_S)

    def seasons_before(until_s: float) -> tuple[Season, ...]:
        return make_seasons(
            coarse.part(0, int((until_s - coarse.start_s) // coarse.window_s))
        )

    return seasons_before


def _stretches(series: RequestSeries) -> Iterator[tuple[int, int]]:
    """First window and end of one stretch after the other."""
    windows = len(series.arrivals)
    size = round(STRETCH_S) if series.window_s == 1.0 else max(1, windows // STRETCHES)
    return ((first, min(first + size, windows)) for first in range(0, windows, size))


def _row(name: str, technique: str, score: ForecastScore) -> Figures:
    mean_rps = score.observed_rps
    return {
        "trace": name,
        "technique": technique,
        "forecasts": round(score.forecasts),
        "mean_rps": mean_rps,
        "pinball_percent_of_mean": 100.0 * score.pinball_rps / mean_rps,
        "coverage_p95_percent": 100.0 * score.coverage,
        "in_90_interval_percent": 100.0 * score.interval_coverage,
        "mean_error_percent": 100.0 * score.error_rps / mean_rps,
    }


def main() -> None:
    """Measure, print the tables, write the JSON."""
    measured = [measure(name, series) for name, series in traces()]
    rows = [row for found, _ in measured for row in found]
    chosen = [choice for _, choice in measured]
    print(
        f"Forecasts {HORIZON_S:g} s ahead, or one window where windows are longer; level 0.95"
    )
    print_table(rows)
    print(
        "\nThe technique chosen as the trace goes on, against the best one seen from the end"
    )
    print_table(chosen)
    for figure in (
        "last_over_best_percent",
        "settled_over_best_percent",
        "over_best_percent",
        "under_default_percent",
    ):
        values = [float(str(row[figure])) for row in chosen]
        print(
            f"{figure}: mean {np.mean(values):.1f}, median {np.median(values):.1f}, worst {_worst(figure, values):.1f}"
        )
    for technique in TECHNIQUES:
        _print_coverage(
            technique, [row for row in rows if row["technique"] == technique]
        )
    _print_coverage("chosen, with its margin", chosen)
    write_results("forecast", rows)
    write_results("forecast_chosen", chosen)


def _print_coverage(title: str, rows: list[Figures]) -> None:
    shares = [float(str(row["coverage_p95_percent"])) for row in rows]
    print(f"below p95, mean over the traces: {np.mean(shares):.1f} % {title}")


def _worst(figure: str, values: list[float]) -> float:
    return min(values) if figure == "under_default_percent" else max(values)


if __name__ == "__main__":
    main()
