"""The public measurements that the techniques are judged on, when they are at hand, and the judgement."""

import csv
from pathlib import Path

import numpy as np
import pytest

from solvers.predict.data.samples import Reals, Samples, make_queries, make_samples
from solvers.predict.data.techniques import find_learner
from solvers.predict.learn.cross_validation import hold_out_family

_DATA = Path(__file__).parents[5] / "shared" / "data"


def igniter_solo() -> Samples:
    """Three networks on a V100, alone."""
    return _samples(_rows("igniter_v100/solo_latency.csv"))


def held_out_errors(technique: str, samples: Samples) -> Reals:
    """|predicted - measured| / measured of every sample, held out in one of the choice's random folds."""
    (predicted,) = hold_out_family(
        (find_learner("latency_ms", technique),), samples, seed=0
    )
    return np.abs(predicted / samples.latency_ms - 1.0)


def _rows(path: str) -> list[dict[str, str]]:
    if not (_DATA / path).exists():
        pytest.skip(f"{path} is not at hand")
    with (_DATA / path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _samples(rows: list[dict[str, str]]) -> Samples:
    at = make_queries(
        [row["model"] for row in rows],
        ["V100-16GB"] * len(rows),
        batch=[float(row["batch"]) for row in rows],
        sm_percent=[float(row["sm_pct"]) for row in rows],
    )
    return make_samples(at, [float(row["latency_ms"]) for row in rows])
