"""Which hosts there are for tasks, and which tasks may take which seats on each: what runs has a right to go on."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from solvers.backfill.greedy import RESTART_S, is_late
from solvers.backfill.hosts import Host, HostTenant, make_host
from solvers.backfill.mixes import TaskOption
from solvers.backfill.problem import ENOUGH, FillLimits, FillProblem
from solvers.backfill.residents import Seats, empty_host, is_same
from solvers.backfill.worth import (
    FixedWorth,
    must_begin,
    of_running,
    speed_of,
    standings,
)
from solvers.laws.operating_rows import OperatingRows
from solvers.types.plan import BoundGpu
from solvers.types.state import GpuId

NEWCOMERS = 4
"""Tasks that may come to one host, beside those that are there."""
SPREAD = 3
"""Hosts to which a task may come before others go first."""
GAIN, WIDENS, KEEPS = 1.25, 2.0, 0.8
"""Of its present pace: what a task moves for, what it is given a wider share for where it is the only one (it is the
first to go as load rises), and what it must keep where its move frees a GPU."""
NEARLY_ALL = 0.99
"""Instead of ENOUGH, while the GPUs that are nobody's home outnumber all tasks: then nobody wants for SMs."""
_SHARES = (1.0, 0.5, 0.25)
"""Of the smallest share with enough of the speed: what one host offers a task."""


