"""The nouns of job dispatch: jobs with their settings, GPUs as a dispatcher sees them, and batches for them.

A job is an offline task as OLTunes has it: a network or one of its variants, a weight, a deadline, and inputs. Times
are seconds of the caller's clock.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from solvers.types.state import GpuId, Variant

MAX_JOBS = 4
"""Jobs of a batch, and of a GPU: batch_size_max."""
ROUNDING = 1e-9
"""Of sums of SM percents and of memory."""


class JobSetting(NamedTuple):
    """One way to run a job. Times are predictions."""

    network: str
    """The variant that does it."""
    gpu_type: str
    sm_percent: float
    batch: int
    clock_mhz: float
    memory_mib: float
    latency_s: float
    """From its start until all its inputs are done."""
    gpu_throughput_rps: float
    """Inputs per second of a whole GPU with as many such jobs as it may have."""
    score: float
    """By which settings are ranked; higher is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job that waits, with the settings that were found when it came."""

    name: str
    weight: float
    """OLTunes' λ, 0 to 1: above 0.5 the job is latency-critical, else throughput-oriented."""
    inputs: int
    queued_s: float
    """When it came."""
    deadline_s: float = math.inf
    variants: tuple[Variant, ...] = ()
    settings: tuple[JobSetting, ...]
    """The best first; at least one."""
    best_types: tuple[str, ...]
    """The two GPU types that suit it best, the best first."""
    mean_latency_s: float
    """Of its settings on these types."""
    failures: int = 0
    """Deployments of it that failed."""

    @property
    def is_latency_critical(self) -> bool:
        """Its class. λ = 0.5 is both classes in OLTunes' text; Table 4 calls it throughput-oriented, as here."""
        return self.weight > 0.5

    def is_high(self, network: str) -> bool:
        """Whether that network is the high variant of its family; one that has no variants is a low one."""
        best = max(
            self.variants, key=lambda one: (one.accuracy, one.network), default=None
        )
        return best is not None and len(self.variants) > 1 and network == best.network


class Resident(NamedTuple):
    """A job that runs on a GPU."""

    name: str
    sm_percent: float
    memory_mib: float
    done_share: float
    """Of its predicted time that has passed, 0 to 1 or more."""
    is_latency_critical: bool = False
    network: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGpu:
    """One GPU that takes jobs, as it stands."""

    id: GpuId
    gpu_type: str
    memory_mib: float
    """That jobs may use."""
    sm_percent: float = 100.0
    """The same of its SMs: what replicas leave over."""
    residents: tuple[Resident, ...] = ()
    has_early_end: bool = False
    """Whether a job of its latest batch is done already."""

    @property
    def used_percent(self) -> float:
        """SMs that jobs hold."""
        return math.fsum(each.sm_percent for each in self.residents)

    @property
    def free_percent(self) -> float:
        """SMs that nobody holds."""
        return self.sm_percent - self.used_percent

    @property
    def free_mib(self) -> float:
        """Memory that nobody holds."""
        return self.memory_mib - math.fsum(each.memory_mib for each in self.residents)


class DispatchLimits(NamedTuple):
    """Between what OLTunes' scheduler forms the batches of one round."""

    window_ms: float
    max_jobs: int
    """Of a GPU, and of a batch."""


class PlacedJob(NamedTuple):
    """A job with the setting at which it shall run."""

    job: Job
    setting: JobSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBatch:
    """Jobs that start together on one GPU."""

    gpu: GpuId
    members: tuple[PlacedJob, ...]
    tuned: str | None = None
    """The one whose setting was raised to fill what was left; None = nobody's was."""
    limits: DispatchLimits | None = None
    """Under which it was formed; None = its dispatcher has none."""


def failed(job: Job) -> Job:
    """The job after a deployment of it failed."""
    return replace(job, failures=job.failures + 1)


def could_hold(gpu: JobGpu, job: Job) -> bool:
    """Whether some setting of the job fits the GPU once no other job runs there."""
    return any(
        setting.gpu_type == gpu.gpu_type
        and setting.sm_percent <= gpu.sm_percent + ROUNDING
        and setting.memory_mib <= gpu.memory_mib + ROUNDING
        for setting in job.settings
    )


def fleet_load(gpus: Sequence[JobGpu], waiting: int) -> float:
    """How full a fleet is, 0 to 1: SMs that jobs hold, and jobs that wait over those that it may have."""
    if not gpus:
        return 1.0
    used = sum(gpu.used_percent for gpu in gpus) / (100.0 * len(gpus))
    return min(1.0, used + waiting / (MAX_JOBS * len(gpus)))
