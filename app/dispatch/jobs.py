"""Jobs of the dispatcher: which tasks they are, and with which settings they queue.

Who is dispatched: offline tasks whose policy, that of their project's group or the cluster's, dispatches jobs. A job's
settings are found when it comes, from the operating points in force and the GPU types that are there, and again when
these change or its team changes what it wants.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from app.dispatch.check import Refusals
from app.dispatch.foresight import JobForesight
from app.loop.make_problem import PlannedPoints
from app.store.store import PolicySettings, Snapshot
from solvers.policies.registry import dispatches_jobs, scheduler_of
from solvers.types.jobs import (
    DispatchState,
    Job,
    JobDemand,
    JobGpu,
    JobOption,
    JobScheduler,
    JobSetting,
    PowerFacts,
    Queues,
    enqueue,
    fleet_load,
)
from solvers.types.problem import OperatingPoints
from solvers.types.state import GpuType, Task, Variant

MAX_PER_GPU = 3
"""Jobs of a GPU: what `solvers.backfill` lets stand there at the next tick."""
MAX_WAITING = 256
"""Jobs that one round looks at, of those that some GPU type can run: who waits longest, and whom the checker refuses
everywhere last of all."""
SOLE = 1.0
"""Accuracy of a network without variants: compared with nothing."""


@dataclass(slots=True, kw_only=True)
class DispatchMemory:
    """What the dispatcher remembers between rounds; a new leader begins without."""

    state: DispatchState = field(
        default_factory=lambda: DispatchState(max_jobs=MAX_PER_GPU)
    )
    """Without queues: who waits is in the store."""
    failures: dict[str, int] = field(default_factory=dict)
    """Deployments that failed, by job."""
    planned_points: PlannedPoints = field(default_factory=PlannedPoints)
    foresight: JobForesight = field(default_factory=JobForesight)
    settings: dict[str, "JobSettings"] = field(default_factory=dict)
    """By waiting job, as they were found when it came."""
    made_from: "JobInputs | None" = None
    """What they follow from, but for the job."""
    refusals: Refusals = field(default_factory=Refusals)
    refused: frozenset[str] = frozenset()
    """Waiting jobs that the checker refused on every GPU when they were looked at."""
    recorded: frozenset[str] = frozenset()
    """Those of them of which the audit has a line."""


class JobGpuFacts(NamedTuple):
    """What settings read of a GPU type of the fleet."""

    name: str
    board: PowerFacts
    top_clock_mhz: float


class JobInputs(NamedTuple):
    """What the settings of all jobs, and what the checker says of them, follow from."""

    points: tuple[OperatingPoints, ...]
    types: tuple[JobGpuFacts, ...]
    catalogue_revision: int
    policy_version: int

    def has_settings_of(self, other: "JobInputs | None") -> bool:
        """Whether settings are the same; points are known by identity."""
        return (
            other is not None
            and self.types == other.types
            # The weights of its score are parameters of the policy.
            and self.policy_version == other.policy_version
            and self._has_points_of(other)
        )

    def is_same(self, other: "JobInputs | None") -> bool:
        """Whether settings and refusals are the same."""
        return (
            other is not None and self[2:] == other[2:] and self.has_settings_of(other)
        )

    def _has_points_of(self, other: "JobInputs") -> bool:
        one = self.points
        another = other.points
        return len(one) == len(another) and all(
            a is b for a, b in zip(one, another, strict=True)
        )


class JobFacts(NamedTuple):
    """What settings read of a job."""

    networks: tuple[Variant, ...]
    inputs: int
    weight: float
    deadline_s: float


class JobSettings(NamedTuple):
    """Settings of a job, the best first, and for what job they were found."""

    facts: JobFacts
    settings: tuple[JobSetting, ...]


def variants_of(task: Task) -> tuple[Variant, ...]:
    """Networks that may do the task and are accurate enough."""
    if not task.variants:
        return (Variant(network=task.network, accuracy=SOLE),)
    return tuple(
        variant for variant in task.variants if variant.accuracy >= task.accuracy_floor
    )


def job_scheduler(settings: PolicySettings) -> JobScheduler:
    """That of the policy that dispatches jobs; where several do, the first one's serves all jobs.

    Raises LookupError where none does.
    """
    names = (settings.policy, *(group.policy for group in settings.groups))
    chosen = next((name for name in names if dispatches_jobs(name)), settings.policy)
    return scheduler_of(chosen, settings.parameters.get(chosen, {}))


def queues_of(
    snapshot: Snapshot,
    memory: DispatchMemory,
    waiting: Sequence[Task],
    points: tuple[OperatingPoints, ...],
    views: Sequence[JobGpu],
) -> Queues:
    """The waiting tasks, given with the longest wait first, as jobs: the first MAX_WAITING of those that can run.

    Those that no GPU type of the fleet can run wait outside, and take no other job's place.
    """
    _forget(snapshot, memory, {task.name for task in waiting}, points)
    by_network: dict[str, list[OperatingPoints]] = defaultdict(list)
    for entry in points:
        by_network[entry.network].append(entry)
    # Capped like the queue: jobs that this round does not look at do not count as waiting.
    load = fleet_load(views, min(len(waiting), MAX_WAITING))
    now_s = snapshot.at.timestamp()
    scheduler = job_scheduler(snapshot.settings)
    jobs: list[Job] = []
    # Sorting is stable: within both halves the longest wait stays first.
    for task in sorted(waiting, key=lambda task: task.name in memory.refused):
        if len(jobs) == MAX_WAITING:
            break
        facts = _facts(task, now_s)
        known = memory.settings.get(task.name)
        # Tuning goes through all points of the job's networks; what it follows from seldom changes.
        if known is None or known.facts != facts:
            settings = _tuned(task, memory, by_network, load, scheduler)
            known = memory.settings[task.name] = JobSettings(facts, settings)
        if known.settings:
            jobs.append(_job(task, memory, now_s, scheduler))
    return enqueue(Queues(), jobs)


def note_refused(memory: DispatchMemory, names: Iterable[str]) -> None:
    """Remember whom the checker refuses everywhere; of jobs that were not looked at it stays known."""
    looked_at = {job.name for job in memory.state.queues.jobs}
    memory.refused = (memory.refused - looked_at) | frozenset(names)


def _forget(
    snapshot: Snapshot,
    memory: DispatchMemory,
    known: Set[str],
    points: tuple[OperatingPoints, ...],
) -> None:
    """What is out of date: of jobs that do not wait any more, or of other GPU types, points and rules."""
    made_from = _inputs_of(snapshot, points)
    if not made_from.has_settings_of(memory.made_from) or memory.foresight.catch_up():
        memory.settings = {}
    # Refusals follow from the catalogue, too, which settings do not read.
    if not made_from.is_same(memory.made_from):
        memory.refusals, memory.refused = Refusals(), frozenset()
    memory.made_from = made_from
    memory.settings = {
        name: own for name, own in memory.settings.items() if name in known
    }
    memory.failures = {
        name: count for name, count in memory.failures.items() if name in known
    }
    memory.refused &= known
    memory.recorded &= known


def _inputs_of(snapshot: Snapshot, points: tuple[OperatingPoints, ...]) -> JobInputs:
    types = {gpu_type.name: gpu_type for gpu_type in snapshot.state.gpu_types}
    fleet = {gpu.gpu_type for gpu in snapshot.state.gpus}
    return JobInputs(
        points,
        # The number of GPUs does not matter: a cordon or a new node must not tune every job again.
        tuple(_gpu_facts(types[name]) for name in sorted(fleet & types.keys())),
        snapshot.state.catalogue_revision,
        snapshot.settings.version,
    )


def _gpu_facts(gpu_type: GpuType) -> JobGpuFacts:
    return JobGpuFacts(
        gpu_type.name,
        PowerFacts(gpu_type.memory_mib, gpu_type.power_cap_w),
        gpu_type.clocks_mhz[-1],
    )


def _facts(task: Task, now_s: float) -> JobFacts:
    # Rounded: what is left until a deadline is computed again in every round.
    deadline_s = math.inf if task.due_in_s is None else round(now_s + task.due_in_s, 1)
    return JobFacts(variants_of(task), _inputs(task), task.weight, deadline_s)


def _tuned(
    task: Task,
    memory: DispatchMemory,
    points: Mapping[str, Sequence[OperatingPoints]],
    load: float,
    scheduler: JobScheduler,
) -> tuple[JobSetting, ...]:
    assert memory.made_from is not None
    left_s = math.inf if task.due_in_s is None else task.due_in_s
    demand = JobDemand(
        weight=task.weight, inputs=_inputs(task), left_s=left_s, load=load
    )
    boards = {each.name: each.board for each in memory.made_from.types}
    top_mhz = {each.name: each.top_clock_mhz for each in memory.made_from.types}
    options = memory.foresight.foretold(list(_options(task, points, top_mhz)))
    return scheduler.tune(options, boards, demand)


def _job(
    task: Task, memory: DispatchMemory, now_s: float, scheduler: JobScheduler
) -> Job:
    settings = memory.settings[task.name].settings
    types = scheduler.best_types(settings)
    return Job(
        name=task.name,
        weight=task.weight,
        inputs=_inputs(task),
        queued_s=now_s - task.waiting_s,
        deadline_s=math.inf if task.due_in_s is None else now_s + task.due_in_s,
        variants=task.variants,
        settings=settings,
        best_types=types,
        mean_latency_s=scheduler.mean_latency_s(settings, types),
        failures=memory.failures.get(task.name, 0),
    )


def _inputs(task: Task) -> int:
    """That are still to be done."""
    return max(1, math.ceil(task.batch * (task.iterations - task.done_iterations)))


def _options(
    task: Task,
    points: Mapping[str, Sequence[OperatingPoints]],
    top_mhz: Mapping[str, float],
) -> Iterator[JobOption]:
    """Operating points of its variants at the highest clocks: nothing is dispatched at any other one."""
    rows = (
        (variant, entry, row)
        for variant in variants_of(task)
        for entry in points.get(variant.network, ())
        for row in entry.rows
    )
    for variant, entry, row in rows:
        if row.clock_mhz == top_mhz.get(entry.gpu_type):
            yield JobOption(
                network=entry.network,
                accuracy=variant.accuracy,
                gpu_type=entry.gpu_type,
                sm_percent=row.sm_percent,
                batch=row.batch,
                clock_mhz=row.clock_mhz,
                memory_mib=row.memory_mib,
                iteration_ms=row.solo_ms,
            )
