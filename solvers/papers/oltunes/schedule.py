"""OLTunes' scheduler as a pure function: queues and GPUs at one moment in, batches and what stays out.

    for each GPU that may take a batch, the least utilised first (`available`):
        for each job, latency-critical ones first, each queue by urgency (`queues`):
            join the batch if the GPU's type is one of the job's best two, SMs and memory suffice, and affinity is high
        the batch goes when it is full or its oldest job has waited for the window; else its jobs wait for more
        what it leaves of the GPU is filled by raising one job's setting (`auto_tune`)
    adjust the window by the share of latency-critical jobs (`adjusted_ms`)

Source: OLTunes, Algorithms 2 and 3. Changed, each because the printed form cannot run or starves:
* Algorithm 2 looks at the first job of a queue until it fits, for ever if it does not: jobs that do not fit are passed;
* it adds jobs only within the window *after the last batch*, so that a pause longer than the window ends all work, and
  submits what it has at once although the text says that a batch is held open: the window runs from the batch's oldest
  job, and one that would miss its deadline by waiting is not held;
* it calls `feedback` when the deployment succeeded (`if result`); the text means when it failed (`deployment_failed`);
* its largest number of jobs per batch only ever falls; here every round that forms batches gives one back, unless one
  of them fails: then window and number are a step below those of that round (`Batch.limits`), however many failed;
* a job may only use its best two GPU types, so that the others idle while it waits: after the longest window it takes
  any;
* latency-critical jobs always come first, and a job may only stand next to jobs that suit it, so that one may wait for
  ever. A job that waited for `patience_s` comes first of all, whatever its class, the longest wait first, affinity
  unasked, on the first GPU that has room. Where none has, the first one that could hold it once empty takes nothing in
  this round, unless it takes or waits for somebody who has waited for longer. So each of them starts, has a GPU that
  drains for it, or is behind one of them on every GPU; one for which all are too small holds no other up.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from solvers.papers.oltunes.affinity import COMPUTE_FROM, Character, suits
from solvers.papers.oltunes.queues import by_urgency, impatient, put_back
from solvers.types.jobs import (
    FIRST_WINDOW_MS,
    ROUNDING,
    DispatchLimits,
    DispatchRules,
    DispatchState,
    Job,
    JobBatch,
    JobGpu,
    JobSetting,
    PlacedJob,
    Queues,
    Round,
    could_hold,
    enqueue,
    fleet_load,
    without,
)

MIN_MIB = 256.0
"""min_mem: a batch that leaves less is full."""
MIN_PERCENT = 1.0
"""The same of the SMs."""

MIN_MS = FIRST_WINDOW_MS
"""The window begins at its shortest."""


def schedule(
    state: DispatchState,
    gpus: Sequence[JobGpu],
    now_s: float,
    rules: DispatchRules,
) -> Round:
    """One round. The order of GPUs and of jobs changes nothing. O(GPUs · jobs · settings of a job)."""
    moment = _Moment(rules=rules, now_s=now_s, load=fleet_load(gpus, len(state.queues)))
    limits = DispatchLimits(
        window_ms=state.window_ms, max_jobs=min(state.max_jobs, rules.max_jobs)
    )
    loads = [_Load(gpu, limits.max_jobs) for gpu in available(gpus)]
    # Before the queues, whose orders may pass a job over for ever.
    first = impatient(state.queues.jobs, now_s, rules.patience_s)
    for job in first:
        _seat(job, loads)
    waiting = _in_order(without(state.queues, {job.name for job in first}), now_s)
    batches, held = _form_batches(loads, waiting, moment, limits)
    return Round(
        batches=tuple(batches),
        state=_following(state, batches, rules),
        held_until_s=min(held, default=None),
    )


def _following(
    state: DispatchState,
    batches: Sequence[JobBatch],
    rules: DispatchRules,
) -> DispatchState:
    """The state after a round that started these batches."""
    started = {member.job.name for batch in batches for member in batch.members}
    return DispatchState(
        queues=without(state.queues, started),
        window_ms=adjusted_ms(state.window_ms, state.queues.critical_share),
        # `feedback` lowers the limit at a failure: a round that forms batches gives one job back.
        max_jobs=min(rules.max_jobs, state.max_jobs + 1) if batches else state.max_jobs,
    )


def _form_batches(
    loads: Iterable["_Load"],
    waiting: list[Job],
    moment: "_Moment",
    limits: DispatchLimits,
) -> tuple[list[JobBatch], list[float]]:
    """Steps 2 and 3 of Algorithm 2: batches that go now, and until when others are held open."""
    batches: list[JobBatch] = []
    held: list[float] = []
    for load in loads:
        taken = _fill(load, waiting, moment)
        if not load.members:
            continue
        # Members of a batch that is held are taken as well: on the next GPU they would only form another one.
        waiting = [job for job in waiting if job.name not in taken]
        goes_s = _held_until_s(load.members, limits.window_ms)
        if load.is_open and moment.now_s < goes_s - ROUNDING:
            held.append(goes_s)
        else:
            batches.append(load.batch(limits))
    return batches, held


def submitted(state: DispatchState, jobs: Iterable[Job]) -> DispatchState:
    """The state with more jobs in their queues."""
    return replace(state, queues=enqueue(state.queues, jobs))


def deployment_failed(state: DispatchState, batch: JobBatch) -> DispatchState:
    """The state after a batch could not be deployed: its jobs in front, a smaller window, one job less per batch.

    `state`: that before the batch's round, or that after it. "Smaller" is meant of the limits under which the batch was
    formed: they fall from round to round while failures go on, and a second batch of one round takes nothing more.
    """
    formed = batch.limits or DispatchLimits(
        window_ms=state.window_ms, max_jobs=state.max_jobs
    )
    return replace(
        state,
        queues=put_back(state.queues, (member.job for member in batch.members)),
        window_ms=min(state.window_ms, shorter_ms(formed.window_ms)),
        max_jobs=max(1, min(state.max_jobs, formed.max_jobs - 1)),
    )


class _Load:
    """A GPU as its batch forms."""

    def __init__(self, gpu: JobGpu, max_jobs: int) -> None:
        self.gpu = gpu
        self.members: list[PlacedJob] = []
        """In the order in which they were taken."""
        self.room = _room(gpu, ())
        self.is_kept = False
        """Whether it takes nothing, for one that has waited for long."""
        self._max_jobs = max_jobs

    @property
    def is_open(self) -> bool:
        """Whether it may take one more."""
        has_place = len(self.members) + len(self.gpu.residents) < self._max_jobs
        return not self.is_kept and has_place and not _is_full(self.room)

    def could_take(self, job: Job) -> bool:
        """Whether it may take it once its jobs are done."""
        empty = FreeRoom(self.gpu.sm_percent, self.gpu.memory_mib)
        return not _is_full(empty) and could_hold(self.gpu, job)

    def take(self, job: Job, setting: JobSetting) -> None:
        self.members.append(PlacedJob(job, setting))
        self.room = _room(self.gpu, self.members)

    def batch(self, limits: DispatchLimits) -> JobBatch:
        """What it takes, tuned for the room that is left."""
        members, tuned = auto_tune(self.members, self.room)
        return JobBatch(gpu=self.gpu.id, members=members, tuned=tuned, limits=limits)


def _seat(job: Job, loads: Sequence[_Load]) -> None:
    """Put one that has waited for long on the first GPU that has room; else keep the first that could hold it."""
    for load in loads:
        setting = _setting(job, load, None) if load.is_open else None
        if setting is not None:
            load.take(job, setting)
            return
    able = (
        load
        for load in loads
        if not load.is_kept and not load.members and load.could_take(job)
    )
    # One that has members already would not drain, and one that is kept drains for a longer wait.
    kept = next(able, None)
    if kept is not None:
        kept.is_kept = True


def _in_order(queues: Queues, now_s: float) -> list[Job]:
    """The latency-critical, then the throughput-oriented."""
    return [
        *by_urgency(queues.latency_critical, now_s),
        *by_urgency(queues.throughput_oriented, now_s),
    ]


def _fill(load: _Load, waiting: Sequence[Job], moment: "_Moment") -> set[str]:
    """Put those on the GPU that would go there together; their names."""
    taken: set[str] = set()
    for job in waiting:
        if not load.is_open:
            break
        if load.gpu.gpu_type not in job.best_types and not moment.takes_any_type(job):
            continue
        setting = _setting(job, load, moment)
        if setting is not None:
            load.take(job, setting)
            taken.add(job.name)
    return taken


def _setting(job: Job, load: _Load, moment: "_Moment | None") -> JobSetting | None:
    """The job's best setting that fits into the room and suits the batch; `moment` None = affinity is not asked.

    This is `fitForBatch` of Algorithm 3, line 7.
    """
    # Affinity depends on the network alone: a job's many settings of one network ask it once.
    suitable: dict[str, bool] = {}
    for setting in job.settings:
        if setting.gpu_type != load.gpu.gpu_type or not _fits(setting, load.room):
            continue
        if moment is None:
            return setting
        if setting.network not in suitable:
            suitable[setting.network] = moment.suits(
                PlacedJob(job, setting), load.members
            )
        if suitable[setting.network]:
            return setting
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """What holds in this round: who suits whom, and who has waited for how long."""

    rules: DispatchRules
    now_s: float
    load: float

    def takes_any_type(self, job: Job) -> bool:
        # Its two best types may be taken for ever: after W_max, the longest window of Table 4, any type will do.
        return self.now_s - job.queued_s >= min(self.rules.patience_s, MAX_MS / 1000.0)

    def suits(self, new: PlacedJob, members: Sequence[PlacedJob]) -> bool:
        return suits(
            self._character(new),
            [self._character(member) for member in members],
            self.load,
        )

    def _character(self, placed: PlacedJob) -> Character:
        network = placed.setting.network
        return Character(
            # An unknown network counts as just compute-intensive, in the middle between the two kinds.
            self.rules.ratios.get(network, COMPUTE_FROM),
            placed.job.is_high(network),
        )


class FreeRoom(NamedTuple):
    """What is left of a GPU next to a batch."""

    sm_percent: float
    memory_mib: float


def _room(gpu: JobGpu, members: Sequence[PlacedJob]) -> FreeRoom:
    return FreeRoom(
        gpu.free_percent - sum(member.setting.sm_percent for member in members),
        gpu.free_mib - sum(member.setting.memory_mib for member in members),
    )


def _fits(setting: JobSetting, room: FreeRoom) -> bool:
    return (
        setting.sm_percent <= room.sm_percent + ROUNDING
        and setting.memory_mib <= room.memory_mib + ROUNDING
    )


def _is_full(room: FreeRoom) -> bool:
    return room.sm_percent < MIN_PERCENT or room.memory_mib <= MIN_MIB


def _held_until_s(members: Sequence[PlacedJob], window_ms: float) -> float:
    """When the window of the oldest one ends, or, if that is earlier, the last moment for a member's deadline."""
    window_ends_s = min(member.job.queued_s for member in members) + window_ms / 1000.0
    return min(
        window_ends_s,
        *(member.job.deadline_s - member.setting.latency_s for member in members),
    )


