"""What pairs that `bench.real_gpu` measured say of the law by which partners slow each other; rows of `bench.partners`.

Under SM limits, for an inference network i beside j, which may use P_j percent of the SMs:

    slowdown_ij = 1 + s_i · w_j · (P_j / 50)^η

s and w by least squares on the excess, η by search; w = 1 where neighbours are not told apart. On an H100 the truth has
η = 1 and a median s of 20 % (agents/sim/data/gpu_types.csv), and beside `resnet18` training s = 12 %
(training_slowdown.csv).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from agents.sim.truth.curves import FloatArray
from bench.measured_sets import own_sets, read_rows
from bench.real_gpu.networks import TRAINING
from bench.report import Figures

_EXPONENTS = np.arange(0.0, 2.51, 0.1)
_SWEEPS = 100
"""Alternating least squares; on the H100's rows nothing moves after 20."""


class Pair(NamedTuple):
    """An inference network beside another process."""

    network: str
    other: str
    sm_percent: float
    other_percent: float
    latency_ms: float
    """Its median."""
    slowdown: float


class PairLaw(NamedTuple):
    """The fitted law."""

    exponent: float
    sensitivities: FloatArray
    """By network, in the order of their names."""
    error_percent: float
    """Mean of |fitted / measured slowdown − 1|."""


def own_rows() -> Iterator[Figures]:
    """What each set of ours says."""
    for folder in own_sets():
        pairs = _read(folder / "pairs.csv")
        capped = [
            each for each in pairs if each.sm_percent + each.other_percent <= 100.0
        ]
        beside_training = [each for each in capped if each.other.startswith(TRAINING)]
        serving = [each for each in capped if each not in beside_training]
        by_victim, by_both = fit(serving), fit(serving, tells_neighbours=True)
        training, share = fit(beside_training), "exponent of the neighbour's SM percent"
        worst = max(pairs, key=lambda each: each.slowdown)
        whom = f"{worst.network} beside {worst.other}"
        figures = {
            f"capped ({len(serving)} rows), {share}": by_victim.exponent,
            "capped, median excess beside half of the SMs, %": _median_percent(
                by_victim
            ),
            "capped, error of a sensitivity per network, %": by_victim.error_percent,
            "capped, error of a pressure per neighbour as well, %": by_both.error_percent,
            f"beside training ({len(beside_training)} rows), {share}": training.exponent,
            "beside training, median excess beside half of the SMs, %": _median_percent(
                training
            ),
            "beside training, error of a sensitivity per network, %": training.error_percent,
            f"{whom}, uncapped, ms": worst.latency_ms,
            f"{whom}, half of the SMs each, ms": _at_half(worst, pairs),
        }
        for what, figure in figures.items():
            yield {
                "what": f"{folder.name.upper()}, ours: {what}",
                "figure": figure,
                "a constant": None,
                "must": None,
            }


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
    networks, victim = np.unique([each.network for each in pairs], return_inverse=True)
    others, neighbour = np.unique([each.other for each in pairs], return_inverse=True)
    slowdown = np.array([each.slowdown for each in pairs])
    growth = (np.array([each.other_percent for each in pairs]) / 50.0) ** exponent
    sensitivity, pressure = np.ones(len(networks)), np.ones(len(others))
    for _ in range(_SWEEPS):
        sensitivity = _slopes(slowdown - 1.0, pressure[neighbour] * growth, victim)
        if tells_neighbours:
            pressure = _slopes(slowdown - 1.0, sensitivity[victim] * growth, neighbour)
    fitted = 1.0 + sensitivity[victim] * pressure[neighbour] * growth
    error = float(100.0 * np.mean(np.abs(fitted / slowdown - 1.0)))
    return PairLaw(exponent, sensitivity, error)


def _slopes(excess: FloatArray, growth: FloatArray, group: np.ndarray) -> FloatArray:
    """Least-squares slope through zero of each group's rows."""
    return np.bincount(group, excess * growth) / np.bincount(group, growth * growth)


def _median_percent(law: PairLaw) -> float:
    return 100.0 * float(np.median(law.sensitivities))


def _at_half(pair: Pair, pairs: Sequence[Pair]) -> float:
    """Its latency where both have half of the SMs."""
    wanted = (pair.network, pair.other, 50.0, 50.0)
    return next(each.latency_ms for each in pairs if each[:4] == wanted)


def _read(file: Path) -> list[Pair]:
    return [
        Pair(
            network=row["network"],
            other=row["other_network"],
            sm_percent=float(row["sm_percent"]),
            other_percent=float(row["other_sm_percent"]),
            latency_ms=float(row["latency_ms_p50"]),
            slowdown=float(row["slowdown"]),
        )
        for row in read_rows(file)
        if row["slowdown"] and not row["network"].startswith(TRAINING)
    ]
