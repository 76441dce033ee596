"""What it is worth that tasks run where they run: one figure by which whole fillings are compared.

    w_t       priority · (0.5 + weight) · (1 + waiting_s / wait_s, at most 2), over the greatest of all tasks: 0 < w ≤ 1
    r_t       speed: the shortest iteration on any entire GPU of the fleet over the iteration here, at most 1

    worth = Σ over tasks that run   PROGRESS · w_t · (r_t − MOVE where it is started again though it runs)
          − Σ over late tasks LATE · (1 + w_t) / 2, over those that are too close CLOSE · (1 + w_t) / 2
          − Σ over tasks that have waited `wait_s` and still do not run   WAIT · (1 + w_t) / 2
          − Σ over tasks that run and are put out   PROGRESS · w_t · (their present r_t)
          − Σ over GPUs without replicas   price · hours until their last task ends, over the dearest there can be

A task is late if in SOON_S no entire GPU could meet its deadline any more, and it does not run, or runs too slowly for
it; too close, if it is started again then and ends less than RESTART_S before it. Until then what it gets done on
left-overs is done for nothing, and an entire GPU is paid for the less time. Since PROGRESS ≪ 1 < CLOSE < WAIT < LATE,
deadlines and long waits come before money, and money before speed: that alone is worth no GPU.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from solvers.backfill.greedy import RESTART_S, is_late
from solvers.backfill.hosts import Host
from solvers.backfill.problem import FillLimits, FillProblem
from solvers.backfill.residents import Seats, empty_host, first_of_types
from solvers.types.plan import BoundTask
from solvers.types.state import GpuId, Task

PROGRESS = 0.01
MOVE = 0.25
WAIT = 4.0
CLOSE = 3.0
LATE = 10.0
SOON_S = 30.0
"""A few ticks, and as much again."""
_MS_PER_HOUR = 3_600_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedWorth:
    """What does not depend on where a task will be."""

    task: Task
    weight: float
    """The w of the module's docstring."""
    alone_ms: float
    """Shortest iteration on any entire GPU of the fleet."""
    home: GpuId | None
    """Where the plan in force has it, running or swapped out."""
    was: BoundTask | None
    """The same, as the plan has it."""
    speed: float = 0.0
    """The r of the module's docstring, as it runs now; 0 where it does not."""

    @property
    def runs(self) -> bool:
        """Whether it runs now."""
        return self.was is not None and self.was.is_resident

    def remaining_ms(self, iteration_ms: float) -> float:
        """Until it is done at that pace."""
        return max(0.0, self.task.iterations - self.task.done_iterations) * iteration_ms


def standings(
    wanted: FillProblem,
    limits: FillLimits,
    seats: Seats,
) -> dict[str, FixedWorth]:
    """By name, in that order; without tasks that no GPU type can run."""
    homes = {
        task.name: (gpu.id, task) for gpu in wanted.running_gpus for task in gpu.tasks
    }
    alone = {task.name: _alone_ms(task, wanted, seats) for task in wanted.tasks}
    raw = {task.name: _weight(task, limits) for task in wanted.tasks}
    max_weight = max(raw.values(), default=1.0)
    found = {}
    for task in sorted(wanted.tasks, key=lambda each: each.name):
        best_ms = alone[task.name]
        if best_ms is None:
            continue
        home, was = homes.get(task.name, (None, None))
        found[task.name] = FixedWorth(
            task=task,
            weight=raw[task.name] / max_weight,
            alone_ms=best_ms,
            home=home,
            was=was,
        )
    return found


def of_running(standing: FixedWorth, iteration_ms: float, *, is_new: bool) -> float:
    """What it is worth that a task runs at that pace where the GPU is paid for; is_new: it must be started there."""
    speed = speed_of(standing, iteration_ms)
    restart = MOVE if is_new and standing.runs else 0.0
    risk = 0.0
    # While an idle GPU could still meet the deadline later, its pace here does not matter.
    if must_begin(standing):
        if is_late(standing.task, iteration_ms):
            risk = LATE
        elif is_new and is_late(standing.task, iteration_ms, spare_s=RESTART_S):
            risk = CLOSE
    return PROGRESS * standing.weight * (speed - restart) - risk * _urgent(standing)


