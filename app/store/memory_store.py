"""The Store in dictionaries: for simulations, and as the reference that the PostgreSQL store is tested against."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from agents.base.protocol import Ack, NodeCommand, Observation
from app.base.errors import NotFound
from app.store import plan_rules
from app.store.launch_book import LaunchBook
from app.store.launch_times import LaunchTimes
from app.store.node_book import NodeBook
from app.store.observation_book import ObservationBook
from app.store.plan_states import UNDECIDED
from app.store.reportable import (
    Admitted,
    Ingested,
    Places,
    Reportable,
    add_counts,
    admit,
    dropped_in,
    places_under,
)
from app.store.store import (
    AuditEvent,
    Execution,
    FitHealth,
    PlanRecord,
    PolicySettings,
    SampleRow,
    Snapshot,
)
from app.store.task_book import TaskBook
from app.store.trained_actors import fleet_fingerprint, wants_actor
from app.store.windows import placed_start_s, snapshot_numbers
from solvers.forecast.choose_technique import TechniqueChoice
from solvers.predict.data.samples import Group
from solvers.types.llm import LlmNetwork
from solvers.types.plan import BoundPlan
from solvers.types.problem import OperatingPoints
from solvers.types.state import (
    ClusterState,
    Gpu,
    GpuId,
    GpuType,
    Json,
    Node,
    Service,
    Task,
)

EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(slots=True, kw_only=True)
class MemoryStore:
    """All that PostgreSQL would keep. Change the inventory through its methods: they move the catalogue revision."""

    settings: PolicySettings = field(default_factory=PolicySettings)
    plans: dict[int, PlanRecord] = field(default_factory=dict)
    events: list[AuditEvent] = field(default_factory=list)
    pushed: list[tuple[datetime, BoundPlan]] = field(default_factory=list)
    """Every target with the time from which it was in force."""
    acknowledgements: dict[tuple[str, int], Ack] = field(default_factory=dict)
    choices: dict[str, TechniqueChoice] = field(default_factory=dict)
    """How services are forecast."""
    max_plans: int | None = None
    """The number of plans kept with what they were made from, the newest; None = all. `pushed` keeps every target."""
    tasks: TaskBook = field(default_factory=TaskBook)
    samples: dict[SampleRow, datetime] = field(default_factory=dict)
    """Measurements, and when each came in."""
    actors: dict[str, bytes] = field(default_factory=dict)
    """Trained actors for policies that need one, by the fleet's fingerprint."""
    llm_networks: dict[str, LlmNetwork] = field(default_factory=dict)
    """The `config.json` of networks that state one."""
    on_wake: Callable[[], None] = lambda: None
    """Called where PostgreSQL would notify the loop."""
    _newest_plan_id: int = 0
    _revision: int = 1
    _gpu_types: dict[str, GpuType] = field(default_factory=dict)
    _nodes: NodeBook = field(default_factory=NodeBook)
    _launches: LaunchBook = field(default_factory=LaunchBook)
    _launch_times: LaunchTimes = field(default_factory=LaunchTimes)
    _services: dict[str, Service] = field(default_factory=dict)
    _points: dict[tuple[str, str], OperatingPoints] = field(default_factory=dict)
    _memory: dict[str, Json] = field(default_factory=dict)
    _observations: ObservationBook = field(default_factory=ObservationBook)
    _target: BoundPlan | None = None
    _places: Places = field(default_factory=dict)
    _latency_sigma: dict[Group, tuple[float, ...]] = field(default_factory=dict)
    _fit_health: dict[Group, FitHealth] = field(default_factory=dict)

    def put_gpu_types(self, gpu_types: Iterable[GpuType]) -> None:
        """Add or replace GPU types; how many there are is counted from the GPUs, so `count` is not kept."""
        self._gpu_types |= {each.name: replace(each, count=None) for each in gpu_types}
        self._revise()

    def put_node(
        self, node: Node, gpus: Iterable[Gpu], *, at: datetime = EPOCH
    ) -> None:
        """Add or replace a node with all its GPUs."""
        self._nodes.put(node, gpus, at=at)
        self._revise()

    def put_services(self, services: Iterable[Service]) -> None:
        """Add or replace services."""
        self._services |= {service.name: service for service in services}
        self._revise()

    def put_tasks(self, tasks: Iterable[Task], *, at: datetime) -> None:
        """Submit tasks; their deadlines count from then. Raises Conflict for a name that is taken."""
        self.tasks.submit(tasks, at)
        self.on_wake()

    def delete_service(self, name: str) -> None:
        """Remove a service. Raises NotFound."""
        if self._services.pop(name, None) is None:
            raise NotFound(f"no service is called {name!r}")
        self._revise()

    def put_points(
        self, points: Iterable[OperatingPoints], *, latency_sigma: float = 0.0
    ) -> None:
        """Add or replace operating points by (network, GPU type), all with this uncertainty of their times."""
        for entry in points:
            group = Group(entry.network, entry.gpu_type)
            self._points[group] = entry
            self._latency_sigma[group] = (latency_sigma,) * len(entry.rows)
            # What was learned corrected other points; it says nothing about the new ones.
            self._fit_health.pop(group, None)
        self._revise()

    def approve(self, plan_id: int) -> None:
        """A person says yes to a proposed plan. Raises NotFound, Conflict."""
        proposed = [key for key in self.plans if self.plans[key].state == "proposed"]
        facts = plan_rules.ApprovalFacts(
            now=self._basis(),
            settings=self.settings,
            waiting=max((key for key in proposed if key != plan_id), default=None),
        )
        plan = plan_rules.judged_plan(self.plans, plan_id)
        why_not = plan_rules.why_not_approved(plan, facts)
        plan_rules.judge(self.plans, plan_id, "approved", why_not)
        self.on_wake()

    def reject(self, plan_id: int) -> None:
        """A person says no to a proposed or approved plan. Raises NotFound, Conflict."""
        plan = plan_rules.judged_plan(self.plans, plan_id)
        why_not = plan_rules.why_not_rejected(plan)
        plan_rules.judge(self.plans, plan_id, "rejected", why_not)
        self.on_wake()

    async def load_snapshot(self, now: datetime) -> Snapshot:
        """Everything for one tick."""
        window_s = self.settings.window_s
        numbers = snapshot_numbers(now.timestamp(), window_s, self._services.values())
        approved_id = plan_rules.newest_id(self.plans, "approved")
        state = self._state(now)
        unpushed = plan_rules.unpushed(self.settings, state.services)
        return Snapshot(
            at=now,
            state=state,
            points=tuple(self._points[key] for key in sorted(self._points)),
            target=self._target,
            settings=self.settings,
            windows=self._observations.load_windows(numbers, window_s),
            decided_rps=self._observations.decided_rps(unpushed),
            statuses=self._nodes.statuses(now, self._basis().generation),
            approved=None if approved_id is None else self.plans[approved_id].bound,
            approved_id=approved_id,
            proposal=plan_rules.newest_fresh(self.plans, "proposed", self._basis()),
            memory=self._memory.get(self.settings.policy),
            group_memory={
                group.name: self._memory[group.memory_key]
                for group in self.settings.groups
                if self._memory.get(group.memory_key) is not None
            },
            latency_sigma=dict(self._latency_sigma),
            choices=dict(self.choices),
            avoided=self._launches.avoided(now),
            launch_s=self._launch_times.by_type(),
            llm_networks=dict(self.llm_networks),
            served=self._observations.load_served(
                self._target, now, self._launch_times.of_models(state.services)
            ),
            corrections=tuple(
                self._fit_health[group].planned for group in sorted(self._fit_health)
            ),
            actor=self.actors.get(fleet_fingerprint(state))
            if wants_actor(self.settings)
            else None,
        )

    def _basis(self) -> plan_rules.PlanBasis:
        """What a plan of now is made from."""
        return plan_rules.PlanBasis(
            generation=self._target.generation if self._target else 0,
            catalogue_revision=self._revision,
            policy_version=self.settings.version,
        )

    async def record_plan(self, record: PlanRecord) -> int:
        """Write a decision down; returns its plan id."""
        # Counted apart from the number of plans, since old plans are forgotten.
        self._newest_plan_id += 1
        if record.waits:
            plan_rules.move_all(self.plans, "proposed", into="withdrawn")
        self.plans[self._newest_plan_id] = record
        self._observations.plan_for(record.demands, self._services)
        if record.policy_version == self.settings.version and not self.settings.holds:
            self._memory.update(record.memory)
        if self.max_plans is not None and len(self.plans) > self.max_plans:
            plan_rules.forget_oldest(self.plans)
        return self._newest_plan_id

    async def withdraw_proposals(self, *, keep: int | None, at: datetime) -> None:
        """After a restart: proposals but this one can no longer come into force."""
        for plan_id in [key for key in self.plans if key != keep]:
            if self.plans[plan_id].state == "proposed":
                self._end(plan_id, "withdrawn", plan_rules.RESTARTED, at)

    def _end(
        self, plan_id: int, state: plan_rules.EndedState, why: str, at: datetime
    ) -> None:
        self.events.append(plan_rules.end(self.plans, plan_id, state, why, at))

    async def push_target(
        self,
        plan_id: int,
        bound: BoundPlan,
        commands: tuple[NodeCommand, ...],
        at: datetime,
        *,
        line: AuditEvent | None = None,
    ) -> bool:
        """Make the plan the target if its parent still is and the catalogue revision is unchanged."""
        record = plan_rules.plan_of(self.plans, plan_id)
        if record.state not in UNDECIDED:
            return False
        if self.settings.holds:
            # What a person approved waits until the loop may go on.
            if record.state == "proposed":
                self._end(plan_id, "lost", plan_rules.HELD, at)
            return False
        made_from = plan_rules.PlanBasis(
            generation=bound.parent,
            catalogue_revision=record.catalogue_revision,
            policy_version=record.policy_version,
        )
        now = self._basis()
        why = plan_rules.why_lost(
            bound,
            made_from,
            now,
            is_approved=record.state == "approved",
            one_is_approved=plan_rules.newest_fresh(self.plans, "approved", now)
            is not None,
        )
        if why is not None:
            self._end(plan_id, "lost", why, at)
            return False
        # One target at a time: all others were made from what is no longer in force.
        plan_rules.move_all(self.plans, "target", into="superseded")
        for key in [key for key in self.plans if key != plan_id]:
            if self.plans[key].state in UNDECIDED:
                self._end(key, "lost", plan_rules.overtaken_by(plan_id), at)
        self.plans[plan_id] = replace(record, state="target", bound=bound)
        self._target = bound
        self._places = places_under(self._places, bound, at)
        self.pushed.append((at, bound))
        self.tasks.place(bound)
        self._nodes.give(commands)
        if line is not None:
            self.events.append(line)
        return True

    async def ingest(
        self, observations: tuple[Observation, ...], received: datetime
    ) -> Ingested:
        """Keep observations; one that came before (same node, boot, sequence) changes nothing."""
        known = self._nodes.names
        unknown = sorted(
            {entry.node for entry in observations if entry.node not in known}
        )
        acknowledged: dict[tuple[str, str], int] = {}
        taken: list[Admitted] = []
        for observation in sorted(
            observations, key=lambda entry: (entry.node, entry.boot, entry.sequence)
        ):
            if observation.node not in known:
                continue
            # Also of a repeated report the agent is heard: only its content counts once.
            self._nodes.hear(observation.node, received)
            if self._observations.receive(observation):
                taken.append(self._take(observation, received))
            boot = (observation.node, observation.boot)
            acknowledged[boot] = self._observations.newest_sequence(*boot)
        return Ingested(
            acknowledged=acknowledged,
            unknown_nodes=tuple(unknown),
            dropped=dropped_in(taken),
        )

    async def command_for(self, node: str, after_generation: int) -> NodeCommand | None:
        """The newest command for a node if its generation is newer than the one given."""
        command = self._nodes.command_of(node)
        return command if command and command.generation > after_generation else None

    async def has_given(self, wanted: Sequence[NodeCommand]) -> bool:
        """Whether each of these nodes, where it is registered, was last given such a command, its number aside."""
        return all(map(self._nodes.has_given, wanted))

    async def add_events(self, *lines: AuditEvent) -> None:
        """Append lines to the audit, all or none."""
        self.events.extend(lines)

    async def note_drained(self, lines: Mapping[str, AuditEvent]) -> None:
        """Append the lines of nodes that are drained, where that was not yet noted."""
        self.events.extend(lines[node] for node in self._nodes.note_drained(lines))

    async def lose_sight(self, nodes: Sequence[str], at: datetime) -> None:
        """Nothing: what replicas use is not kept here."""

    async def load_executions(
        self, since: datetime, until: datetime, gpus: Sequence[GpuId]
    ) -> tuple[Execution, ...]:
        """What every replica of these GPUs executed in windows that start in [since, until), by GPU and replica."""
        return self._observations.load_executions(
            since.timestamp(), until.timestamp(), set(gpus)
        )

    async def load_fit_health(self) -> tuple[FitHealth, ...]:
        """The health of the operating points in force, by network and GPU type; of those that were ever served."""
        return tuple(self._fit_health[group] for group in sorted(self._fit_health))

    async def save_fit_health(
        self, rows: tuple[FitHealth, ...], catalogue_revision: int
    ) -> bool:
        """Keep these, in place of those of the same groups. False, and nothing kept: the catalogue changed."""
        if catalogue_revision != self._revision:
            return False
        for row in rows:
            known = self._fit_health.get(row.group)
            # The one that has read further wins: two processes may learn at the same time.
            if row.group in self._points and (
                known is None or known.now.seen_until_s < row.now.seen_until_s
            ):
                self._fit_health[row.group] = row
        return True

    async def add_samples(self, rows: tuple[SampleRow, ...], at: datetime) -> int:
        """Keep measurements; returns how many were not there yet."""
        before = len(self.samples)
        # The row itself is the key, as the unique index over all its columns is in PostgreSQL.
        for row in rows:
            self.samples.setdefault(row, at)
        return len(self.samples) - before

    def _revise(self) -> None:
        self._revision += 1
        self.on_wake()

    def _state(self, now: datetime) -> ClusterState:
        return ClusterState(
            gpu_types=tuple(self._gpu_types[name] for name in sorted(self._gpu_types)),
            nodes=self._nodes.nodes(now),
            gpus=self._nodes.gpus(),
            services=tuple(self._services[name] for name in sorted(self._services)),
            tasks=self.tasks.unfinished(now),
            catalogue_revision=self._revision,
        )

    def _take(self, observation: Observation, received: datetime) -> Admitted:
        known = Reportable(
            services=self._services, gpus=self._nodes.gpus_by_id, places=self._places
        )
        admitted = admit(observation, known, received)
        observation = admitted.observation
        start_s = placed_start_s(observation, received.timestamp())
        end_s = start_s + observation.window_s
        if self._nodes.take(observation, end_s):
            # A GPU that fails or returns changes the catalogue: plans made before must lose.
            self._revise()
        if self._observations.count(
            observation,
            start_s=start_s,
            window_s=self.settings.window_s,
            received_s=received.timestamp(),
        ):
            self.on_wake()
        acks = [((observation.node, ack.generation), ack) for ack in observation.acks]
        made = [(key, ack) for key, ack in acks if self._nodes.had(*key)]
        self.acknowledgements |= dict(made)
        self.tasks.take(observation, datetime.fromtimestamp(end_s, UTC), admitted.held)
        self._launches.take(observation, received)
        self._launch_times.take(observation, self._nodes.gpus_by_id)
        dropped = add_counts(admitted.dropped, {"acks": len(acks) - len(made)})
        return replace(admitted, dropped=dropped)
