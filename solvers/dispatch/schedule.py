"""OLTunes' scheduler as a pure function: queues and GPUs at one moment in, batches and what stays out.

    for each GPU that may take a batch, the least utilised first (`gpu_choice`):
        for each job, latency-critical ones first, each queue by urgency (`queues`):
            join the batch if the GPU's type is one of the job's best two, SMs and memory suffice, and affinity is high
        the batch goes when it is full or its oldest job has waited for the window; else its jobs wait for more
        what it leaves of the GPU is filled by raising one job's setting (`auto_tune`)
    adjust the window by the share of latency-critical jobs (`window`)

Source: OLTunes, Algorithms 2 and 3. Changed, each because the printed form cannot run or starves:
* Algorithm 2 looks at the first job of a queue until it fits, for ever if it does not: jobs that do not fit are passed;
* it adds jobs only within the window *after the last batch*, so that a pause longer than the window ends all work, and
  submits what it has at once although the text says that a batch is held open: the window runs from the batch's oldest
  job, and one that would miss its deadline by waiting is not held;
* it calls `feedback` when the deployment succeeded (`if result`); the text means when it failed (`deployment_failed`);
* its largest number of jobs per batch only ever falls; here every round without a failure gives one back;
* a job may only use its best two GPU types, so that the others idle while it waits: after the longest window it takes
  any;
* latency-critical jobs always come first, and a job may only stand beside jobs that suit it, so that one may wait for
  ever. Whoever has waited for `patience_s` comes first of all, whatever its class, the longest wait first, affinity
  unasked, and a GPU that has no room for it yet takes no other: the k-th of them is in one of the next k batches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from solvers.dispatch.affinity import COMPUTE_FROM, Character, suits
from solvers.dispatch.auto_tune import Room, auto_tune
from solvers.dispatch.gpu_choice import available
from solvers.dispatch.job import MOST_JOBS, Batch, GpuView, Job, Placed, Setting, fleet_load
from solvers.dispatch.queues import Queues, by_urgency, enqueue, put_back, without
from solvers.dispatch.window import LEAST_MS, MOST_MS, adjusted_ms, shorter_ms

LEAST_MIB = 256.0
"""min_mem: a batch that leaves less is full."""
LEAST_PERCENT = 1.0
"""The same of the SMs."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchState:
    """What the scheduler remembers from round to round."""

    queues: Queues = field(default_factory=Queues)
    window_ms: float = LEAST_MS
    most_jobs: int = MOST_JOBS


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchRules:
    """What the scheduler knows beside queues and GPUs."""

    ratios: Mapping[str, float] = field(default_factory=dict)
    """Compute to memory by network (equation 1)."""
    patience_s: float = 30.0
    """After so long a job comes first of all."""
    most_jobs: int = MOST_JOBS
    """Of a GPU, and of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round decided."""

    batches: tuple[Batch, ...] = ()
    state: DispatchState
    held_until_s: float | None = None
    """When the first batch that is held open goes at the latest; None = none is held."""


def schedule(state: DispatchState, gpus: Sequence[GpuView], now_s: float, rules: DispatchRules) -> Round:
    """One round. The order of GPUs and of jobs changes nothing. O(GPUs · jobs · settings of a job)."""
    moment = _Moment(rules=rules, now_s=now_s, load=fleet_load(gpus, len(state.queues)))
    waiting = _in_order(state.queues, moment)
    most = min(state.most_jobs, rules.most_jobs)
    batches: list[Batch] = []
    taken: set[str] = set()
    held: list[float] = []
    for gpu in available(gpus):
        left = [job for job in waiting if job.name not in taken]
        if left and moment.is_impatient(left[0]) and _waits_for(gpu, left[0]):
            taken.add(left[0].name)
            continue
        members = _form(gpu, left, most, moment)
        if not members:
            continue
        taken.update(member.job.name for member in members)
        room = _room(gpu, members)
        is_full = len(members) + len(gpu.residents) >= most or _is_full(room)
        goes_s = _held_until_s(members, state.window_ms)
        if is_full or now_s >= goes_s - _ROUNDING:
            tuned, name = auto_tune(members, room)
            batches.append(Batch(gpu=gpu.id, members=tuned, tuned=name))
        else:
            held.append(goes_s)
    started = {member.job.name for batch in batches for member in batch.members}
    following = DispatchState(
        queues=without(state.queues, started),
        window_ms=adjusted_ms(state.window_ms, state.queues.critical_share),
        most_jobs=min(rules.most_jobs, state.most_jobs + 1) if batches else state.most_jobs,
    )
    return Round(batches=tuple(batches), state=following, held_until_s=min(held, default=None))