def speed_of(standing: FixedWorth, iteration_ms: float) -> float:
    """The r of the module's docstring."""
    return min(1.0, standing.alone_ms / iteration_ms) if iteration_ms > 0.0 else 1.0


def of_absent(standing: FixedWorth, limits: FillLimits) -> float:
    """What it is worth that a task does not run; ≤ 0."""
    late = LATE * _urgent(standing) if must_begin(standing) else 0.0
    has_waited = standing.task.waiting_s >= limits.wait_s
    wait = WAIT * _urgent(standing) if has_waited else 0.0
    # A running task loses its speed when it is put out; the speed of one that does not run is 0.
    return -late - wait - PROGRESS * standing.weight * standing.speed


class Rents:
    """What GPUs cost on which nothing but tasks runs."""

    def __init__(self, wanted: FillProblem, known: Mapping[str, FixedWorth]) -> None:
        prices = (each.price_usd_per_hour for each in wanted.problem.gpu_types)
        times_ms = (each.remaining_ms(each.alone_ms) for each in known.values())
        # Rents are relative to this, so that worth does not depend on the currency.
        self._max_usd = (
            max(prices, default=0.0) * max(times_ms, default=0.0) / _MS_PER_HOUR
        )

    def of(self, host: Host, remaining_ms: Iterable[float]) -> float:
        """Until the last task ends, which take so long each; 0 with replicas or without tasks."""
        if host.replicas or self._max_usd <= 0.0:
            return 0.0
        # A GPU is paid for until its last task ends, however many there are.
        longest_ms = max(remaining_ms, default=0.0)
        usd = host.gpu_type.price_usd_per_hour * longest_ms / _MS_PER_HOUR
        return usd / self._max_usd


def of_filling(
    hosts: Sequence[Host],
    known: Mapping[str, FixedWorth],
    rents: Rents,
    limits: FillLimits,
) -> float:
    """The worth of all hosts with their tasks, and of the tasks that are on none of them."""
    total, running = 0.0, set[str]()
    # By id: fillings that differ only in the order of their hosts are worth exactly the same.
    for host in sorted(hosts, key=lambda each: each.gpu.id):
        remaining = []
        for at, (bound, _) in enumerate(host.residents):
            standing, pace_ms = known[bound.name], host.pace_ms(at)
            starts = is_new(standing, host.gpu.id, bound.sm_percent)
            total += of_running(standing, pace_ms, is_new=starts)
            remaining.append(standing.remaining_ms(pace_ms))
            running.add(bound.name)
        total -= rents.of(host, remaining)
    absent = (standing for name, standing in known.items() if name not in running)
    return total + sum(of_absent(standing, limits) for standing in absent)


def must_begin(standing: FixedWorth) -> bool:
    """Whether soon not even an entire GPU could meet its deadline any more."""
    return is_late(standing.task, standing.alone_ms, spare_s=RESTART_S + SOON_S)


def is_new(standing: FixedWorth, gpu: GpuId, sm_percent: float) -> bool:
    """Whether a task must be started to run there so."""
    was = standing.was
    return (
        was is None or standing.home != gpu or abs(was.sm_percent - sm_percent) > 1e-6
    )


def _weight(task: Task, limits: FillLimits) -> float:
    patience = min(1.0, task.waiting_s / limits.wait_s) if limits.wait_s > 0.0 else 1.0
    return task.priority * (0.5 + task.weight) * (1.0 + patience)


def _urgent(standing: FixedWorth) -> float:
    """1/2 to 1."""
    return (1.0 + standing.weight) / 2.0


def _alone_ms(task: Task, wanted: FillProblem, seats: Seats) -> float | None:
    """On the fastest type of the fleet; None where none can run it."""
    times = []
    for gpu in first_of_types(wanted.gpus, task):
        host = empty_host(wanted.problem, gpu)
        times += [
            host.iteration_ms(seat) for seat in seats.on(task, host) if host.fits(seat)
        ]
    return min(times, default=None)
