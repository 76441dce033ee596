"""Which hosts there are for tasks, and which tasks may take which seats on each: what runs has a right to go on."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

MAX_ARRIVALS = 4
"""Tasks that may come to one host, besides those that are there."""
SPREAD = 3
"""Hosts to which a task may come before others go first."""
GAIN, WIDENS, KEEPS = 1.25, 2.0, 0.8
"""Factors on a task's present pace: it moves for GAIN, gets a wider share for WIDENS where it is the only task (it is
the first to go as load rises), and must keep KEEPS where its move frees a GPU."""
NEARLY_ALL = 0.99
"""Instead of ENOUGH, while the GPUs that are no task's home outnumber all tasks: then none wants for SMs."""
_SHARES = (1.0, 0.5, 0.25)
"""One host offers a task these parts of the smallest share with enough of the speed."""


class Offers:
    """Hosts as the replicas leave them, and the options of tasks on each."""

    def __init__(self, wanted: FillProblem, limits: FillLimits) -> None:
        self._wanted, self._limits = wanted, limits
        self._rows, self._seats = OperatingRows(wanted.problem), Seats(wanted.points)
        self.known = standings(wanted, limits, self._seats)
        self.hosts = {host.gpu.id: replace(host, residents=[]) for host in self._used()}
        """Those that carry replicas or tasks, by id; without tasks here."""
        homes = {each.home for each in self.known.values()}
        free = len(self.hosts) - len(self.hosts.keys() & homes)
        self._enough = NEARLY_ALL if free > len(self.known) else ENOUGH
        self._pace_ms = self._paces()
        # Only now: the present speed follows from the hosts, which are made by what is known of the tasks.
        for name, pace_ms in self._pace_ms.items():
            known = self.known[name]
            self.known[name] = replace(known, speed=speed_of(known, pace_ms))
        self.openers = frozenset(
            name for name, standing in self.known.items() if self._may_open(standing)
        )
        """Tasks for which an idle GPU may be paid."""

    def host(self, gpu: BoundGpu) -> Host:
        """A GPU of a filling with its resident tasks; without those whose share has no row."""
        made = self.hosts.get(gpu.id) or make_host(
            self._wanted.problem,
            self._rows,
            replace(gpu, tasks=()),
        )
        residents = []
        for bound in gpu.tasks:
            standing = self.known.get(bound.name)
            if standing is None or not bound.is_resident:
                continue
            seat = self._seats.of_share(standing.task, made, bound.sm_percent)
            if seat is not None:
                residents.append((bound, seat))
        return replace(made, residents=residents)

    def idle(self) -> list[Host]:
        """For each task that may open one as many idle GPUs of every type as all may open, the first by id."""
        # Idle GPUs of a type are alike but for tasks that avoid some of them: more would only swell the program.
        avoided = {self.known[name].task.avoided_gpus for name in self.openers}
        count, opened = Counter[tuple[str, frozenset[GpuId]]](), []
        for gpu in sorted(self._wanted.gpus, key=lambda each: each.id):
            if gpu.id in self.hosts or gpu.id in self._wanted.cordoned:
                continue
            takers = [(gpu.gpu_type, each) for each in avoided if gpu.id not in each]
            if any(count[taker] < len(self.openers) for taker in takers):
                count.update(takers)
                opened.append(empty_host(self._wanted.problem, gpu))
        return opened

    def options(
        self,
        hosts: Sequence[Host],
        basis: Sequence[BoundGpu],
    ) -> dict[GpuId, list[list[TaskOption]]]:
        """By host the options of each task that may be there, by name; of arrivals those that gain most from it.

        A task that may already come to SPREAD hosts gives way to others. basis: a filling whose seats are among them.
        """
        shares = {
            gpu.id: {
                task.name: task.sm_percent for task in gpu.tasks if task.is_resident
            }
            for gpu in basis
        }
        found = dict[GpuId, list[list[TaskOption]]]()
        invited = Counter[str]()
        # The roomiest first: a host with little room gets the tasks that the others leave.
        for host in sorted(
            hosts,
            key=lambda each: (-each.free_sm_percent, each.gpu.id),
        ):
            key = host.gpu.id
            found[key] = self._options_on(host, shares.get(key, {}), invited)
        return found

    def _options_on(
        self, host: Host, shares: Mapping[str, float], invited: Counter[str]
    ) -> list[list[TaskOption]]:
        """Those of one host; `invited` counts its arrivals, too."""
        chosen = self._arrivals(host, shares, invited)
        invited.update(chosen.keys())
        chosen |= {
            name: self._at_home(each, host)
            for name, each in self.known.items()
            if each.home == host.gpu.id
        }
        return [chosen[name] for name in sorted(chosen) if chosen[name]]

    def _arrivals(
        self,
        host: Host,
        shares: Mapping[str, float],
        invited: Counter[str],
    ) -> dict[str, list[TaskOption]]:
        """The options of tasks from elsewhere: those that the basis has here at these shares, then the best others."""
        others = {
            name: self._elsewhere(each, host)
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
        # The program must be able to choose the basis itself, so that it never finds anything worse.
        based = [name for name in shares if name in able]
        for name in based:
            others[name] = self._with_share(others[name], host, shares[name])
        coming = [*based, *(name for name in able if name not in based)]
        return {name: others[name] for name in coming[: max(MAX_ARRIVALS, len(based))]}

    def _with_share(
        self,
        options: list[TaskOption],
        host: Host,
        sm_percent: float,
    ) -> list[TaskOption]:
        """The options of a task from elsewhere, that share among them."""
        seat = self._seats.of_share(options[0].standing.task, host, sm_percent)
        if seat is None or any(option.seat == seat for option in options):
            return options
        return [*options, replace(options[0], seat=seat)]

    def _used(self) -> Iterable[Host]:
        fleet = {gpu.id: gpu.gpu_type for gpu in self._wanted.gpus}
        busy = {gpu.id: gpu for gpu in self._wanted.bound.gpus if gpu.replicas}
        alone = {
            gpu.id: gpu
            for gpu in self._wanted.running_gpus
            if gpu.tasks
            and not gpu.replicas
            and gpu.id not in busy
            and fleet.get(gpu.id) == gpu.gpu_type
        }
        # By id, so that whatever is made from the hosts comes in the same order.
        for _, gpu in sorted((busy | alone).items()):
            yield make_host(self._wanted.problem, self._rows, replace(gpu, tasks=()))

    def _paces(self) -> Mapping[str, float]:
        """Iteration of every task that runs and may go on, as its GPU is now."""
        paces = {}
        for gpu in self._wanted.running_gpus:
            if gpu.id not in self.hosts:
                continue
            # At the clock that the GPU is to have, which the plan in force need not have had.
            clock_mhz = self.hosts[gpu.id].gpu.clock_mhz
            host = self.host(replace(gpu, clock_mhz=clock_mhz))
            # Where replicas need more than before, some task must go, and none has a pace to keep.
            if host.holds():
                for at, (bound, _) in enumerate(host.residents):
                    paces[bound.name] = host.pace_ms(at)
        return paces

    def _may_open(self, standing: FixedWorth) -> bool:
        """It has waited for long, or must begin now for its deadline, or move where it runs too slowly for it."""
        task = standing.task
        pace_ms = self._pace_ms.get(standing.task.name)
        if pace_ms is None and task.waiting_s >= self._limits.wait_s:
            return True
        is_slow = pace_ms is None or is_late(task, pace_ms)
        return is_slow and must_begin(standing) and not is_late(task, standing.alone_ms)

    def _at_home(self, standing: FixedWorth, host: Host) -> list[TaskOption]:
        """Its seat, and wider ones where they pay; on a host that is cordoned its seat alone."""
        task, was = standing.task, standing.was
        assert was is not None, "it has a home"
        if not is_same(task, was):
            return self._elsewhere(standing, host)
        seat = self._seats.of_share(task, host, was.sm_percent)
        if seat is None or not host.fits(seat):
            return []
        own = TaskOption(standing=standing, seat=seat, is_new=False)
        if not self._may_widen(standing, host):
            return [own]
        return [own, *self._wider(standing, host, was.sm_percent)]

    def _wider(
        self, standing: FixedWorth, host: Host, sm_percent: float
    ) -> Iterator[TaskOption]:
        """Larger shares than that, each for a pace that pays for the restart."""
        max_ms = self._pace_ms[standing.task.name] / WIDENS
        for seat in self._shares(standing, host):
            if seat.row.sm_percent > sm_percent:
                yield TaskOption(
                    standing=standing, seat=seat, is_new=True, max_ms=max_ms
                )

    def _may_widen(self, standing: FixedWorth, host: Host) -> bool:
        """Whether a task runs alone next to the replicas of a host where tasks may be started."""
        name = standing.task.name
        has_neighbours = any(
            each.home == host.gpu.id
            for other, each in self.known.items()
            if other != name
        )
        is_cordoned = host.gpu.id in self._wanted.cordoned
        return name in self._pace_ms and not is_cordoned and not has_neighbours

    def _elsewhere(self, standing: FixedWorth, host: Host) -> list[TaskOption]:
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
        task = standing.task
        pace_ms = self._pace_ms.get(standing.task.name)
        home = self.hosts.get(standing.home) if standing.home is not None else None
        if pace_ms is None:
            # Swapped out, or in the way of a promise: it waits for its seat before it is started elsewhere.
            was = standing.was
            is_awaited = home is not None and was is not None and is_same(task, was)
            waits = is_awaited and task.waiting_s < self._limits.move_s
            return 0.0 if waits else float("inf")
        in_time_ms = self._in_time_ms(standing, pace_ms)
        if in_time_ms is not None:
            return in_time_ms
        # A GPU that no replica uses is worth a little speed, since its rent ends with the move.
        frees = home is not None and not home.replicas and bool(host.replicas)
        return pace_ms / (KEEPS if frees else GAIN)

    def _in_time_ms(self, standing: FixedWorth, pace_ms: float) -> float | None:
        """The longest iteration with which a task still meets its deadline; None where it would anyway, or cannot."""
        task = standing.task
        is_slow = is_late(task, pace_ms) and must_begin(standing)
        if task.due_in_s is None or not is_slow:
            return None
        left = max(task.iterations - task.done_iterations, 1e-9)
        in_time_ms = 1000.0 * (task.due_in_s - RESTART_S) / left
        # Else it is late wherever it goes, and moves like any other one.
        return in_time_ms if in_time_ms >= standing.alone_ms else None

    def _shares(self, standing: FixedWorth, host: Host) -> list[HostTenant]:
        """A few of the shares that fit a host where no other task comes, up to enough of the speed."""
        seats = [
            seat for seat in self._seats.on(standing.task, host) if host.fits(seat)
        ]
        if not seats:
            return []
        times_ms = [host.iteration_ms(seat) for seat in seats]
        max_ms = min(times_ms) / self._enough
        enough = next(at for at, time_ms in enumerate(times_ms) if time_ms <= max_ms)
        # Smaller shares as well: two tasks may share a host where each alone would take all that is left.
        percents = [seat.row.sm_percent for seat in seats[: enough + 1]]
        chosen = {_nearest(percents, part * percents[-1]) for part in _SHARES}
        return [seats[at] for at in sorted(chosen)]

    def _solo_worth(self, options: Sequence[TaskOption], host: Host) -> float:
        return max(
            of_running(each.standing, host.iteration_ms(each.seat), is_new=each.is_new)
            for each in options
        )


def _nearest(sm_percents: Sequence[float], wanted: float) -> int:
    """Where the share nearest to the wanted one is; of equals the first."""
    distances = [abs(sm_percent - wanted) for sm_percent in sm_percents]
    return distances.index(min(distances))
