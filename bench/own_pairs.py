"""What pairs that `bench.real_gpu` measured say of the law by which partners slow each other; rows of `bench.partners`.

Under SM limits, for a network i next to j, which may use P_j percent of the SMs, whether they serve or are trained:

    slowdown_ij = 1 + s_i · w_j · (P_j / 50)^η

s and w by least squares on the excess, η by search; w = 1 where neighbours are not told apart. On an H100 the truth has
η = 1 and a median s of 20 % for partners that are always busy (agents/sim/data/gpu_types.csv).
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from agents.sim.truth.curves import FloatArray
from bench.measured_sets import own_sets, read_rows
from bench.real_gpu.networks import TRAINING
from bench.report import Figures

_EXPONENTS = np.arange(0.0, 2.51, 0.1)
_SWEEPS = 200
"""Of alternating least squares, far beyond its convergence."""


class Pair(NamedTuple):
    """A network next to another process."""

    network: str
    other: str
    sm_percent: float
    other_percent: float
    latency_ms: float
    """Its median."""
    slowdown: float
    stall_ms: float = math.nan
    """What the 99th percentile gains beyond the slowdown; NaN where it was not measured alone."""

    @property
    def has_training(self) -> bool:
        """Whether one of the two is trained."""
        return _is_training(self.network) or _is_training(self.other)

    @property
    def is_capped(self) -> bool:
        """Whether SM limits hold the two to their own SMs."""
        return self.sm_percent + self.other_percent <= 100.0


class PairLaw(NamedTuple):
    """The fitted law."""

    exponent: float
    sensitivities: FloatArray
    """By network, in the order of their names."""
    error_percent: float
    """Mean of |fitted / measured slowdown − 1|."""


def own_rows() -> Iterator[Figures]:
    """What each set of ours says that has pairs."""
    for folder in own_sets():
        if not (folder / "pairs.csv").is_file():
            continue
        for what, figure in _figures(_read(folder / "pairs.csv")):
            yield {
                "what": f"{folder.name.upper()}, ours: {what}",
                "figure": figure,
                "a constant": None,
                "must": None,
            }


def _figures(pairs: Sequence[Pair]) -> Iterator[tuple[str, float]]:
    capped = [each for each in pairs if each.is_capped]
    kinds = (
        ("capped", [each for each in capped if not each.has_training]),
        ("next to training", [each for each in capped if _is_training(each.other)]),
        ("training", [each for each in capped if _is_training(each.network)]),
        ("all of these", capped),
    )
    for name, rows in kinds:
        if not rows:
            continue
        law, both = fit(rows), fit(rows, tells_neighbours=True)
        median = 100.0 * float(np.median(law.sensitivities))
        yield f"{name} ({len(rows)} rows), exponent of the SM percent", law.exponent
        yield f"{name}, median excess next to half of the SMs, %", median
        yield f"{name}, error of a sensitivity per network, %", law.error_percent
        yield f"{name}, error with a pressure per neighbour, %", both.error_percent
    beside = [each for each in pairs if _is_training(each.other)]
    for name, percent in (("half of the SMs", 50.0), ("all SMs", 100.0)):
        stalls_ms = [each.stall_ms for each in beside if each.other_percent == percent]
        if stalls_ms:
            what = f"next to training with {name}, the 99th percentile gains"
            yield f"{what}, median, ms", float(np.nanmedian(stalls_ms))
    serving = [each for each in pairs if not each.has_training]
    worst = max(serving, key=lambda each: each.slowdown)
    for each in pairs:
        if (each.network, each.other) == (worst.network, worst.other):
            both_named = f"{each.network} next to {each.other}"
            percents = f"{each.sm_percent:g} and {each.other_percent:g} %"
            alone_ms = each.latency_ms / each.slowdown
            yield f"{both_named}, {percents}: alone, ms", alone_ms
            yield f"{both_named}, {percents}: together, ms", each.latency_ms


def fit(pairs: Sequence[Pair], *, tells_neighbours: bool = False) -> PairLaw:
    """The law with the least error over all exponents that are tried."""
    laws = (
        _fit_at(pairs, float(each), tells_neighbours=tells_neighbours)
        for each in _EXPONENTS
    )
    return min(laws, key=lambda law: law.error_percent)


def _fit_at(
    pairs: Sequence[Pair], exponent: float, *, tells_neighbours: bool
) -> PairLaw:
    victim = np.unique([each.network for each in pairs], return_inverse=True)[1]
    told = [each.other if tells_neighbours else "" for each in pairs]
    neighbour = np.unique(told, return_inverse=True)[1]
    slowdown = np.array([each.slowdown for each in pairs])
    growth = (np.array([each.other_percent for each in pairs]) / 50.0) ** exponent
    sensitivity, pressure = fit_rank_one(slowdown - 1.0, growth, victim, neighbour)
    fitted = 1.0 + sensitivity[victim] * pressure[neighbour] * growth
    error = float(100.0 * np.mean(np.abs(fitted / slowdown - 1.0)))
    return PairLaw(exponent, sensitivity, error)


def fit_rank_one(
    excess: FloatArray, growth: FloatArray, victim: np.ndarray, neighbour: np.ndarray
) -> tuple[FloatArray, FloatArray]:
    """Sensitivities and pressures with the least squared error of sensitivity · pressure · growth.

    All arguments are (rows,); `victim` and `neighbour` number the networks from 0. A single neighbour has pressure 1.
    """
    pressure = np.ones(neighbour.max() + 1)
    sensitivity = _slopes(excess, growth, victim)
    if len(pressure) > 1:
        for _ in range(_SWEEPS):
            pressure = _slopes(excess, sensitivity[victim] * growth, neighbour)
            sensitivity = _slopes(excess, pressure[neighbour] * growth, victim)
    return sensitivity, pressure


def _slopes(excess: FloatArray, growth: FloatArray, group: np.ndarray) -> FloatArray:
    """Least-squares slope through zero of each group's rows."""
    return np.bincount(group, excess * growth) / np.bincount(group, growth * growth)


def _read(file: Path) -> list[Pair]:
    rows = read_rows(file)
    alone_ms = {
        (row["network"], row["sm_percent"]): float(row["latency_ms_p99"])
        for row in rows
        if not row["other_network"]
    }
    return [
        Pair(
            network=row["network"],
            other=row["other_network"],
            sm_percent=float(row["sm_percent"]),
            other_percent=float(row["other_sm_percent"]),
            latency_ms=float(row["latency_ms_p50"]),
            slowdown=float(row["slowdown"]),
            stall_ms=float(row["latency_ms_p99"])
            - float(row["slowdown"])
            * alone_ms.get((row["network"], row["sm_percent"]), math.nan),
        )
        for row in rows
        if row["slowdown"]
    ]


def _is_training(network: str) -> bool:
    return network.startswith(TRAINING)