def submitted(state: DispatchState, jobs: Iterable[Job]) -> DispatchState:
    """The state with more jobs in their queues."""
    return replace(state, queues=enqueue(state.queues, jobs))


def deployment_failed(state: DispatchState, batch: Batch) -> DispatchState:
    """The state after a batch could not be deployed: its jobs in front, a smaller window, one job less per batch."""
    return replace(
        state,
        queues=put_back(state.queues, (member.job for member in batch.members)),
        window_ms=shorter_ms(state.window_ms),
        most_jobs=max(1, state.most_jobs - 1),
    )


def _in_order(queues: Queues, moment: "_Moment") -> list[Job]:
    """Who has waited for too long, then the latency-critical, then the throughput-oriented."""
    impatient = sorted(filter(moment.is_impatient, queues.jobs), key=lambda job: (job.queued_s, job.name))
    others = without(queues, {job.name for job in impatient})
    return [
        *impatient,
        *by_urgency(others.latency_critical, moment.now_s),
        *by_urgency(others.throughput_oriented, moment.now_s),
    ]


def _waits_for(gpu: GpuView, first: Job) -> bool:
    """Whether the GPU must be left alone until its jobs are done, or the first one would never have room there."""
    own = [setting for setting in first.settings if setting.gpu_type == gpu.gpu_type]
    return bool(own) and not any(_fits(setting, _room(gpu, ())) for setting in own)


def _form(gpu: GpuView, waiting: Sequence[Job], most: int, moment: "_Moment") -> list[Placed]:
    """The jobs that would go to the GPU together, in the order in which they were taken."""
    members: list[Placed] = []
    room = _room(gpu, members)
    for job in waiting:
        if len(members) + len(gpu.residents) >= most or _is_full(room):
            break
        if gpu.gpu_type not in job.best_types and not moment.takes_any_type(job):
            continue
        setting = _setting(job, gpu.gpu_type, room, members, None if moment.is_impatient(job) else moment)
        if setting is not None:
            members.append(Placed(job, setting))
            room = _room(gpu, members)
    return members


def _setting(
    job: Job, gpu_type: str, room: Room, members: Sequence[Placed], moment: "_Moment | None"
) -> Setting | None:
    """The job's best setting that fits into the room and suits the batch; `moment` None = affinity is not asked."""
    suitable: dict[str, bool] = {}
    for setting in job.settings:
        if setting.gpu_type != gpu_type or not _fits(setting, room):
            continue
        if moment is None:
            return setting
        if setting.network not in suitable:
            suitable[setting.network] = moment.suits(Placed(job, setting), members)
        if suitable[setting.network]:
            return setting
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """What holds in this round: who suits whom, and who has waited for how long."""

    rules: DispatchRules
    now_s: float
    load: float

    def is_impatient(self, job: Job) -> bool:
        return self.now_s - job.queued_s >= self.rules.patience_s

    def takes_any_type(self, job: Job) -> bool:
        return self.now_s - job.queued_s >= min(self.rules.patience_s, MOST_MS / 1000.0)

    def suits(self, new: Placed, members: Sequence[Placed]) -> bool:
        return suits(self._character(new), [self._character(member) for member in members], self.load)

    def _character(self, placed: Placed) -> Character:
        network = placed.setting.network
        return Character(self.rules.ratios.get(network, COMPUTE_FROM), placed.job.is_high(network))


def _room(gpu: GpuView, members: Sequence[Placed]) -> Room:
    return Room(
        gpu.free_percent - sum(member.setting.sm_percent for member in members),
        gpu.free_mib - sum(member.setting.memory_mib for member in members),
    )


def _fits(setting: Setting, room: Room) -> bool:
    return setting.sm_percent <= room.sm_percent + _ROUNDING and setting.memory_mib <= room.memory_mib + _ROUNDING


def _is_full(room: Room) -> bool:
    return room.sm_percent < LEAST_PERCENT or room.memory_mib <= LEAST_MIB


def _held_until_s(members: Sequence[Placed], window_ms: float) -> float:
    """When the window of the oldest one ends, or, if that is earlier, the last moment for a member's deadline."""
    window_ends_s = min(member.job.queued_s for member in members) + window_ms / 1000.0
    return min(window_ends_s, *(member.job.deadline_s - member.setting.latency_s for member in members))
