"""Samples of co-located replicas: from a law that is written down here once more, and measured ones."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from solvers.predict.data.samples import (
    Neighbour,
    Queries,
    Reals,
    Samples,
    make_queries,
    make_samples,
)

MEASURED = Path(__file__).parents[4] / "shared" / "data" / "igniter_v100"
GPU_TYPE = "A100"


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A true pressure law, with nothing but run time."""

    sensitivity: Mapping[str, float]
    weight: Mapping[str, float]
    per_share: float = 0.1
    per_log_batch: float = 0.02
    constant: float = 0.05

    def factor(self, network: str, neighbours: Sequence[Neighbour]) -> float:
        pressure = sum(
            self.weight[other]
            * (
                self.constant
                + self.per_share * sm_percent / 100.0
                + self.per_log_batch * float(np.log2(batch))
            )
            for other, batch, sm_percent in neighbours
        )
        return 1.0 + self.sensitivity[network] * pressure


def colocated(rows: Sequence[tuple[str, float, float, Sequence[Neighbour]]]) -> Queries:
    """Queries from (network, batch, SM percent, neighbours)."""
    return make_queries(
        [row[0] for row in rows],
        [GPU_TYPE] * len(rows),
        batch=[row[1] for row in rows],
        sm_percent=[row[2] for row in rows],
        neighbours=[tuple(row[3]) for row in rows],
    )


def random_neighbours(
    networks: Sequence[str], *, rows: int, max_neighbours: int, seed: int
) -> Queries:
    """Random conditions next to 1 to `max_neighbours` random neighbours."""
    draw = np.random.default_rng(seed)

    def condition() -> tuple[str, float, float]:
        batch = float(draw.choice([1, 2, 4, 8, 16, 32]))
        return str(draw.choice(networks)), batch, float(draw.choice([10, 20, 30, 40]))

    neighbour_sets = [
        [
            Neighbour(*condition())
            for _ in range(draw.integers(1, max_neighbours, endpoint=True))
        ]
        for _ in range(rows)
    ]
    return colocated([(*condition(), neighbours) for neighbours in neighbour_sets])


def samples_by(law: Law, queries: Queries, alone_ms: Reals) -> Samples:
    """What the law measures under these conditions."""
    factors = [
        law.factor(network, neighbours)
        for network, neighbours in zip(queries.network, queries.neighbours, strict=True)
    ]
    return make_samples(queries, alone_ms * np.array(factors))


def measured_pairs() -> tuple[Samples, Reals]:
    """iGniter's pairs on a V100, and the latency of every row alone."""
    rows, latency_ms, alone_ms = [], [], []
    with (MEASURED / "pair_interference.csv").open() as file:
        for row in csv.DictReader(file):
            for own, other in ("ab", "ba"):
                near = Neighbour(
                    row[f"model_{other}"],
                    float(row[f"batch_{other}"]),
                    float(row[f"sm_pct_{other}"]),
                )
                rows.append(
                    (
                        row[f"model_{own}"],
                        float(row[f"batch_{own}"]),
                        float(row[f"sm_pct_{own}"]),
                        [near],
                    )
                )
                latency_ms.append(float(row[f"latency_{own}_ms"]))
                alone_ms.append(float(row[f"solo_latency_{own}_ms"]))
    return make_samples(colocated(rows), latency_ms), np.array(alone_ms)
