"""Mudi's multiplexing of tasks with services: which GPU, which batch, which shares, and who is swapped out.

    sites       GPUs with one replica, of which each is tuned; GPUs on which tasks are alone
    keep        what runs stays as it is, as long as every promise holds next to it
    give back   else, in this order: another batch for the replica, in place; tasks swapped out, the least urgent first.
                After `retune_s` swapped out all shares of the GPU are divided again; after `move_s` it goes elsewhere
    place       a task goes to the GPU with the smallest slope: into the share that another one left there, else all
                shares of the GPU are divided again (`tune`)
    spread      where no task waits, one moves to a GPU without tasks if that is worth a restart; and where tasks or
                load have left, the SMs are divided again

A task that has waited `wait_s` gets an idle GPU, as everywhere (`solvers.backfill`). Replicas come first in every step:
none is given a setting that breaks its promise, and a task that stands in the way is swapped out in the same plan. A
replica with another SM percent is a new process that starts next to the old one, which serves until it is ready.

Source: Mudi (EuroSys 2025). Changed: deadlines are no reason to pay for an idle GPU; GPUs with several replicas, which
other policies leave behind, keep their tasks and get no new ones.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from solvers.backfill.hosts import Host, bound_gpus, make_host
from solvers.backfill.problem import FillLimits, FillProblem
from solvers.backfill.residents import (
    Seats,
    again,
    bound_task,
    empty_host,
    is_same,
    urgency,
)
from solvers.baselines.leftover_fill import Place
from solvers.laws.operating_rows import SM_PERCENT_TOLERANCE
from solvers.papers.mudi.iterations import Iterations
from solvers.papers.mudi.parameters import MudiParameters
from solvers.papers.mudi.sites import (
    MAX_TUNINGS,
    PATIENCE_S,
    MudiSite,
    SiteTuning,
    without_tasks,
)
from solvers.papers.mudi.smallest_slope import NOWHERE, Demanded, Slopes
from solvers.papers.mudi.tune import Tuner, tuning_limit_ms
from solvers.types.parameters import parameters_as
from solvers.types.plan import BoundGpu, BoundTask
from solvers.types.state import Gpu, GpuId, Task

MAX_TRIES = 4
"""GPUs that are tuned for one task before it waits for the next tick."""
LOOSE_PERCENT = 20.0
"""SMs that are not held, or that the replica could spare: with fewer it is not asked whether to divide again."""


def fill(wanted: FillProblem, limits: FillLimits | None = None) -> tuple[BoundGpu, ...]:
    """The bound plan's GPUs with their tasks and tuned replicas, and idle ones that tasks were given, by id.

    The order of the items changes nothing. Raises InvalidInput for a replica without a service or row.
    O(tasks · sites) for slopes, at most MAX_TUNINGS tunings.
    """
    filling = MudiFilling(wanted, limits or FillLimits())
    filling.keep_running()
    # Promises before new tasks: a new one must find the GPU as it will be.
    filling.settle()
    waiting = [task for task in wanted.tasks if task.name not in filling.placed]
    for task in sorted(waiting, key=urgency):
        filling.place(task)
    # Only where no task waits: one that waits has the first claim to what is free.
    if all(task.name in filling.placed for task in waiting):
        filling.spread()
        filling.widen()
    return filling.gpus()


class MudiFilling:
    """Sites as they fill up."""

    def __init__(self, wanted: FillProblem, limits: FillLimits) -> None:
        problem = wanted.problem
        self.wanted = wanted
        self._limits = limits
        self._parameters = parameters_as(wanted.parameters, MudiParameters)
        self._running = wanted.running_gpus
        self._seats = Seats(wanted.points)
        self._tasks = {task.name: task for task in wanted.tasks}
        self._cordoned = frozenset(wanted.cordoned)
        self.slopes = Slopes(
            problem, self._seats, partial(tuning_limit_ms, problem.capacity_law)
        )
        self.tuner = Tuner(
            problem=problem,
            seats=self._seats,
            iterations=Iterations(problem, self._seats, wanted.tasks, self._running),
        )
        self.tuning = SiteTuning(
            problem, self._tasks, seats=self._seats, tuner=self.tuner
        )
        self.placed: set[str] = set()
        self._hopeless: set[tuple[str, int, bool, frozenset[GpuId]]] = set()
        """Network, batch, patience and avoided GPUs of tasks that found no place; places only get fewer."""
        self._sites = {gpu.id: self._site(gpu) for gpu in wanted.hosting_gpus}
        self._unused = {gpu.id: gpu for gpu in wanted.gpus if gpu.id not in self._sites}

    def _site(self, gpu: BoundGpu) -> MudiSite:
        # Tasks follow one by one, those that run first.
        bare = replace(gpu, tasks=())
        return MudiSite(make_host(self.wanted.problem, self.tuning.rows, bare))

    def host(self, key: GpuId) -> Host:
        """A GPU as it stands. Raises KeyError."""
        return self._sites[key].host

    def gpus(self) -> tuple[BoundGpu, ...]:
        """What carries anything, by id."""
        return bound_gpus(site.host for site in self._sites.values())

    def keep_running(self) -> None:
        """Leave tasks where they are; one that was swapped out for long looks for another place."""
        before = {task.name: (gpu, task) for gpu in self._running for task in gpu.tasks}
        ran = [task for task in self.wanted.tasks if task.name in before]
        # The more important first, in case a GPU may not keep all of them.
        for task in sorted(ran, key=lambda task: (-task.priority, task.name)):
            gpu, was = before[task.name]
            site = self._sites.get(gpu.id)
            if site is not None and self._may_stay(task, was, site):
                self._keep(task, was, site)

    def _may_stay(self, task: Task, was: BoundTask, site: MudiSite) -> bool:
        return (
            is_same(task, was)
            and len(site.host.tasks) < self._limits.max_tasks_per_gpu
            and (was.is_resident or task.waiting_s < self._limits.move_s)
        )

    def _keep(self, task: Task, was: BoundTask, site: MudiSite) -> None:
        seat = self._seats.of_share(task, site.host, was.sm_percent)
        if was.is_resident and seat is not None:
            site.host.residents.append((again(was, task, is_resident=True), seat))
        else:
            # It keeps its place, since its memory waits on this node's host.
            site.is_uneven |= seat is None
            site.host.swapped.append(again(was, task, is_resident=False))
        self.placed.add(task.name)

    def settle(self) -> None:
        """Make every promise hold again, then let back who was swapped out."""
        for _, site in sorted(self._sites.items()):
            if not site.host.holds():
                self._give_back(site)
            elif site.host.swapped:
                self._let_back(site)

    def _give_back(self, site: MudiSite) -> None:
        host = site.host
        if site.is_tunable:
            # Another batch changes in place and costs nothing: it is tried before any restart.
            row = self.tuner.rebatched(host, self.tuning.tasks_of(host.residents))
            if row is not None:
                site.host = self.tuning.with_row(host, row)
                return
            is_overfull = host.free_sm_percent < -SM_PERCENT_TOLERANCE
            if is_overfull and self.tuning.divide(site):
                return
        while host.residents and not host.holds():
            # The slides swap tasks out against running out of memory; here a broken promise is reason enough.
            last = max(host.residents, key=lambda each: self._urgency(each[0]))
            host.residents.remove(last)
            host.swapped.append(replace(last[0], is_resident=False))

    def _let_back(self, site: MudiSite) -> None:
        host = site.host
        for task in sorted(host.swapped, key=self._urgency):
            seat = self._seats.of_share(self._tasks[task.name], host, task.sm_percent)
            if seat is not None and host.fits(seat):
                host.swapped.remove(task)
                host.residents.append((replace(task, is_resident=True), seat))
        if site.is_tunable and self._is_due(site):
            self.tuning.divide(site)

    def _is_due(self, site: MudiSite) -> bool:
        """Whether somebody has been swapped out for so long that the GPU is to be divided again."""
        waits_s = [self._tasks[task.name].waiting_s for task in site.host.swapped]
        # A share without a row can never fit again, so that nothing is gained by waiting for the burst to end.
        return bool(waits_s) and (
            site.is_uneven or max(waits_s) >= self._parameters.retune_s
        )

    def _urgency(self, task: BoundTask) -> tuple[float, float, float, str]:
        return urgency(self._tasks[task.name])

    def place(self, task: Task) -> None:
        """Give a task a share of the GPU with the smallest slope, or an idle GPU when it has waited for long."""
        # One that found no place says as much of those like it, which must not take the others' tunings.
        is_patient = task.waiting_s >= PATIENCE_S
        kind = task.network, task.batch, is_patient, task.avoided_gpus
        for site in self._ranked(task) if kind not in self._hopeless else ():
            if self.tuning.reuse(site, task) or self.tuning.divide(site, task):
                self.placed.add(task.name)
                return
        self._hopeless.add(kind)
        if task.waiting_s >= self._limits.wait_s:
            self._take_idle(task)

    def spread(self) -> None:
        """Move one task, the first that is worth it of the slowest, to a GPU without tasks."""
        sites = self._open_sites()
        empty = [site for site in sites if not site.host.tasks]
        if not empty:
            return
        slowest = sorted(
            (
                (-slowness, site.host.gpu.id, at, site)
                for site in sites
                if not site.host.swapped
                for at, slowness in enumerate(self.tuning.slownesses(site.host))
            ),
            key=lambda each: each[:3],
        )
        for *_, at, site in slowest[:MAX_TRIES]:
            # One a tick: after it, places and slownesses are others.
            if self._may_move(site.host, at) and self._moved(site, at, empty):
                break

    def _open_sites(self) -> list[MudiSite]:
        """Sites with one replica, on which tasks may start."""
        return [
            site
            for key, site in self._sites.items()
            if site.is_tunable and key not in self._cordoned
        ]

    def _may_move(self, host: Host, at: int) -> bool:
        """Whether the resident at that place has enough left to do, and there are tunings left to try."""
        task = self._tasks[host.residents[at][0].name]
        left = task.iterations - task.done_iterations
        left_s = left * host.pace_ms(at) / 1000.0
        return (
            left_s >= self._parameters.left_s and len(self.tuner.searches) < MAX_TUNINGS
        )

    def _moved(self, site: MudiSite, at: int, empty: Sequence[MudiSite]) -> bool:
        """Whether the resident at that place moves to an empty site: where it is tuned for, and that is worth it."""
        host = site.host
        was, _ = host.residents[at]
        task = self._tasks[was.name]
        there = min(empty, key=lambda each: self._order(each.host, task))
        alone = self.tuner.tune(there.host, [task])
        left = self._left_behind(host, was.name)
        if alone is None or left is None:
            return False
        rest_host, rest_speed = left
        if alone.speed + rest_speed < self.tuning.speed(host) * (
            1.0 + self._parameters.worth
        ):
            return False
        there.host = self.tuning.tuned(there.host, alone, [task], [])
        site.host = rest_host
        return True

    def _left_behind(self, host: Host, name: str) -> tuple[Host, float] | None:
        """The host divided among the tasks but one, and their speed; None where they cannot all stay."""
        rest = [each for each, _ in host.residents if each.name != name]
        tasks = [self._tasks[each.name] for each in rest]
        if not tasks:
            return without_tasks(host), 0.0
        others = self.tuner.tune(host, tasks)
        if others is None:
            return None
        return self.tuning.tuned(host, others, tasks, rest), others.speed

    def widen(self) -> None:
        """Divide again where much is free and that is worth it."""
        for _, site in sorted(self._sites.items()):
            host = site.host
            if not site.is_tunable or not host.residents or host.swapped:
                continue
            spare_percent = self.tuner.spare_percent(
                host, self.tuning.tasks_of(host.residents), room=self._parameters.calm
            )
            # A search costs milliseconds, so that it is run only where there is something to divide.
            if host.free_sm_percent + spare_percent >= LOOSE_PERCENT:
                self.tuning.divide(
                    site,
                    room=self._parameters.calm,
                    at_most=sum(self.tuning.slownesses(host))
                    * (1.0 - self._parameters.worth),
                )

    def _ranked(self, task: Task) -> list[MudiSite]:
        """The first sites to try: those with the fewest tasks, of these by slope; never one that must not start any."""
        by_count: defaultdict[int, list[MudiSite]] = defaultdict(list)
        for site in self._open_sites():
            # Tasks that are swapped out on a GPU have the first claim to what becomes free there.
            if not site.host.swapped:
                by_count[len(site.host.residents)].append(site)
        ranked: list[MudiSite] = []
        for count in range(self._limits.max_tasks_per_gpu):
            ranked += self._by_slope(by_count[count], task)
            # Slopes are the costly part: once there are enough sites, fuller ones need none.
            if len(ranked) >= MAX_TRIES:
                break
        return ranked[:MAX_TRIES]

    def _by_slope(self, sites: Iterable[MudiSite], task: Task) -> list[MudiSite]:
        """Those with memory and rows for one task more, the smallest slope first."""
        demanded = [
            (self._order(site.host, task), site)
            for site in sites
            if self.tuning.has_memory(site.host, task)
        ]
        fitting = [each for each in demanded if each[0][0] != NOWHERE]
        return [site for _, site in sorted(fitting, key=lambda each: each[0])]

    def _order(self, host: Host, task: Task) -> tuple[Demanded, GpuId]:
        """Sorts first whose service asks for least next to one task more; of equals the lowest id."""
        # Slopes are shared by all GPUs that are alike, and so know nothing of single ones.
        if host.gpu.id in task.avoided_gpus:
            return NOWHERE, host.gpu.id
        tasks = [*self.tuning.tasks_of(host.residents), task]
        return self.slopes.of(host, tasks), host.gpu.id

    def _take_idle(self, task: Task) -> None:
        """Seat a task on the idle GPU that costs least per iteration, with all its SMs."""
        hosts = (empty_host(self.wanted.problem, gpu) for gpu in self._idle_gpus(task))
        places = [
            (host, seat)
            for host in hosts
            if (seat := self._seats.widest(task, host)) is not None
        ]
        if places:
            host, seat = min(places, key=_cost_order)
            host.residents.append((bound_task(task, seat), seat))
            self._sites[host.gpu.id] = MudiSite(host)
            del self._unused[host.gpu.id]
            self.placed.add(task.name)

    def _idle_gpus(self, task: Task) -> Iterable[Gpu]:
        """One GPU of each type that carries nothing, the lowest id that the task does not avoid."""
        idle = (
            gpu
            for key, gpu in sorted(self._unused.items(), reverse=True)
            if key not in self._cordoned and key not in task.avoided_gpus
        )
        # GPUs of a type are alike: the lowest id stands for all, since descending order puts it in last.
        return {gpu.gpu_type: gpu for gpu in idle}.values()


def _cost_order(place: Place) -> tuple[float, GpuId]:
    """Sorts GPUs by what an iteration costs there."""
    host, seat = place
    usd = host.gpu_type.price_usd_per_hour * host.iteration_ms(seat)
    return usd, host.gpu.id
