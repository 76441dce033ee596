"""Where measured sets are, rapp_v100 and our own as samples, ways to hold rows out, and what a forecast came to."""

import argparse
import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from solvers.predict.data.fit import Fits
from solvers.predict.data.samples import (
    Indices,
    LayerCounts,
    Neighbour,
    Queries,
    Reals,
    Samples,
    make_queries,
    make_samples,
)
from solvers.predict.estimate.predict import predict_latency

MEASURED = Path(__file__).parent / "measured"
"""Our own sets, a folder each, as `bench.real_gpu` writes them (docs/measure.md)."""
UNANSWERED = "none"
"""Technique of rows of which the fits know nothing and cannot estimate anything."""


def shared_folder(description: str | None) -> Path | None:
    """The folder that the command line names, or the one next to the repository; None, with a line, without data."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shared", type=Path, default=Path(__file__).parents[2] / "shared"
    )
    shared: Path = parser.parse_args().shared
    if (shared / "data").is_dir():
        return shared
    print(f"skipped: the measurements are not here ({shared / 'data'})")
    return None


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, by column."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def numbers(rows: Sequence[Mapping[str, str]], column: str) -> Reals:
    """(N,) one column."""
    return np.array([float(row[column]) for row in rows])


def load_rapp(shared: Path, *, full_quota: bool) -> Samples:
    """63 torchvision networks on a V100 by batch, SM share and (unless only the full one is asked for) time quota."""
    rows = read_rows(shared / "data/rapp_v100/latency_sm_quota.csv")
    if full_quota:
        rows = [row for row in rows if row["time_quota_pct"] == "100"]
    at = make_queries(
        [row["model"] for row in rows],
        ["V100-16GB"] * len(rows),
        batch=numbers(rows, "batch"),
        sm_percent=numbers(rows, "sm_pct"),
        time_quota_percent=numbers(rows, "time_quota_pct"),
    )
    return make_samples(at, numbers(rows, "latency_ms"))


def own_sets(measured: Path = MEASURED) -> tuple[Path, ...]:
    """The folders of our own sets, by name."""
    return tuple(sorted(path.parent for path in measured.glob("*/solo.csv")))


def load_own(folder: Path) -> Samples:
    """A set of our own: networks alone, and where there are pairs also side by side.

    Training is there as a neighbour only: the time of its step is no service's latency.
    """
    rows = [
        row
        for name in ("solo.csv", "pairs.csv")
        if (folder / name).is_file()
        for row in read_rows(folder / name)
    ]
    rows = [row for row in rows if not row["network"].startswith("train-")]
    at = make_queries(
        [row["network"] for row in rows],
        [row["gpu_type"] for row in rows],
        batch=numbers(rows, "batch"),
        sm_percent=numbers(rows, "sm_percent"),
        neighbours=[_beside(row) for row in rows],
    )
    return make_samples(
        at,
        numbers(rows, "latency_ms_mean"),
        power_w=_known_numbers(rows, "power_w"),
        memory_mib=_known_numbers(rows, "memory_mib"),
    )


def _beside(row: Mapping[str, str]) -> tuple[Neighbour, ...]:
    if not row.get("other_network"):
        return ()
    return (
        Neighbour(
            row["other_network"],
            float(row["other_batch"]),
            float(row["other_sm_percent"]),
        ),
    )


def _known_numbers(rows: Sequence[Mapping[str, str]], column: str) -> Reals:
    """(N,) one column; NaN where a cell is empty."""
    return np.array([float(row[column] or np.nan) for row in rows])


def joined_samples(one: Samples, other: Samples) -> Samples:
    """The samples of both, the first ones first."""
    at = make_queries(
        one.at.network + other.at.network,
        one.at.gpu_type + other.at.gpu_type,
        batch=np.append(one.at.batch, other.at.batch),
        sm_percent=np.append(one.at.sm_percent, other.at.sm_percent),
        time_quota_percent=np.append(
            one.at.time_quota_percent, other.at.time_quota_percent
        ),
        neighbours=one.at.neighbours + other.at.neighbours,
    )
    return make_samples(at, np.append(one.latency_ms, other.latency_ms))


def random_quarter(size: int, *, seed: int) -> tuple[Indices, Indices]:
    """(learned, held-out) rows."""
    order = np.random.default_rng(seed).permutation(size)
    return np.sort(order[size // 4 :]), np.sort(order[: size // 4])


def rotating_groups(samples: Samples, count: int) -> Iterator[tuple[str, ...]]:
    """The networks in `count` groups, every one in one group."""
    networks = sorted(set(samples.at.network))
    yield from (tuple(networks[start::count]) for start in range(count))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """Held-out rows (N) and what was said of them; NaN where nothing could be said."""

    measured_ms: Reals
    predicted_ms: Reals
    low_ms: Reals
    high_ms: Reals
    technique: tuple[str, ...]
    learned: int
    """Samples that the fits were made from."""

    @property
    def errors(self) -> Reals:
        """(N,) |predicted − measured| / measured."""
        return np.abs(self.predicted_ms / self.measured_ms - 1.0)

    @property
    def r2(self) -> float:
        """Of the latencies in ms."""
        known = np.isfinite(self.predicted_ms)
        measured, predicted = self.measured_ms[known], self.predicted_ms[known]
        return 1.0 - float(
            np.sum((predicted - measured) ** 2)
            / np.sum((measured - measured.mean()) ** 2)
        )

    @property
    def covered(self) -> float:
        """Share of the rows inside the interval."""
        known = np.isfinite(self.predicted_ms)
        return float(
            np.mean(
                (self.low_ms <= self.measured_ms)[known]
                & (self.measured_ms <= self.high_ms)[known]
            )
        )


def forecast(
    fits: Fits, held: Samples, *, learned: int, layers: Mapping[str, LayerCounts]
) -> Outcome:
    """What the fits say of held-out samples."""
    answers = [np.full(len(held), np.nan) for _ in range(3)]
    technique = np.full(len(held), UNANSWERED, dtype=object)
    rows = _answerable(fits, held.at, layers)
    predictions = predict_latency(fits, held.at.take(rows), layers=layers)
    for values, said in zip(
        answers,
        (
            predictions.latency_ms,
            predictions.latency_ms_low,
            predictions.latency_ms_high,
        ),
        strict=True,
    ):
        values[rows] = said
    technique[rows] = predictions.technique
    return Outcome(
        measured_ms=held.latency_ms,
        predicted_ms=answers[0],
        low_ms=answers[1],
        high_ms=answers[2],
        technique=tuple(technique.tolist()),
        learned=learned,
    )


def pooled(outcomes: Sequence[Outcome]) -> Outcome:
    """All rows of several outcomes; samples learned from in the mean."""
    return Outcome(
        measured_ms=np.concatenate([each.measured_ms for each in outcomes]),
        predicted_ms=np.concatenate([each.predicted_ms for each in outcomes]),
        low_ms=np.concatenate([each.low_ms for each in outcomes]),
        high_ms=np.concatenate([each.high_ms for each in outcomes]),
        technique=tuple(name for each in outcomes for name in each.technique),
        learned=round(float(np.mean([each.learned for each in outcomes]))),
    )


def technique_mix(outcome: Outcome) -> str:
    """Techniques with their share of the rows in percent, the largest first."""
    shares = Counter(outcome.technique).most_common()
    return ", ".join(
        f"{name} {100 * rows / len(outcome.technique):.0f}" for name, rows in shares
    )


def _answerable(
    fits: Fits, queries: Queries, layers: Mapping[str, LayerCounts]
) -> Indices:
    known = [
        rows
        for group, rows in queries.groups().items()
        if fits.find("latency_ms", group) is not None or group.network in layers
    ]
    return np.sort(np.concatenate([np.zeros(0, dtype=np.intp), *known]))
