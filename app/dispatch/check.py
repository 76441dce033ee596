"""Dispatch with the checker: what it refuses keeps no other job from a GPU, and is not proposed there again.

A refused batch is taken apart. Settings that break a rule by themselves next to what stands on the GPU are struck out
there, of whichever job, until something else stands there; where only the jobs of the batch together break one, its
last job leaves the GPU for this round. Then the queue is scheduled again, at most MAX_TRIES times; a GPU whose batch
is refused in the last try takes none in this round.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from solvers.check_residents import task_violations
from solvers.types.jobs import (
    DispatchRules,
    DispatchState,
    Job,
    JobBatch,
    JobGpu,
    JobScheduler,
    JobSetting,
    PlacedJob,
    Queues,
    Round,
    enqueue,
    without,
)
from solvers.types.plan import BoundGpu, BoundTask
from solvers.types.problem import OperatingPoints, Problem
from solvers.types.state import GpuId, Task

MAX_TRIES = 8
"""In one round. What was struck out stays so in the next one, so that the search goes on there."""


class Point(NamedTuple):
    """What the checker judges of a setting."""

    network: str
    gpu_type: str
    sm_percent: float
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFleet:
    """GPUs that may take jobs, as they stand, and by what the checker judges them."""

    gpus: Mapping[GpuId, BoundGpu]
    """Without tasks that are done."""
    tasks: Mapping[str, Task]
    jobs: Set[str]
    """Which of the tasks are dispatched."""
    problem: Problem
    points: tuple[OperatingPoints, ...]

    def bare(self, gpu: GpuId) -> BoundGpu:
        """The GPU without jobs: what stands there however long one waits."""
        own = self.gpus[gpu]
        return replace(
            own, tasks=tuple(task for task in own.tasks if task.name not in self.jobs)
        )

    def refusal(self, gpu: BoundGpu, members: Iterable[PlacedJob]) -> str | None:
        """The first rule that the GPU breaks with these jobs: of the device, or what its replicas promise."""
        # The checker of the tick, of which the scheduler knows nothing: what one proposes the other may refuse.
        found = task_violations(
            self.problem, [self.with_members(gpu, members)], self.points
        )
        return f"{found[0].rule} at {gpu.id}: {found[0].detail}" if found else None

    def with_members(self, gpu: BoundGpu, members: Iterable[PlacedJob]) -> BoundGpu:
        """The GPU with these jobs on it."""
        started = (_bound(member, self.tasks[member.job.name]) for member in members)
        return replace(gpu, tasks=(*gpu.tasks, *started))


@dataclass(slots=True, kw_only=True)
class Refusals:
    """Points that break a rule on a GPU, each with the rule: as long as the same stands there."""

    by_gpu: dict[GpuId, dict[BoundGpu, dict[Point, str]]] = field(default_factory=dict)
    """For the GPU as it stood: without jobs where it is refused even there, else with those that ran."""

    def forget_changed(self, standing: JobFleet) -> None:
        """Drop what was refused of GPUs that have gone or that carry something else now."""
        kept = {}
        # Refusals hold for one state of a GPU, which is the key: in any other state the checker is asked again.
        for gpu in self.by_gpu.keys() & standing.gpus.keys():
            present = (standing.bare(gpu), standing.gpus[gpu])
            own = {
                stood: found
                for stood, found in self.by_gpu[gpu].items()
                if stood in present
            }
            if own:
                kept[gpu] = own
        self.by_gpu = kept

    def for_good(self, gpu: GpuId, standing: JobFleet) -> Mapping[Point, str]:
        """What is refused on the GPU even without jobs."""
        return (
            self.by_gpu[gpu].get(standing.bare(gpu), {}) if gpu in self.by_gpu else {}
        )

    def now(self, gpu: GpuId, standing: JobFleet) -> frozenset[Point]:
        """What is refused on the GPU as it stands."""
        found = self.by_gpu.get(gpu, {}).get(standing.gpus[gpu], {})
        return frozenset((*self.for_good(gpu, standing), *found))

    def strike(self, batch: JobBatch, view: JobGpu, standing: JobFleet) -> bool:
        """Take a refused batch apart; whether a setting that it has is struck out."""
        tried: set[Point] = set()
        for job, setting in _judged(batch, view):
            # Members often have the same settings.
            if point_of(setting) not in tried:
                tried.add(point_of(setting))
                self._try_alone(batch.gpu, PlacedJob(job, setting), standing)
        struck = self.now(batch.gpu, standing)
        # False: no setting is at fault alone, so only taking a job out of the batch will change the answer.
        return any(point_of(member.setting) in struck for member in batch.members)

    def _try_alone(self, gpu: GpuId, member: PlacedJob, standing: JobFleet) -> None:
        full = standing.gpus[gpu]
        bare = standing.bare(gpu)
        reason = standing.refusal(full, [member])
        if reason is None:
            return
        # Refused even without jobs, the point stays refused for as long as the replicas stay.
        alone = reason if full == bare else standing.refusal(bare, [member])
        stood = full if alone is None else bare
        own = self.by_gpu.setdefault(gpu, {}).setdefault(stood, {})
        own[point_of(member.setting)] = alone or reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What the scheduler is asked in this round, with what it is checked by."""

    scheduler: JobScheduler
    state: DispatchState
    views: Sequence[JobGpu]
    now_s: float
    rules: DispatchRules
    standing: JobFleet


