"""Mudi's multiplexing of tasks with services: which GPU, which batch, which shares, and who is swapped out.

    sites       GPUs with one replica, of which each is tuned; GPUs on which tasks are alone
    keep        what runs stays as it is, as long as every promise holds beside it
    give back   else, in this order: another batch for the replica, in place; tasks swapped out, the least urgent first.
                After RETUNE_S swapped out all shares of the GPU are divided anew; after `move_s` a task goes elsewhere
    place       a task goes to the GPU with the smallest slope: into the share that another one left there, else all
                shares of the GPU are divided anew (`tune`)
    spread      where nobody waits, a task moves to a GPU without tasks if that is worth a restart; and where tasks or
                load have left, the SMs are divided anew

A task that has waited `wait_s` gets an idle GPU, as everywhere (`solvers.backfill`). Replicas come first in every step:
none is given a setting that breaks its promise, and a task that stands in the way is swapped out in the same plan. A
replica with another SM percent is a new process that starts beside the old one, which serves until it is ready.

Source: Mudi (EuroSys 2025). Changed: deadlines are no reason to pay for an idle GPU; GPUs with several replicas, which
other policies leave behind, keep their tasks and get no new ones.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from solvers.backfill.hosts import Host, HostTenant, make_host
from solvers.backfill.problem import FillLimits, FillProblem
from solvers.backfill.residents import (
    Seats,
    again,
    bound_task,
    empty_host,
    is_same,
    urgency,
)
from solvers.laws.operating_rows import SM_PERCENT_TOLERANCE
from solvers.papers.mudi.iterations import Iterations
from solvers.papers.mudi.sites import (
    MAX_TUNINGS,
    PATIENCE_S,
    MudiSite,
    SiteTuning,
    without_tasks,
)
from solvers.papers.mudi.smallest_slope import NOWHERE, Demanded, Slopes
from solvers.papers.mudi.tune import Tuner, tuning_limit_ms
from solvers.types.plan import BoundGpu, BoundTask
from solvers.types.state import GpuId, Task

LEFT_S = 60.0
"""What needs less until it is done is not started anew elsewhere."""
RETUNE_S = 20.0
"""After so long swapped out a task is no longer the victim of a burst: the GPU is divided anew."""
MAX_TRIES = 4
"""GPUs that are tuned for one task before it waits for the next tick."""
WORTH = 0.25
"""By so much of the present times a division must be better to be worth a restart."""
CALM = 2.0
"""Times the present rate that a replica must bear where shares are divided anew without need."""
LOOSE_PERCENT = 20.0
"""SMs that nobody holds, or that the replica could spare: with fewer it is not asked whether to divide anew."""

Before = tuple[BoundGpu, BoundTask]


def fill(wanted: FillProblem, limits: FillLimits | None = None) -> tuple[BoundGpu, ...]:
    """The bound plan's GPUs with their tasks and tuned replicas, and idle ones that tasks were given, by id.

    The order of the items changes nothing. Raises InvalidInput for a replica without a service or row.
    O(tasks · sites) for slopes, at most MAX_TUNINGS tunings.
    """
    filling = MudiFilling(wanted, limits or FillLimits())
    before = {task.name: (gpu, task) for gpu in filling.running for task in gpu.tasks}
    for task in sorted(wanted.tasks, key=lambda task: (-task.priority, task.name)):
        filling.keep(task, before.get(task.name))
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
        self.wanted, self._limits = wanted, limits
        self.running = wanted.running.gpus if wanted.running else ()
        self._seats = Seats(wanted.points)
        self._tasks = {task.name: task for task in wanted.tasks}
        self._cordoned = frozenset(wanted.cordoned)
        self.slopes = Slopes(
            problem, self._seats, partial(tuning_limit_ms, problem.capacity_law)
        )
        self.tuner = Tuner(
            problem=problem,
            seats=self._seats,
            iterations=Iterations(problem, self._seats, wanted.tasks, self.running),
        )
        self.tuning = SiteTuning(
            problem, self._tasks, seats=self._seats, tuner=self.tuner
        )
        self.placed: set[str] = set()
        self._hopeless: set[tuple[str, int, bool]] = set()
        """Network, batch and patience of tasks that found no place; places only get fewer."""
        self._unused = {gpu.id: gpu for gpu in wanted.gpus}
        self._sites: dict[GpuId, MudiSite] = {}
        for gpu in self._used_gpus():
            host = make_host(problem, self.tuning.rows, replace(gpu, tasks=()))
            self._sites[gpu.id] = MudiSite(host)
            self._unused.pop(gpu.id, None)

    def _used_gpus(self) -> list[BoundGpu]:
        """GPUs with replicas by the plan, and those on which tasks are alone and that the plan leaves to them."""
        alone = [
            gpu
            for gpu in self.running
            if gpu.tasks and not gpu.replicas and self._is_unused(gpu)
        ]
        return [*(gpu for gpu in self.wanted.bound.gpus if gpu.replicas), *alone]

    def host(self, key: GpuId) -> Host:
        """A GPU as it stands. Raises KeyError."""
        return self._sites[key].host

    def gpus(self) -> tuple[BoundGpu, ...]:
        """What carries anything, by id."""
        hosts = (
            site.host
            for _, site in sorted(self._sites.items())
            if site.host.gpu.replicas or site.host.tasks
        )
        return tuple(replace(host.gpu, tasks=host.tasks) for host in hosts)

    def keep(self, task: Task, ran: Before | None) -> None:
        """Leave a task where it is; one that was swapped out for long looks for another place."""
        if ran is None:
            return
        gpu, was = ran
        site = self._sites.get(gpu.id)
        if site is None or not is_same(task, was):
            return
        if len(site.host.tasks) >= self._limits.max_tasks_per_gpu:
            return
        if not was.is_resident and task.waiting_s >= self._limits.move_s:
            return
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
            last = max(
                host.residents, key=lambda each: urgency(self._tasks[each[0].name])
            )
            host.residents.remove(last)
            host.swapped.append(replace(last[0], is_resident=False))

    def _let_back(self, site: MudiSite) -> None:
        host = site.host

        def key(each: BoundTask) -> tuple[float, float, float, str]:
            return urgency(self._tasks[each.name])

        for task in sorted(host.swapped, key=key):
            seat = self._seats.of_share(self._tasks[task.name], host, task.sm_percent)
            if seat is not None and host.fits(seat):
                host.swapped.remove(task)
                host.residents.append((replace(task, is_resident=True), seat))
        waits_s = [self._tasks[task.name].waiting_s for task in host.swapped]
        # A share without a row can never fit again, so that nothing is gained by waiting for the burst to end.
        is_due = max(waits_s, default=0.0) >= RETUNE_S or (waits_s and site.is_uneven)
        if site.is_tunable and is_due:
            self.tuning.divide(site)

    def place(self, task: Task) -> None:
        """Give a task a share of the GPU with the smallest slope, or an idle GPU when it has waited for long."""
        # One that found no place says as much of those like it, which must not take the others' tunings.
        kind = task.network, task.batch, task.waiting_s >= PATIENCE_S
        for site in self._ranked(task) if kind not in self._hopeless else ():
            if self.tuning.reuse(site, task) or self.tuning.divide(site, task):
                self.placed.add(task.name)
                return
        self._hopeless.add(kind)
        if task.waiting_s >= self._limits.wait_s:
            self._take_idle(task)

    def spread(self) -> None:
        """Move one task, the first that is worth it of the slowest, to a GPU without tasks."""
        sites = [
            site
            for key, site in sorted(self._sites.items())
            if site.is_tunable and key not in self._cordoned
        ]
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
            if self._moved(site, at, empty):
                # One a tick: after it, places and slownesses are others.
                break

    def _moved(self, site: MudiSite, at: int, empty: Sequence[MudiSite]) -> bool:
        """Whether the resident at that place moves; not beyond MAX_TUNINGS."""
        host, (was, _) = site.host, site.host.residents[at]
        task = self._tasks[was.name]
        left_s = (task.iterations - task.done_iterations) * host.pace_ms(at) / 1000.0
        if left_s < LEFT_S or len(self.tuner.searches) >= MAX_TUNINGS:
            return False
        there = min(
            empty,
            key=lambda each: (self.slopes.of(each.host, [task]), each.host.gpu.id),
        )
        alone = self.tuner.tune(there.host, [task])
        left = self._left_behind(host, was.name)
        if alone is None or left is None:
            return False
        rest_host, rest_speed = left
        if alone.speed + rest_speed < self.tuning.speed(host) * (1.0 + WORTH):
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
        """Divide anew where much is free and that is worth it."""
        for _, site in sorted(self._sites.items()):
            host = site.host
            if not site.is_tunable or not host.residents or host.swapped:
                continue
            spare_percent = self.tuner.spare_percent(
                host, self.tuning.tasks_of(host.residents), room=CALM
            )
            # A search costs milliseconds, so that it is run only where there is something to divide.
            if host.free_sm_percent + spare_percent >= LOOSE_PERCENT:
                self.tuning.divide(
                    site,
                    room=CALM,
                    at_most=sum(self.tuning.slownesses(host)) * (1.0 - WORTH),
                )

    def _ranked(self, task: Task) -> list[MudiSite]:
        """The first sites to try: those with the fewest tasks, of these by slope; never one that must not start any."""
        by_count: dict[int, list[tuple[GpuId, MudiSite]]] = {}
        for key, site in self._sites.items():
            # Tasks that are swapped out on a GPU have the first claim to what becomes free there.
            if site.is_tunable and key not in self._cordoned and not site.host.swapped:
                by_count.setdefault(len(site.host.residents), []).append((key, site))
        ranked: list[MudiSite] = []
        for count in range(self._limits.max_tasks_per_gpu):
            demanded = [
                (self._slope_with(site.host, task), key, site)
                for key, site in by_count.get(count, ())
                if self.tuning.has_memory(site.host, task)
            ]
            fitting = [each for each in demanded if each[0] != NOWHERE]
            fitting.sort(key=lambda each: each[:2])
            ranked.extend(site for *_, site in fitting)
            # Slopes are the costly part: once there are enough sites, fuller ones need none.
            if len(ranked) >= MAX_TRIES:
                break
        return ranked[:MAX_TRIES]

    def _slope_with(self, host: Host, task: Task) -> Demanded:
        return self.slopes.of(host, [*self.tuning.tasks_of(host.residents), task])

    def _take_idle(self, task: Task) -> None:
        """Seat a task on the idle GPU that costs least per iteration, with all its SMs."""
        idle = [
            gpu
            for key, gpu in sorted(self._unused.items(), reverse=True)
            if key not in self._cordoned
        ]
        places: list[tuple[float, GpuId, Host, HostTenant]] = []
        # GPUs of a type are alike: only the first by id of each is asked, which comes last here.
        for gpu in {gpu.gpu_type: gpu for gpu in idle}.values():
            host = empty_host(self.wanted.problem, gpu)
            fitting = [seat for seat in self._seats.on(task, host) if host.fits(seat)]
            if fitting:
                usd = host.gpu_type.price_usd_per_hour * host.iteration_ms(fitting[-1])
                places.append((usd, gpu.id, host, fitting[-1]))
        if places:
            _, key, host, seat = min(places, key=lambda each: each[:2])
            host.residents.append((bound_task(task, seat), seat))
            self._sites[key] = MudiSite(host)
            del self._unused[key]
            self.placed.add(task.name)

    def _is_unused(self, gpu: BoundGpu) -> bool:
        return gpu.id in self._unused and gpu.gpu_type == self._unused[gpu.id].gpu_type
