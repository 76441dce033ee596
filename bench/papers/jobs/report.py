"""What a simulated stream of jobs came to under one dispatcher."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.papers.jobs.requests import JobRequest
from bench.papers.jobs.world import Done
from solvers.papers.oltunes.tuning_score import BASE_W


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """The jobs that were submitted in the time that counts."""

    submitted: int
    finished: int
    rejected: int
    """Refused, since the queue was full or no GPU could run them."""
    late: int
    """Done after their deadline, or not done though it has passed; rejected ones among them."""
    inputs_per_s: float
    """Inputs of jobs that were done in the time that counts, whenever they came."""
    p50_ms: float
    p99_ms: float
    """From submission to end, without rejected jobs; of one that waits at the end its age then, a lower bound."""
    longest_s: float
    """The longest of these times."""
    accuracy_loss_percent: float
    """Mean over finished jobs of how far below the most accurate variant's the accuracy was, in percent of it."""
    epc: float
    """Σ OLTunes' estimate of power over finished jobs: for comparisons only, its unit means nothing."""
    epc_above_base: float
    """The same without its base, and with the time since the submission as latency: waiting counts."""

    @property
    def violations_percent(self) -> float:
        """Of the jobs, those that missed their deadline."""
        return 100.0 * self.late / self.submitted if self.submitted else 0.0

    @property
    def mean_epc(self) -> float:
        """Of a finished job."""
        return self.epc / self.finished if self.finished else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsReport:
    """One run."""

    policy: str
    seed: int
    counted_s: float
    jobs: JobFigures
    utilisation_percent: float
    """SMs on which jobs ran, mean over GPUs and time."""
    utilisation_spread_percent: float
    """Between the most and the least used GPU."""
    energy_kwh: float
    """Of the whole fleet, idle watts included."""
    carbon_g: float | None
    """None where no grid intensity was given."""
    launches: int
    """Containers that had to be started, warm-up included."""
    trainings: int
    """How often the predictor was retrained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What happened in a run, as its loop noted it."""

    requests: Sequence[JobRequest]
    done: Mapping[str, Done]
    rejected: frozenset[str]
    warm_up_s: float
    end_s: float


def judge(course: Course) -> JobFigures:
    """The figures of a course."""
    counted = [one for one in course.requests if one.submitted_s >= course.warm_up_s]
    finished = [
        (one, course.done[one.name]) for one in counted if one.name in course.done
    ]
    sojourns_s = np.array(
        [_sojourn_s(one, course) for one in counted if one.name not in course.rejected]
        or [0.0]
    )
    late = [one for one in counted if _is_late(one, course)]
    inputs = sum(
        each.job.inputs
        for each in course.done.values()
        if each.at_s >= course.warm_up_s
    )
    losses = [_loss_percent(one, done) for one, done in finished]
    return JobFigures(
        submitted=len(counted),
        finished=len(finished),
        rejected=sum(one.name in course.rejected for one in counted),
        late=len(late),
        inputs_per_s=inputs / (course.end_s - course.warm_up_s),
        p50_ms=1000.0 * float(np.percentile(sojourns_s, 50)),
        p99_ms=1000.0 * float(np.percentile(sojourns_s, 99)),
        longest_s=float(sojourns_s.max()),
        accuracy_loss_percent=float(np.mean(losses)) if losses else 0.0,
        epc=float(sum(done.epc for _, done in finished)),
        epc_above_base=float(
            sum((done.epc - BASE_W) * _waited(one, done) for one, done in finished)
        ),
    )


def _waited(request: JobRequest, done: Done) -> float:
    """How many times its run's length a job took since its submission."""
    return (done.at_s - request.submitted_s) / done.ran_s


def _sojourn_s(request: JobRequest, course: Course) -> float:
    done = course.done.get(request.name)
    return (course.end_s if done is None else done.at_s) - request.submitted_s


def _is_late(request: JobRequest, course: Course) -> bool:
    done = course.done.get(request.name)
    if request.name in course.rejected:
        return True
    return (course.end_s if done is None else done.at_s) > request.deadline_s


def _loss_percent(request: JobRequest, done: Done) -> float:
    used = next(
        variant.accuracy
        for variant in request.variants
        if variant.network == done.setting.network
    )
    return 100.0 * (1.0 - used / request.best_accuracy)