MAX_MS = 1000.0
STEP_MS = 10.0
CRITICAL_SHARE = 0.7
"""Default of ρ_lc."""


def adjusted_ms(window_ms: float, critical_share: float | None) -> float:
    """The window of the next round, given the share of latency-critical jobs in this one."""
    # The printed share of empty queues is 0 / 0.
    if critical_share is None:
        return window_ms
    if critical_share > CRITICAL_SHARE:
        return shorter_ms(window_ms)
    # Algorithm 3, lines 13 to 19: few urgent jobs leave time to wait for fuller batches.
    return min(window_ms + STEP_MS, MAX_MS)


def shorter_ms(window_ms: float) -> float:
    """The window after a failed deployment, too: the failed jobs shall go soon."""
    return max(window_ms - STEP_MS, MIN_MS)


FREE_SHARE = 0.8
DONE_SHARE = 0.8
_ROUNDING = 1e-9


def available(gpus: Iterable[JobGpu]) -> list[JobGpu]:
    """GPUs that may take a batch, the least utilised first; the order of `gpus` changes nothing."""
    return sorted(
        (gpu for gpu in gpus if is_available(gpu)),
        key=lambda gpu: (gpu.used_percent, gpu.id),
    )


def is_available(gpu: JobGpu) -> bool:
    """Whether it is empty, mostly free, or soon ready."""
    if gpu.free_percent <= 0.0:
        return False
    if gpu.free_percent >= FREE_SHARE * gpu.sm_percent - _ROUNDING:
        return True
    # "Soon-to-be-ready" in section 3.4.1: a task ended early, or the longest one is more than 80 % done.
    return gpu.has_early_end or all(
        each.done_share >= DONE_SHARE for each in gpu.residents
    )


