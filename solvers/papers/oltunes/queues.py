"""Two priority queues: latency-critical jobs, and throughput-oriented ones.

    urgency = (deadline − now) / mean predicted latency            the smaller, the earlier; ties: shortest job first

Source: OLTunes, section 3.4.1. Changed: the deadline is taken from now, not from the submission, or nothing would grow
urgent; a job that can no longer meet its deadline goes behind those that can, or under overload each late one makes the
next one late; one whose deployment failed goes to the front of the latency-critical ones (the printed feedback). In any
such order a job may wait for ever: who has waited for long comes before all (`impatient`).
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from solvers.papers.oltunes.types import Job, failed

PATIENCE_S = 30.0
"""After so long a job comes first of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """Who waits, in any order."""

    latency_critical: tuple[Job, ...] = ()
    throughput_oriented: tuple[Job, ...] = ()

    def __len__(self) -> int:
        return len(self.latency_critical) + len(self.throughput_oriented)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All of them."""
        return (*self.latency_critical, *self.throughput_oriented)

    @property
    def critical_share(self) -> float | None:
        """Share of the waiting jobs that are latency-critical; None where nobody waits (the printed ratio is 0 / 0)."""
        return len(self.latency_critical) / len(self) if len(self) else None


def enqueue(queues: Queues, jobs: Iterable[Job]) -> Queues:
    """The queues with more jobs, each in that of its class."""
    new = tuple(jobs)
    return Queues(
        latency_critical=(
            *queues.latency_critical,
            *(job for job in new if job.is_latency_critical),
        ),
        throughput_oriented=(
            *queues.throughput_oriented,
            *(job for job in new if not job.is_latency_critical),
        ),
    )


def without(queues: Queues, names: Collection[str]) -> Queues:
    """The queues without the jobs of these names."""
    if not names:
        return queues
    return Queues(
        latency_critical=tuple(
            job for job in queues.latency_critical if job.name not in names
        ),
        throughput_oriented=tuple(
            job for job in queues.throughput_oriented if job.name not in names
        ),
    )


def put_back(queues: Queues, jobs: Iterable[Job]) -> Queues:
    """The queues with jobs whose deployment failed: in front of all, whatever their class.

    Each is there once, whether or not the queues still have it.
    """
    back = tuple(map(failed, jobs))
    others = without(queues, {job.name for job in back})
    return replace(others, latency_critical=(*back, *others.latency_critical))


def impatient(
    jobs: Iterable[Job], now_s: float, patience_s: float = PATIENCE_S
) -> list[Job]:
    """Those that have waited for at least `patience_s`, the longest wait first; the order of `jobs` changes nothing."""
    return sorted(
        (job for job in jobs if now_s - job.queued_s >= patience_s),
        key=lambda job: (job.queued_s, job.name),
    )


def urgency(job: Job, now_s: float) -> float:
    """How often it could still be done until its deadline; infinite without one, negative after it."""
    return (job.deadline_s - now_s) / job.mean_latency_s


def is_lost(job: Job, now_s: float) -> bool:
    """Whether it has a deadline that its fastest setting would miss, too."""
    fastest_s = min(setting.latency_s for setting in job.settings)
    return math.isfinite(job.deadline_s) and now_s + fastest_s > job.deadline_s


def by_urgency(jobs: Iterable[Job], now_s: float) -> list[Job]:
    """The most urgent first; the order of `jobs` changes nothing."""

    def key(job: Job) -> tuple[bool, bool, float, float, str]:
        return (
            job.failures == 0,
            is_lost(job, now_s),
            urgency(job, now_s),
            job.mean_latency_s,
            job.name,
        )

    return sorted(jobs, key=key)
