"""Store: what the control loop needs to remember, as a protocol; Postgres and memory keep it alike.

Every method is one transaction. No method calls a solver or the network inside it. One stateful test runs against
both implementations (`tests/integration/test_store.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from agents.base.protocol import NodeCommand, Observation
from app.store.degradation import Degradation
from app.store.launch_book import AvoidedGpu
from app.store.node_book import AgentStatus
from app.store.plan_states import PlanState
from app.store.reportable import Ingested
from solvers.forecast.choose_technique import TechniqueChoice
from solvers.predict.data.samples import Group, NeighbourSet
from solvers.predict.learn.online import FitState
from solvers.types.llm import LlmNetwork, LlmPoints, ServedModels
from solvers.types.outcome import TICK, PlanReport, Stability, Violation
from solvers.types.parameters import Setting
from solvers.types.plan import BoundPlan, Plan
from solvers.types.problem import Objective, OperatingPoints, Problem
from solvers.types.state import ClusterState, Demand, GpuId, Json, Mode, Service
from solvers.types.survival import LossKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGroup:
    """Services that a policy of their own decides on, with GPUs of their own."""

    name: str
    policy: str
    projects: tuple[str, ...] = ()
    """A service must belong to one of these; empty: to any."""
    labels: tuple[tuple[str, str], ...] = ()
    """With all of these."""
    mode: Mode = Mode.AUTO
    """How far the loop may go with its services; the more cautious of this, the cluster's and the service's counts."""

    def has(self, service: Service) -> bool:
        """Whether the service is one of those that it is for."""
        # Labels narrow a group down, projects widen it: all labels must match, and any one project.
        is_chosen = not self.projects or service.project in self.projects
        return is_chosen and set(self.labels) <= set(service.labels)

    @property
    def memory_key(self) -> str:
        """Under what its policy's memory is kept: no policy's name has a colon."""
        # With the policy's name: another policy could not read what this one wrote down.
        return f"{self.name}:{self.policy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """What the operator wants of the loop; a versioned row, recorded in each plan."""

    version: int = 1
    policy: str = "joint"
    parameters: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)
    """That the operator set, by policy and name."""
    mode: Mode = Mode.AUTO
    paused: bool = False
    period_s: float = 5.0
    objective: Objective = "min_cost"
    # Prices are 0 until somebody states them: a plan must not trade latency for a cost that is not paid.
    energy_price_usd_per_kwh: float = 0.0
    carbon_price_usd_per_t: float = 0.0
    """A tonne of carbon dioxide costs this; with the next field it raises the energy price (`make_problem`)."""
    carbon_g_per_kwh: tuple[float, ...] = ()
    """That the grid emits: one figure, or one per hour of the day in UTC; empty = not known."""
    max_replicas_per_gpu: int = 4
    migration_cost_usd_per_hour: float = 0.0
    target_attainment: float = 0.0
    """At least this share of a service's requests is to be in time, or its SLO's percentile; 1 = no budget is spent."""
    survive: LossKind = "node"
    survive_share: float = 0.5
    """The loss after which this share is left of services that say nothing, where that takes no replica more."""
    stale_after_s: float = 15.0
    """Older telemetry makes the loop hold."""
    # The defaults are the solvers' own, so that a plan from files equals the one of a tick.
    solve_seconds: float = TICK.seconds
    solve_work: float = TICK.work
    seed: int = TICK.seed
    window_s: float = 1.0
    """Readings of all nodes are summed over windows of this length; at least the agents' reporting period."""
    fit_quantile: float = 0.9
    """Execution times are planned at this quantile of what they may be; 0.5 = as stated and learned."""
    learning: bool = True
    """Whether served latencies correct the operating points that are planned with."""
    start_price: float = TICK.stability.start_price
    """What a launch counts for where plans serve alike, as a share of what a running replica costs on average."""
    min_dwell_s: float = TICK.stability.min_dwell_s
    """Seconds for which an arrangement stays before it may be rearranged to save cost; demand is served at once."""
    governor: str | None = None
    """Who turns clocks and batches on the nodes within the plan, by `solvers.governors`; None = no governor."""
    power_budget_w: float | None = None
    """That all used GPUs together may draw, idle watts included; None = no such limit."""
    groups: tuple[PolicyGroup, ...] = ()
    """In the order in which they are decided; services of none follow `policy`, last."""
    approve: Literal["all", "services"] = "all"
    """What waits for a person in mode approve."""
    approve_switch: bool = False
    """Whether the first plan of another policy than the target's waits for a person, whatever the mode."""

    def group_of(self, service: Service) -> PolicyGroup | None:
        """The first group that the service is of; None: it follows the cluster's policy."""
        # The order of groups is the operator's: the first match wins.
        return next((group for group in self.groups if group.has(service)), None)

    @property
    def holds(self) -> bool:
        """Whether the operator lets the loop decide nothing."""
        return self.paused or self.mode is Mode.OFF

    @property
    def planner(self) -> str:
        """Who plans, as plans name it: `joint`, or `joint; web: other` with a group called web."""
        names = (f"{group.name}: {group.policy}" for group in self.groups)
        return "; ".join((self.policy, *names))

    @property
    def stability(self) -> Stability:
        """How willing the policy is to rearrange what runs."""
        return Stability(start_price=self.start_price, min_dwell_s=self.min_dwell_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceWindow:
    """All nodes' readings of one service, summed over one window of `PolicySettings.window_s` seconds.

    Windows are aligned to multiples of their length since 1970; a node's reading counts where its own window ends.
    The newest window may still be incomplete.
    """

    service: str
    start: datetime
    window_s: float
    arrivals: int
    served: int
    in_slo: int
    rejected: int
    pending: int = 0
    """Requests without an answer at the end of each reading, and first starts of replicas; above 0: not at rest."""
    # Counts by bucket, not quantiles: counts add up over nodes and windows.
    latency_buckets: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What one replica executed over a stretch of time, by its node's windows that start in it."""

    replica: str
    gpu: str
    service: str
    sm_percent: float
    batch: int
    is_steady: bool
    """Ready in every window, always with this SM percent and batch."""
    batches: int
    requests: int
    execution_ms: float
    """Mean over the batches; 0 without any."""


SERVED = "served"
"""Source of samples that were read off served executions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """One measurement of a network on a GPU type, as it is kept; None = not measured, or not known."""

    network: str
    gpu_type: str
    batch: float
    sm_percent: float
    clock_mhz: float | None = None
    time_quota_percent: float = 100.0
    power_limit_w: float | None = None
    neighbours: NeighbourSet = ()
    latency_ms: float
    """Mean execution time of one whole batch."""
    power_w: float | None = None
    memory_mib: float | None = None
    l2_util_percent: float | None = None
    source: str = ""
    measured_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What planning reckons with of the operating points of one network on one GPU type, besides what they state."""

    group: Group
    health: FitState
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FitHealth:
    """How the operating points in force of one network on one GPU type hold against what is served."""

    group: Group
    now: FitState
    planned: Correction


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan that may wait for a person."""

    plan_id: int
    bound: BoundPlan
    at: datetime
    catalogue_revision: int
    """Approved at any other revision, it would lose."""
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One consistent read of everything that a tick needs."""

    at: datetime
    state: ClusterState
    points: tuple[OperatingPoints, ...]
    target: BoundPlan | None
    settings: PolicySettings
    windows: tuple[ServiceWindow, ...]
    """Recent windows, oldest first: as many as the longest delay of the services looks back, within limits."""
    statuses: tuple[AgentStatus, ...]
    approved: BoundPlan | None = None
    """A plan that a person approved and that is not yet the target."""
    approved_id: int | None = None
    proposal: Proposal | None = None
    """The newest plan that was made and not pushed, where it still could be: `target` and catalogue are the same."""
    memory: "Json" = None
    """What the policy wrote down at the last tick."""
    group_memory: Mapping[str, Json] = field(default_factory=dict)
    """The same of the groups' policies, by group; of those that wrote something down."""
    choices: Mapping[str, TechniqueChoice] = field(default_factory=dict)
    """How services are forecast; the default technique where one is missing. Without scores."""
    latency_sigma: Mapping[Group, tuple[float, ...]] = field(default_factory=dict)
    """Standard deviation of ln(true / stated time) of every row of `points`; all 0 where a group is missing."""
    corrections: tuple[Correction, ...] = ()
    """What was learned of the times of `points`."""
    degradations: tuple[Degradation, ...] = ()
    """What exceeded budgets do: which services are planned for less (`app.loop.budgets`)."""
    avoided: tuple[AvoidedGpu, ...] = ()
    """GPUs on which a service's launches failed again and again, by service and GPU."""
    decided_rps: Mapping[str, float] = field(default_factory=dict)
    """What the newest decision was made for, by service, where plans are not pushed by themselves."""
    late_too_long: frozenset[str] = frozenset()
    """Nodes whose late windows the forecast waits for no longer; set by the loop (`app.loop.observe.HeardNodes`)."""
    flapping: frozenset[str] = frozenset()
    """Nodes that come and go, on which nothing starts where others have room; set by the loop, too."""
    must_renew: bool = False
    """Nodes may hold commands that this store never made: the target is pushed again even if nothing would change."""
    actor: bytes | None = None  # The newest, where the policy asks for one.
    launch_s: Mapping[str, float] = field(default_factory=dict)
    """How long a launch takes by GPU type, where one was seen."""
    llm_networks: Mapping[str, LlmNetwork] = field(default_factory=dict)
    """What is stated of language models, by network."""
    served: ServedModels = field(default_factory=ServedModels)
    llm_points: tuple[LlmPoints, ...] = ()  # Set by the loop, too.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """One decision with everything that led to it."""

    at: datetime
    state: PlanState
    policy_version: int
    catalogue_revision: int
    plan: Plan
    report: PlanReport
    bound: BoundPlan | None
    waits: bool = False
    """For a person: proposals that waited before it are withdrawn."""
    demands: tuple[Demand, ...] = ()
    """The forecast that the plan was made for."""
    problem: Problem | None
    """The input, for explain and replay; None where the tick held before it had one."""
    violations: tuple[Violation, ...] = ()
    reason: str = ""
    """Why it was kept, refused or lost, in words."""
    memory: Mapping[str, Json] = field(default_factory=dict)
    """What policies want to find in the next tick, by their names or a group's `memory_key`.

    Not kept where a push would be refused, too: under another version or leader, or while the loop is paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One line of the audit."""

    at: datetime
    actor: str
    kind: str
    """CamelCase type, e.g. `PlanPushed`, `ServiceCreated`, `LoopHeld`."""
    subject: str
    """What it is about, e.g. `service/chat`, `plan/12`, `node/n1`."""
    reason: str = ""
    plan_id: int | None = None
    request_id: str | None = None
    before: Json = None
    after: Json = None


class Store(Protocol):
    """The loop's memory. Implementations: `memory_store.MemoryStore`, `app.db.postgres_store.PostgresStore`."""

    async def load_snapshot(self, now: datetime) -> Snapshot:
        """Everything for one tick, read in one repeatable-read transaction."""
        ...

    async def record_plan(self, record: PlanRecord) -> int:
        """Write a decision down; returns its plan id."""
        ...

    async def push_target(
        self,
        plan_id: int,
        bound: BoundPlan,
        commands: tuple[NodeCommand, ...],
        at: datetime,
        *,
        line: AuditEvent | None = None,
    ) -> bool:
        """Make the plan the target if its parent still is and the catalogue revision is unchanged.

        Writes the commands that change what their nodes follow, and the audit's `line`, in the same transaction; lost
        plans get a reason and an event. False: the target, the catalogue, the policy or the leader changed, or a person
        paused the loop or approved another plan.
        """
        ...

    async def withdraw_proposals(self, *, keep: int | None, at: datetime) -> None:
        """After a restart: proposals but this one can no longer come into force. Each gets a reason and an event."""
        ...

    async def ingest(
        self,
        observations: tuple[Observation, ...],
        received: datetime,
    ) -> Ingested:
        """Make observations durable; one that came before (same node, boot, sequence) changes nothing.

        Raises InvalidRequest, and keeps none of them, where one has something that can never be written.
        """
        ...

    async def command_for(self, node: str, after_generation: int) -> NodeCommand | None:
        """The newest command for a node if its generation is newer than the one given."""
        ...

    async def has_given(self, wanted: Sequence[NodeCommand]) -> bool:
        """Whether each of these nodes, where it is registered, was last given such a command, its number aside."""
        ...

    async def add_events(self, *lines: AuditEvent) -> None:
        """Append lines to the audit, all or none."""
        ...

    async def note_drained(self, lines: Mapping[str, AuditEvent]) -> None:
        """Append the lines of nodes that are drained, by node, where that was not yet noted of this draining."""
        ...

    async def lose_sight(self, nodes: Sequence[str], at: datetime) -> None:
        """End what goes on at nodes that have fallen silent and are not heard of any more: overuse."""
        ...

    async def load_executions(
        self,
        since: datetime,
        until: datetime,
        gpus: Sequence[GpuId],
    ) -> tuple[Execution, ...]:
        """What every replica of these GPUs executed in windows that start in [since, until), by GPU and replica."""
        ...

    async def load_fit_health(self) -> tuple[FitHealth, ...]:
        """The health of the operating points in force, by network and GPU type; of those that were ever served."""
        ...

    async def save_fit_health(
        self,
        rows: tuple[FitHealth, ...],
        catalogue_revision: int,
    ) -> bool:
        """Keep these in place of those of their groups that were read less far; False: the catalogue changed."""
        ...

    async def add_samples(self, rows: tuple[SampleRow, ...], at: datetime) -> int:
        """Keep measurements; returns how many were not there yet."""
        ...
