"""Results of simulated runs: what every run says, and what several seeds say together.

A run is one policy with one seed. Its results are counts and sums over the time that counts (warm-up left out); rates,
shares and percentiles follow from them. Nothing here depends on how long the machine took, except `seconds`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from solvers.types.state import TaskKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceResult:
    """One service in one run. arrived + queued_before = served + rejected + queued_after."""

    service: str
    network: str
    slo_ms: float
    percentile: float
    arrived: int
    served: int
    in_slo: int
    rejected: int
    queued_before: int
    queued_after: int
    overdue: int
    """How many of the requests that wait at the end have waited for longer than the SLO's latency."""
    latency_ms: Mapping[str, float | None]
    """Percentiles of the served requests by name: p50, p95, p98, p99; None where nothing was served."""
    worst_step: float | None
    """Least attainment of a step of the series in which requests finished."""
    cost_usd: float
    """Its part of the GPUs' price, divided by SM percent."""
    memory_usd: float
    """In HetSev's accounting: the price of the memory that its replicas occupy."""
    present_s: float
    """Requests in the system, integrated over the time that counts: request-seconds."""
    sojourn_s: float
    """The same by Little's law: the times that requests spent in the system then, summed."""
    itl_ms: float | None = None
    """From one token to the next, of language models, whose `slo_ms` and latencies are until the first token."""
    output_tokens: int = 0
    """Tokens of language models' answers that finished."""

    @property
    def slo(self) -> str:
        """What was promised, in words."""
        promise = f"{100.0 * self.percentile:g} % within {self.slo_ms:g} ms"
        if self.itl_ms is None:
            return promise
        return (
            f"{promise} until the first token, {self.itl_ms:g} ms from one to the next"
        )

    @property
    def judged(self) -> int:
        """Requests by which the service is judged: the finished ones, and those that wait though they are late."""
        return self.served + self.rejected + self.overdue

    @property
    def attainment(self) -> float | None:
        """Share of the judged requests that met the SLO's latency; a rejected one did not. None: there is none."""
        return self.in_slo / self.judged if self.judged else None


