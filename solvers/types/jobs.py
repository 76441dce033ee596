"""The nouns of job dispatch: jobs with their settings, GPUs as a dispatcher sees them, and batches for them; and what a
scheduler of jobs offers.

A job is an offline task: a network or one of its variants, a weight, a deadline, and inputs. Times are seconds
of the caller's clock.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from solvers.types.state import GpuId, Variant

MAX_JOBS = 4
"""Jobs of a batch, and of a GPU."""
ROUNDING = 1e-9
"""What rounding may add to sums of SM percents and of memory."""
PATIENCE_S = 30.0
"""After so long a job comes first of all."""
FIRST_WINDOW_MS = 50.0
"""How long a batch is held open at first."""


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
    """Inputs per second of an entire GPU with as many such jobs as it may have."""
    score: float
    """By which settings are ranked; higher is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job that waits, with the settings that were found when it came."""

    name: str
    weight: float
    """λ, 0 to 1: above 0.5 the job is latency-critical, else throughput-oriented."""
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
    """Mean over its settings on these types."""
    failures: int = 0
    """Deployments of it that failed."""

    @property
    def is_latency_critical(self) -> bool:
        """Its class; λ = 0.5 is throughput-oriented."""
        return self.weight > 0.5

    def is_high(self, network: str) -> bool:
        """Whether that network is the high variant of its family; one that has no variants is a low one."""
        # Ties by name, so that exactly one variant is the high one whatever their order.
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
    """Share of its predicted time that has passed, 0 to 1 or more."""
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
        # fsum, so that the order in which residents were read changes nothing.
        return math.fsum(each.sm_percent for each in self.residents)

    @property
    def free_percent(self) -> float:
        """SMs that are not held."""
        return self.sm_percent - self.used_percent

    @property
    def free_mib(self) -> float:
        """Memory that is not held."""
        return self.memory_mib - math.fsum(each.memory_mib for each in self.residents)


class DispatchLimits(NamedTuple):
    """Between what a scheduler forms the batches of one round."""

    window_ms: float
    max_jobs: int
    """The maximum of jobs on a GPU, and in a batch."""


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
    """The one whose setting was raised to fill what was left; None = no setting was."""
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
    # Without GPUs no job can run: the fleet counts as full.
    if not gpus:
        return 1.0
    used = sum(gpu.used_percent for gpu in gpus) / (100.0 * len(gpus))
    return min(1.0, used + waiting / (MAX_JOBS * len(gpus)))


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
        """Share of the waiting jobs that are latency-critical; None where none waits."""
        return len(self.latency_critical) / len(self) if len(self) else None


def enqueue(queues: Queues, jobs: Iterable[Job]) -> Queues:
    """The queues with more jobs, each in that of its class."""
    # Gone through twice, which an iterator does not allow.
    new = tuple(jobs)
    critical = tuple(job for job in new if job.is_latency_critical)
    others = tuple(job for job in new if not job.is_latency_critical)
    return Queues(
        latency_critical=queues.latency_critical + critical,
        throughput_oriented=queues.throughput_oriented + others,
    )


def without(queues: Queues, names: Collection[str]) -> Queues:
    """The queues without the jobs of these names."""
    critical, others = (
        tuple(job for job in jobs if job.name not in names)
        for jobs in (queues.latency_critical, queues.throughput_oriented)
    )
    return Queues(latency_critical=critical, throughput_oriented=others)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchState:
    """What the scheduler remembers from round to round."""

    queues: Queues = field(default_factory=Queues)
    window_ms: float = FIRST_WINDOW_MS
    max_jobs: int = MAX_JOBS


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchRules:
    """What the scheduler knows besides queues and GPUs."""

    ratios: Mapping[str, float] = field(default_factory=dict)
    """Time in compute-bound over time in memory-bound kernels, by network."""
    patience_s: float = PATIENCE_S
    """After so long a job comes first of all."""
    max_jobs: int = MAX_JOBS
    """The maximum of jobs on a GPU, and in a batch."""
    prices_usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    """By GPU type; a scheduler that asks for prices uses no type without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round decided."""

    batches: tuple[JobBatch, ...] = ()
    state: DispatchState
    held_until_s: float | None = None
    """When the first batch that is held open goes at the latest; None = none is held."""


class JobOption(NamedTuple):
    """One operating point that a job might use, with what is predicted there, alone on the GPU."""

    network: str
    accuracy: float
    gpu_type: str
    sm_percent: float
    batch: int
    clock_mhz: float
    memory_mib: float
    iteration_ms: float
    """Time of one full batch."""


class PowerFacts(NamedTuple):
    """What the estimate of power needs of a GPU type."""

    memory_mib: float
    tdp_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDemand:
    """What is wanted of a job."""

    weight: float
    """λ."""
    inputs: int
    left_s: float
    """Until its deadline; infinite = it has none."""
    load: float
    """ρ: how full the fleet is, 0 to 1."""


class JobScheduler(Protocol):
    """What a scheduler of jobs offers; all of it is a function of its arguments alone."""

    def schedule(
        self,
        state: DispatchState,
        gpus: Sequence[JobGpu],
        now_s: float,
        rules: DispatchRules,
    ) -> Round:
        """One round. The order of GPUs and of jobs changes nothing."""

    def deployment_failed(self, state: DispatchState, batch: JobBatch) -> DispatchState:
        """The state, before or after the batch's round, once the batch could not be deployed."""

    def tune(
        self,
        options: Sequence[JobOption],
        boards: Mapping[str, PowerFacts],
        demand: JobDemand,
    ) -> tuple[JobSetting, ...]:
        """The settings of a job, the best first; the order of options changes nothing."""

    def best_types(self, settings: Sequence[JobSetting]) -> tuple[str, ...]:
        """The GPU types that suit a job with these settings, the best first."""

    def mean_latency_s(
        self, settings: Sequence[JobSetting], types: Sequence[str]
    ) -> float:
        """By which its urgency is judged, on these GPU types, at least one of which has a setting."""

    def ratios_of(
        self, measured: Mapping[str, float], sensitivities: Mapping[str, float]
    ) -> Mapping[str, float]:
        """Compute to memory by network: the measured ones, and all others from their sensitivity."""