def schedule_checked(attempt: Attempt, refusals: Refusals) -> Round:
    """One round of the scheduler in which every batch is accepted by the checker; `refusals` learns of the others."""
    refusals.forget_changed(attempt.standing)
    views = {view.id: view for view in attempt.views}
    left_out: set[tuple[GpuId, str]] = set()
    for _ in range(MAX_TRIES):
        decided = _schedule(attempt, refusals, left_out)
        refused = [
            batch for batch in decided.batches if _is_refused(batch, attempt.standing)
        ]
        for batch in refused:
            if not refusals.strike(batch, views[batch.gpu], attempt.standing):
                # The last one goes: those before it were chosen first.
                left_out.add((batch.gpu, batch.members[-1].job.name))
        if not refused:
            return decided
    return replace(
        decided,
        batches=tuple(batch for batch in decided.batches if batch not in refused),
    )


class RefusedJob(NamedTuple):
    """A job that no GPU takes, and the first rule that keeps it from one."""

    task: str
    rule: str


def refused_jobs(attempt: Attempt, refusals: Refusals) -> tuple[RefusedJob, ...]:
    """Waiting jobs that the checker refuses on every GPU that might take them, each with the first rule; by name."""
    if not refusals.by_gpu:
        return ()
    struck = {
        view.id: refusals.for_good(view.id, attempt.standing) for view in attempt.views
    }
    found = []
    for job in attempt.state.queues.jobs:
        rule = _reason(job, attempt.views, struck)
        if rule is not None:
            found.append(RefusedJob(job.name, rule))
    return tuple(sorted(found))


def job_names(batches: Iterable[JobBatch]) -> tuple[str, ...]:
    """The jobs of some batches, in their order."""
    return tuple(member.job.name for batch in batches for member in batch.members)


def point_of(setting: JobSetting) -> Point:
    """What the checker judges of it."""
    return Point(setting.network, setting.gpu_type, setting.sm_percent, setting.batch)


def _schedule(
    attempt: Attempt, refusals: Refusals, left_out: Set[tuple[GpuId, str]]
) -> Round:
    """GPUs on which nothing is refused first, as if there were no others; then those with the same refusals together.

    (How full the fleet is, by which affinity is judged, is then that of these GPUs.)
    """
    # One group of GPUs after the other: what a group takes is gone from the queue of those after it.
    left = attempt.state.queues
    rounds: list[Round] = []
    for (struck, names), views in _groups(attempt, refusals, left_out).items():
        queues = _allowed(left, struck, names)
        if rounds and not len(queues):
            continue
        rounds.append(
            attempt.scheduler.schedule(
                replace(attempt.state, queues=queues),
                views,
                attempt.now_s,
                attempt.rules,
            )
        )
        left = without(left, set(job_names(rounds[-1].batches)))
    return _joined(rounds, left)


def _joined(rounds: Sequence[Round], left: Queues) -> Round:
    """One round of those that were made for GPUs with different refusals."""
    held = [each.held_until_s for each in rounds if each.held_until_s is not None]
    state = replace(
        # The first round's, whose GPUs refuse nothing, but for what all of them decide together.
        rounds[0].state,
        queues=left,
        max_jobs=max(each.state.max_jobs for each in rounds),
    )
    return Round(
        batches=tuple(batch for each in rounds for batch in each.batches),
        state=state,
        held_until_s=min(held, default=None),
    )


Group = tuple[frozenset[Point], frozenset[str]]
"""What is struck out on some GPUs, and which jobs may not go there in this round."""