TaskPhase: TypeAlias = Literal["waiting", "running", "swapped", "finished"]
"""waiting: nowhere yet, starting, or failed; swapped: out of its GPU's memory, or on its way there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """One task in one run. Times are seconds of the simulated clock, as agents reported them."""

    task: str
    kind: TaskKind
    network: str
    batch: int
    iterations: int
    done_iterations: float
    done_before: float
    """How many of these were done before the time that counts."""
    reference_ms: float
    """What an iteration takes by the catalogue alone on a whole GPU of the fleet's first type that has it."""
    submitted_s: float
    first_ran_s: float | None
    finished_s: float | None
    deadline_s: float | None
    until_s: float
    """Its end, or that of the run."""
    ran_s: float
    """How long it ran."""
    starts: int
    swaps: int
    """How often it was swapped out."""
    course: list[tuple[float, TaskPhase]]
    """When it began to wait, run, ...; from its submission on."""

    @property
    def phase(self) -> TaskPhase:
        """How it stood at the end."""
        return self.course[-1][1]

    @property
    def completion_s(self) -> float | None:
        """From submission to its end."""
        return None if self.finished_s is None else self.finished_s - self.submitted_s

    @property
    def waited_s(self) -> float:
        """How long it did not run since its submission."""
        return max(0.0, self.until_s - self.submitted_s - self.ran_s)

    @property
    def progress(self) -> float:
        """Share of its iterations that are done."""
        return min(1.0, self.done_iterations / self.iterations)

    @property
    def iteration_ms(self) -> float | None:
        """Mean time of an iteration while it ran; None: it did none."""
        return (
            1000.0 * self.ran_s / self.done_iterations if self.done_iterations else None
        )

    @property
    def counted_gpu_hours(self) -> float:
        """Its work in the time that counts, in hours of a GPU that does nothing else."""
        return (self.done_iterations - self.done_before) * self.reference_ms / 3.6e6

    @property
    def is_in_time(self) -> bool | None:
        """Whether it met its deadline; None: it has none, or time is left."""
        # A task that is neither done nor due when the run ends has decided nothing yet.
        if self.deadline_s is None or (
            self.finished_s is None and self.until_s <= self.deadline_s
        ):
            return None
        return self.finished_s is not None and self.finished_s <= self.deadline_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChanges:
    """What the plans changed."""

    plans: int
    """Targets pushed."""
    replicas_started: int
    replicas_stopped: int
    batches_changed: int
    """Replicas that went on with another batch."""
    clocks_changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeries:
    """How a run went, step by step from the end of the warm-up on; every list has one entry per step."""

    step_s: float
    cost_usd_per_hour: list[float]
    power_w: list[float]
    gpus: Mapping[str, list[float]]
    """Used GPUs by type, mean over the step."""
    services: Mapping[str, "ServiceSeries"]
    busy_gpus: list[float] = field(default_factory=list)
    """GPUs on which something ran, mean over the step; 1.5: one all the time and another one half of it."""
    tasks: Mapping[TaskPhase, list[int]] = field(default_factory=dict)
    """Tasks that waited, ran or were swapped out at the step's end; nothing where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSeries:
    """One service, step by step."""

    arrival_rate_rps: list[float]
    planned_rps: list[float]
    """Mean of the targets in force."""
    attainment: list[float | None]
    """Only requests that finished in the step count."""
    p99_ms: list[float | None]
    replicas: list[int]
    """Ready at the end of the step."""
    served_rps: list[float] = field(default_factory=list)
    """Served requests, late ones included, over the step's length."""
    missed: list[int] = field(default_factory=list)
    """Requests that were served late, or rejected, in the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossImpact:
    """One service in the 60 s after a node was lost."""

    service: str
    replicas: int
    """Ready ones before the loss, on all nodes."""
    replicas_lost: int
    """Those of them that were on the node."""
    judged: int
    """Requests that were served or rejected then, lost ones included, or waited at its end though they were late."""
    missed: int
    """Those of them that did not meet the SLO's latency."""
    late: float | None
    """missed / judged; None where nothing was judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLossResult:
    """The loss of a node, judged by the 60 s after it."""

    node: str
    at_s: float
    late: float | None
    """Share of all services' requests; None where nothing was judged."""
    worst: float | None
    """Share of the requests of the service for which it is highest."""
    services: tuple[LossImpact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One policy with one seed."""

    policy: str
    """The run's name; the policy's where it has none of its own."""
    seed: int
    counted_s: float
    services: tuple[ServiceResult, ...]
    cost_usd: float
    """Price of the used GPUs, as planned and in handovers."""
    handover_usd: float
    """The part of it of GPUs that served on though no plan in force used them."""
    tasks_usd: float
    """The part of it of GPUs on which only tasks ran."""
    memory_usd: float
    gpu_hours: Mapping[str, float]
    energy_kwh: float
    """GPUs count while they carried replicas or tasks, with their idle watts."""
    moves: PlanChanges
    holds: int
    """Ticks at which the loop held."""
    refused: int
    """Plans that the checker refused."""
    series: RunSeries
    tasks: tuple[TaskResult, ...] = ()
    """In the order of their submission."""
    node_losses: tuple[NodeLossResult, ...] = ()
    """Those after the warm-up of which the 60 s after them were simulated."""
    carbon_g: float | None = None
    """CO2 equivalent of the energy; None where the scenario has no grid intensity."""
    decision_seconds: tuple[float, ...] = ()
    """Wall seconds of each decision, in order; the only part that differs from machine to machine."""

    @property
    def misses_an_slo(self) -> bool:
        """Whether a service attained less than its SLO's percentile."""
        return any(
            each.attainment is not None and each.attainment < each.percentile
            for each in self.services
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """One policy with one seed that came to nothing."""

    policy: str
    seed: int
    reason: str
    """In words."""

    def __str__(self) -> str:
        return f"{self.policy}, seed {self.seed}: {self.reason}"