MIN_GAIN = 1e-9
"""A gain below this part of a latency is rounding."""


def auto_tune(
    members: Sequence[PlacedJob],
    room: FreeRoom,
) -> tuple[tuple[PlacedJob, ...], str | None]:
    """The members, one of them perhaps at a faster setting of the same network; and its name, or None.

    The first in the order (throughput-oriented, then latency-critical, each as given) that gains anything is raised.
    """
    order = sorted(
        # False sorts before true: tuning begins with throughput-oriented tasks (section 3.4.3).
        range(len(members)),
        key=lambda at: members[at].job.is_latency_critical,
    )
    for at in order:
        faster = _faster(members[at], room)
        # One task per batch: "no further tuning is performed on other tasks within the same batch" (section 3.4.3).
        if faster is not None:
            raised = members[at]._replace(setting=faster)
            return (*members[:at], raised, *members[at + 1 :]), raised.job.name
    return tuple(members), None


def _faster(member: PlacedJob, room: FreeRoom) -> JobSetting | None:
    """The fastest setting, at no smaller a batch, for which there is room; None where none is faster."""
    job, now = member
    fitting = (
        one
        for one in job.settings
        if (one.network, one.gpu_type) == (now.network, now.gpu_type)
        # Tuning means a larger batch there; a smaller one would give up throughput for which the setting was chosen.
        and one.batch >= now.batch
        and one.sm_percent <= now.sm_percent + room.sm_percent
        and one.memory_mib <= now.memory_mib + room.memory_mib
        and one.latency_s < now.latency_s * (1.0 - MIN_GAIN)
    )
    return min(
        fitting,
        key=lambda one: (one.latency_s, one.sm_percent, one.batch),
        default=None,
    )