def _groups(
    attempt: Attempt, refusals: Refusals, left_out: Set[tuple[GpuId, str]]
) -> Mapping[Group, Sequence[JobGpu]]:
    # This group comes first even where it is empty: its round decides about the state of the dispatcher.
    found: dict[Group, list[JobGpu]] = {(frozenset(), frozenset()): []}
    waited_for = set(_waited_for(attempt, refusals))
    for view in attempt.views:
        if view.id not in waited_for:
            names = frozenset(name for gpu, name in left_out if gpu == view.id)
            found.setdefault(
                (refusals.now(view.id, attempt.standing), names), []
            ).append(view)
    return found


def _waited_for(attempt: Attempt, refusals: Refusals) -> Iterator[GpuId]:
    """GPUs that take none until their jobs are done: one for each job that has waited for too long, that is refused
    next to them, and that would not be without them."""
    views = [
        view for view in attempt.views if view.id in refusals.by_gpu and view.residents
    ]
    now = {view.id: refusals.now(view.id, attempt.standing) for view in views}
    for_good = {
        view.id: refusals.for_good(view.id, attempt.standing).keys() for view in views
    }
    taken: set[GpuId] = set()
    # The job that waited longest chooses first.
    for job in sorted(_late(attempt), key=lambda job: (job.queued_s, job.name)):
        for view in views:
            own = {point_of(setting) for setting in _with_room(job, view)}
            is_refused_now = bool(own) and own <= now[view.id]
            # Waiting helps only where the GPU would take the job once its jobs are done.
            if is_refused_now and not own <= for_good[view.id] and view.id not in taken:
                taken.add(view.id)
                yield view.id
                break


def _late(attempt: Attempt) -> Iterator[Job]:
    for job in attempt.state.queues.jobs:
        if attempt.now_s - job.queued_s >= attempt.rules.patience_s:
            yield job


def _allowed(queues: Queues, struck: Set[Point], names: Set[str]) -> Queues:
    """Who may go to a GPU on which these points are struck out, with the settings that are left."""
    if not struck and not names:
        return queues
    jobs = []
    for job in queues.jobs:
        settings = tuple(
            setting for setting in job.settings if point_of(setting) not in struck
        )
        if settings and job.name not in names:
            jobs.append(replace(job, settings=settings))
    return enqueue(Queues(), jobs)


def _is_refused(batch: JobBatch, standing: JobFleet) -> bool:
    return standing.refusal(standing.gpus[batch.gpu], batch.members) is not None


def _judged(batch: JobBatch, view: JobGpu) -> Iterator[tuple[Job, JobSetting]]:
    """Settings of the batch's jobs for which there is room: for any other one a job may still wait."""
    for member in batch.members:
        for setting in member.job.settings:
            has_room = (
                setting.sm_percent <= view.free_percent
                and setting.memory_mib <= view.free_mib
            )
            if setting == member.setting or (
                setting.gpu_type == view.gpu_type and has_room
            ):
                yield member.job, setting


def _reason(
    job: Job, views: Sequence[JobGpu], struck: Mapping[GpuId, Mapping[Point, str]]
) -> str | None:
    """Why the checker lets no GPU take the job; None where one may, or where none has room for it."""
    reason = None
    for view in views:
        for setting in _with_room(job, view):
            if point_of(setting) not in struck[view.id]:
                return None
            # The first rule is told: a job may be refused by many, and its owner can act on one at a time.
            reason = reason or struck[view.id][point_of(setting)]
    return reason


def _with_room(job: Job, view: JobGpu) -> Iterator[JobSetting]:
    """Settings for which there is room on the GPU once its jobs are done."""
    for setting in job.settings:
        has_room = (
            setting.sm_percent <= view.sm_percent
            and setting.memory_mib <= view.memory_mib
        )
        if setting.gpu_type == view.gpu_type and has_room:
            yield setting


def _bound(member: PlacedJob, task: Task) -> BoundTask:
    """The task at its setting; it goes on from the inputs that were reported as done."""
    setting = member.setting
    # The same inputs in batches of another size; the last batch may be a part of one, so it is rounded up.
    iterations = -(-task.batch * task.iterations // setting.batch)
    done = task.done_iterations * task.batch // setting.batch
    return BoundTask(
        name=task.name,
        kind="offline",
        network=setting.network,
        batch=setting.batch,
        sm_percent=setting.sm_percent,
        memory_mib=setting.memory_mib,
        iterations=iterations,
        # Below the end: by rounding alone a job must not count as done.
        done_iterations=min(done, iterations - 1.0),
    )
