"""Two priority queues: latency-critical jobs, and throughput-oriented ones.

    urgency = (deadline − now) / mean predicted latency            the smaller, the earlier; ties: shortest job first

Source: OLTunes, section 3.4.1. Changed: the deadline is taken from now, not from the submission, or nothing would grow
urgent; a job that can no longer meet its deadline goes behind those that can, or under overload each late one makes the
next one late; one whose deployment failed goes to the front of the latency-critical ones (the printed feedback). In any
such order a job may wait for ever: who has waited for long comes before all (`impatient`).
λ = 0.5 is both classes in the text; Table 4 calls it throughput-oriented, as here. Where no job waits the printed
share of latency-critical jobs is 0 / 0: here the window then stays as it is.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from solvers.types.jobs import PATIENCE_S, Job, Queues, failed, without


def put_back(queues: Queues, jobs: Iterable[Job]) -> Queues:
    """The queues with jobs whose deployment failed: in front of all, whatever their class.

    Each is there once, whether or not the queues still have it.
    """
    # Algorithm 3, line 21: back into Q_lc with a higher priority, throughput-oriented ones too.
    back = tuple(map(failed, jobs))
    others = without(queues, {job.name for job in back})
    return replace(others, latency_critical=(*back, *others.latency_critical))


def impatient(
    jobs: Iterable[Job],
    now_s: float,
    patience_s: float = PATIENCE_S,
) -> list[Job]:
    """Those that have waited for at least `patience_s`, the longest wait first; the order of `jobs` changes nothing."""
    return sorted(
        (job for job in jobs if now_s - job.queued_s >= patience_s),
        key=lambda job: (job.queued_s, job.name),
    )


def urgency(job: Job, now_s: float) -> float:
    """How often it could still be done until its deadline; infinite without one, negative after it."""
    # Section 3.4.1 divides by the mean over the job's GPU types, since it is not known yet which of them it gets.
    return (job.deadline_s - now_s) / job.mean_latency_s


def is_lost(job: Job, now_s: float) -> bool:
    """Whether it has a deadline that its fastest setting would miss, too."""
    # By its fastest setting: as long as any GPU could still make it in time, its place among the others stands.
    fastest_s = min(setting.latency_s for setting in job.settings)
    return math.isfinite(job.deadline_s) and now_s + fastest_s > job.deadline_s


def by_urgency(jobs: Iterable[Job], now_s: float) -> list[Job]:
    """The most urgent first; the order of `jobs` changes nothing."""

    # Jobs whose deployment failed, then those that can make it, then the urgent; ties shortest first, as in the
    # paper.
    def key(job: Job) -> tuple[bool, bool, float, float, str]:
        return (
            job.failures == 0,
            is_lost(job, now_s),
            urgency(job, now_s),
            job.mean_latency_s,
            job.name,
        )

    return sorted(jobs, key=key)