class Offers:
    """Hosts as the replicas leave them, and the options of tasks on each."""

    def __init__(self, wanted: FillProblem, limits: FillLimits) -> None:
        self._wanted, self._limits = wanted, limits
        self._rows, self._seats = OperatingRows(wanted.problem), Seats(wanted.points)
        self.known = standings(wanted, limits, self._seats)
        self.hosts = {host.gpu.id: replace(host, residents=[]) for host in self._used()}
        """That carry replicas or tasks, by id; without tasks here."""
        free = len(self.hosts) - len(
            self.hosts.keys() & {each.home for each in self.known.values()}
        )
        self._enough = NEARLY_ALL if free > len(self.known) else ENOUGH
        self._pace_ms = self._paces()
        for name, pace_ms in self._pace_ms.items():
            self.known[name] = replace(
                self.known[name], speed=speed_of(self.known[name], pace_ms)
            )
        self.openers = frozenset(
            name for name, standing in self.known.items() if self._may_open(standing)
        )
        """Tasks for which an idle GPU may be paid."""

    def host(self, gpu: BoundGpu) -> Host:
        """A GPU of a filling with its resident tasks; without those whose share has no row."""
        made = self.hosts.get(gpu.id) or make_host(
            self._wanted.problem, self._rows, replace(gpu, tasks=())
        )
        residents = []
        for bound in gpu.tasks:
            standing = self.known.get(bound.name)
            seat = (
                None
                if standing is None
                else self._seats.of_share(standing.task, made, bound.sm_percent)
            )
            if seat is not None and bound.is_resident:
                residents.append((bound, seat))
        return replace(made, residents=residents)

    def idle(self) -> list[Host]:
        """Of every type as many idle GPUs as may be opened, the first by id."""
        count, opened = Counter[str](), []
        for gpu in sorted(self._wanted.gpus, key=lambda each: each.id):
            if gpu.id not in self.hosts and gpu.id not in self._wanted.cordoned:
                count[gpu.gpu_type] += 1
                if count[gpu.gpu_type] <= len(self.openers):
                    opened.append(empty_host(self._wanted.problem, gpu))
        return opened

    def options(
        self, hosts: Sequence[Host], basis: Sequence[BoundGpu]
    ) -> dict[GpuId, list[list[TaskOption]]]:
        """By host the options of each task that may be there, by name; of newcomers those who gain most from it.

        One who may already come to SPREAD hosts stands back for others. basis: a filling whose seats are among them.
        """
        placed = {
            task.name: (gpu.id, task.sm_percent)
            for gpu in basis
            for task in gpu.tasks
            if task.is_resident
        }
        found, invited = dict[GpuId, list[list[TaskOption]]](), Counter[str]()
        for host in sorted(
            hosts, key=lambda each: (-each.free_sm_percent, each.gpu.id)
        ):
            own = {
                name: self._at_home(each, host)
                for name, each in self.known.items()
                if each.home == host.gpu.id
            }
            others = {
                name: self._newcomer(each, host)
                for name, each in self.known.items()
                if each.home != host.gpu.id
            }
            able = [name for name, options in others.items() if options]
            able.sort(
                key=lambda name: (
                    invited[name] // SPREAD,
                    -self._solo_worth(others[name], host),
                    name,
                )
            )
            based = {
                name: percent
                for name, (gpu, percent) in placed.items()
                if gpu == host.gpu.id and name in able
            }
            for name, percent in based.items():
                others[name] = self._with_share(others[name], host, percent)
            coming = [*based, *(name for name in able if name not in based)][
                : max(NEWCOMERS, len(based))
            ]
            invited.update(coming)
            chosen = own | {name: others[name] for name in coming}
            found[host.gpu.id] = [
                chosen[name] for name in sorted(chosen) if chosen[name]
            ]
        return found

    def _with_share(
        self, options: list[TaskOption], host: Host, sm_percent: float
    ) -> list[TaskOption]:
        """The options of a newcomer, that share among them."""
        seat = self._seats.of_share(options[0].standing.task, host, sm_percent)
        is_there = seat is None or any(option.seat == seat for option in options)
        return (
            options
            if is_there or seat is None
            else [*options, replace(options[0], seat=seat)]
        )

    def _used(self) -> Iterable[Host]:
        fleet = {gpu.id: gpu.gpu_type for gpu in self._wanted.gpus}
        busy = {gpu.id: gpu for gpu in self._wanted.bound.gpus if gpu.replicas}
        running = self._wanted.running.gpus if self._wanted.running else ()
        alone = {
            gpu.id: gpu
            for gpu in running
            if gpu.tasks
            and not gpu.replicas
            and gpu.id not in busy
            and fleet.get(gpu.id) == gpu.gpu_type
        }
        for _, gpu in sorted((busy | alone).items()):
            yield make_host(self._wanted.problem, self._rows, replace(gpu, tasks=()))

    def _paces(self) -> Mapping[str, float]:
        """Iteration of every task that runs and may go on, as its GPU is now."""
        paces = {}
        for gpu in self._wanted.running.gpus if self._wanted.running else ():
            if gpu.id in self.hosts:
                host = self.host(
                    replace(gpu, clock_mhz=self.hosts[gpu.id].gpu.clock_mhz)
                )
                if host.holds():
                    paces.update(
                        {
                            bound.name: host.pace_ms(at)
                            for at, (bound, _) in enumerate(host.residents)
                        }
                    )
        return paces

    def _may_open(self, standing: FixedWorth) -> bool:
        """It has waited for long, or must begin now for its deadline, or move where it runs too slowly for it."""
        task, pace_ms = standing.task, self._pace_ms.get(standing.task.name)
        if pace_ms is None and task.waiting_s >= self._limits.wait_s:
            return True
        is_slow = pace_ms is None or is_late(task, pace_ms)
        return is_slow and must_begin(standing) and not is_late(task, standing.alone_ms)

    def _at_home(self, standing: FixedWorth, host: Host) -> list[TaskOption]:
        """Its seat, and wider ones where they pay; on a host that is cordoned its seat alone."""
        task, was = standing.task, standing.was
        assert was is not None, "it has a home"
        if not is_same(task, was):
            return self._newcomer(standing, host)
        seat = self._seats.of_share(task, host, was.sm_percent)
        own = (
            [TaskOption(standing=standing, seat=seat, is_new=False)]
            if seat is not None and host.fits(seat)
            else []
        )
        has_neighbours = any(
            each.home == host.gpu.id
            for name, each in self.known.items()
            if name != task.name
        )
        if (
            host.gpu.id in self._wanted.cordoned
            or not own
            or task.name not in self._pace_ms
            or has_neighbours
        ):
            return own
        max_ms = self._pace_ms[task.name] / WIDENS
        wider = (
            each
            for each in self._shares(standing, host)
            if each.row.sm_percent > was.sm_percent
        )
        return own + [
            TaskOption(standing=standing, seat=each, is_new=True, max_ms=max_ms)
            for each in wider
        ]

    def _newcomer(self, standing: FixedWorth, host: Host) -> list[TaskOption]:
        """Where a task may be started on a host; none where it has no right or reason to come."""
        max_ms = self._max_ms(standing, host)
        if max_ms <= 0.0 or host.gpu.id in self._wanted.cordoned:
            return []
        return [
            TaskOption(standing=standing, seat=seat, is_new=True, max_ms=max_ms)
            for seat in self._shares(standing, host)
            if host.iteration_ms(seat) <= max_ms
        ]

    def _max_ms(self, standing: FixedWorth, host: Host) -> float:
        """The longest iteration for which it comes to a host; 0 where it stays away."""
        task, pace_ms = standing.task, self._pace_ms.get(standing.task.name)
        home = self.hosts.get(standing.home) if standing.home is not None else None
        if pace_ms is None:
            # Swapped out, or in the way of a promise: it waits for its seat before it is started elsewhere.
            is_awaited = (
                home is not None
                and standing.was is not None
                and is_same(task, standing.was)
            )
            waits = is_awaited and task.waiting_s < self._limits.move_s
            return 0.0 if waits else float("inf")
        if (
            task.due_in_s is not None
            and is_late(task, pace_ms)
            and must_begin(standing)
        ):
            left = max(task.iterations - task.done_iterations, 1e-9)
            in_time_ms = 1000.0 * (task.due_in_s - RESTART_S) / left
            if (
                in_time_ms >= standing.alone_ms
            ):  # Else it is late wherever it goes, and moves like any other one.
                return in_time_ms
        frees = home is not None and not home.replicas and bool(host.replicas)
        return pace_ms / (KEEPS if frees else GAIN)

    def _shares(self, standing: FixedWorth, host: Host) -> list[HostTenant]:
        """A few of the shares that fit a host where nobody else comes, up to enough of the speed."""
        seats = [
            seat for seat in self._seats.on(standing.task, host) if host.fits(seat)
        ]
        if not seats:
            return []
        times_ms = [host.iteration_ms(seat) for seat in seats]
        enough = next(
            at
            for at, time_ms in enumerate(times_ms)
            if time_ms <= min(times_ms) / self._enough
        )
        percent = seats[enough].row.sm_percent
        wanted = {
            min(
                range(enough + 1),
                key=lambda at: (abs(seats[at].row.sm_percent - part * percent), at),
            )
            for part in _SHARES
        }
        return [seats[at] for at in sorted(wanted)]

    def _solo_worth(self, options: Sequence[TaskOption], host: Host) -> float:
        return max(
            of_running(each.standing, host.iteration_ms(each.seat), is_new=each.is_new)
            for each in options
        )
