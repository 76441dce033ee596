"""The stream of jobs: who asks for what, when. Seeded; every kind of job has a random stream of its own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from agents.sim.truth.curves import FloatArray
from solvers.types.state import Variant

Pattern = Literal["uniform", "poisson", "trace"]
"""uniform: evenly spaced; poisson: at random at a constant rate; trace: at random at the rates of a series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """One kind of job."""

    name: str
    rate_rps: float
    """Jobs per second, of a trace their mean."""
    variants: tuple[Variant, ...]
    """Networks that may do it; those below its accuracy floor are left out already."""
    inputs: tuple[int, ...]
    """How many inputs a job may have; equally likely."""
    slo_ms: float
    """For every `slo_inputs` inputs."""
    slo_inputs: int = 8
    allowance_s: float = 1.0
    """Added to the deadline for the dispatch itself."""
    critical_share: float = 0.9
    """Share of its jobs that are latency-critical."""
    trace: str = ""
    """Series that the pattern `trace` follows."""

    def deadline_s(self, inputs: int) -> float:
        """From the submission."""
        return (
            self.allowance_s
            + math.ceil(inputs / self.slo_inputs) * self.slo_ms / 1000.0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One job as it is submitted."""

    name: str
    kind: str
    submitted_s: float
    deadline_s: float
    inputs: int
    weight: float
    variants: tuple[Variant, ...]

    @property
    def best_accuracy(self) -> float:
        """Of its variants."""
        return max(variant.accuracy for variant in self.variants)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """How jobs arrive."""

    pattern: Pattern
    length_s: float
    seed: int
    traces: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """(name, requests in each second) of the series that kinds follow; repeated where they are shorter."""


CRITICAL_WEIGHT, OTHER_WEIGHT = 0.75, 0.25
"""λ of the two classes: the middle of each half."""


def make_requests(
    kinds: Sequence[JobKind], arrivals: Arrivals
) -> tuple[JobRequest, ...]:
    """All jobs in the order of their submission. The same seed gives the same jobs, whatever other kinds there are."""
    requests = [request for kind in kinds for request in _of_kind(kind, arrivals)]
    return tuple(
        sorted(requests, key=lambda request: (request.submitted_s, request.name))
    )


def _of_kind(kind: JobKind, arrivals: Arrivals) -> list[JobRequest]:
    random = np.random.default_rng([arrivals.seed, *kind.name.encode()])
    times_s = _times_s(kind, arrivals, random)
    inputs = random.choice(np.array(kind.inputs), len(times_s)).tolist()
    critical = (random.random(len(times_s)) < kind.critical_share).tolist()
    return [
        JobRequest(
            name=f"{kind.name}-{number}",
            kind=kind.name,
            submitted_s=at_s,
            deadline_s=at_s + kind.deadline_s(count),
            inputs=count,
            weight=CRITICAL_WEIGHT if is_critical else OTHER_WEIGHT,
            variants=kind.variants,
        )
        for number, (at_s, count, is_critical) in enumerate(
            zip(times_s, inputs, critical, strict=True)
        )
    ]


def _times_s(
    kind: JobKind, arrivals: Arrivals, random: np.random.Generator
) -> list[float]:
    if arrivals.pattern == "uniform":
        period_s = 1.0 / kind.rate_rps
        return [
            float(at_s)
            for at_s in np.arange(
                random.random() * period_s, arrivals.length_s, period_s
            )
        ]
    rates = _rates_rps(kind, arrivals)
    counts = random.poisson(rates)
    seconds = np.repeat(np.arange(len(rates)), counts)
    times_s = np.sort(seconds + random.random(len(seconds)))
    return [float(at_s) for at_s in times_s if at_s < arrivals.length_s]


def _rates_rps(kind: JobKind, arrivals: Arrivals) -> FloatArray:
    """Of every second."""
    seconds = math.ceil(arrivals.length_s)
    if arrivals.pattern == "poisson":
        return np.full(seconds, kind.rate_rps)
    series = np.array(dict(arrivals.traces)[kind.trace])
    return np.asarray(np.resize(series, seconds) * kind.rate_rps / series.mean())
