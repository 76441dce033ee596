"""Fill by a small integer program: which tasks share which host, for most weighted progress at least cost.

Sets and parameters
    t ∈ T           tasks, with the worth a_t ≤ 0 of not running (`worth.of_absent`)
    h ∈ H           hosts: GPUs with replicas, GPUs on which tasks run alone, and as many idle ones as may be opened
    p ∈ P_h         mixes of a host: at most `max_tasks_per_gpu` tasks with their shares, which fit with the replicas
                    with every promise kept; of each set of tasks the best shares (`mixes`); v_p its worth: weighted
                    progress, deadlines, restarts, and the rent of GPUs on which no replica runs (`worth`)
    w_p, W          watts of a mix; what a power budget leaves over (none: infinite)

Variables           x_p ∈ {0, 1}: the host runs that mix

    max  Σ_p (v_p − Σ_{t ∈ p} a_t) x_p
         Σ_{p ∈ P_h} x_p ≤ 1        every host
         Σ_{p ∋ t} x_p ≤ 1          every task
         Σ_p w_p x_p ≤ W            where there is a power budget

GPUs that get tasks run at their top clock (`with_top_clocks`), their replicas at the batches that leave most room
next to them (`with_roomy_batches`); the others are set as the bound plan has them.

What runs goes on where it is, unless it moves to a pace GAIN times as high, is saved from missing its deadline, or
frees a GPU that no replica uses at KEEPS of its pace or more (`offers`); to start it again costs, and to put it out.
An idle GPU is opened only for a task that has waited `wait_s`, or that must begin now, or move, for its deadline;
others may share it. So no task starves while there is an idle GPU, and none is paid for who can wait: deadlines are met
on left-overs as far as these go, and on paid GPUs for the rest.

Beyond MAX_TASKS or MAX_HOSTS, and where the program finds nothing better, the greedy's filling stands, so that this
one is never worth less. What the program leaves without a place gets the greedy's best left-over.

Sources: Mudi (EuroSys 2025) for tasks next to replicas, as in `problem`; Gilmore and Gomory 1961 for mixes as columns,
all of them at hand here, since three tasks make few sets.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from solvers.backfill import greedy
from solvers.backfill.hosts import Host
from solvers.backfill.mixes import Mix, TaskOption, mixes
from solvers.backfill.offers import Offers
from solvers.backfill.problem import FillLimits, FillProblem
from solvers.backfill.replica_settings import with_roomy_batches, with_top_clocks
from solvers.backfill.residents import bound_task
from solvers.backfill.worth import Rents, is_new, of_absent, of_filling
from solvers.types.plan import BoundGpu, BoundPlan, BoundTask
from solvers.types.state import GpuId

MAX_TASKS, MAX_HOSTS = 48, 48
"""With more of them a tick would notice."""
MOVE_S = 15.0
"""Longer than most bursts of load that put a task out; to start it elsewhere takes about as long."""
_NODES = 2_000
"""Limit to the search for integer mixes, nearly all of which ends at its root."""
_MIN_GAIN = 1e-9
"""Worth by which the program's filling must beat the greedy's: less is rounding, and would move tasks for nothing."""
_SLACK = 1e-9
"""Sums of watts may exceed a budget by this share: it is rounding."""


def fill(wanted: FillProblem, limits: FillLimits | None = None) -> tuple[BoundGpu, ...]:
    """The bound plan's GPUs with their tasks, and idle ones that tasks were given, by id; who is nowhere waits.

    limits: by default a task looks for another place after MOVE_S swapped out. The order of the items changes nothing.
    Raises InvalidInput for a replica without a service or row.
    """
    limits = limits or FillLimits(move_s=MOVE_S)
    # Clocks first: the room that a batch leaves depends on them.
    prepared = with_roomy_batches(with_top_clocks(wanted))
    return _settled(wanted, _filled(prepared, limits))


def _settled(wanted: FillProblem, filled: Sequence[BoundGpu]) -> tuple[BoundGpu, ...]:
    """What was filled; GPUs without a running task as the bound plan has them."""
    own = {gpu.id: gpu for gpu in wanted.bound.gpus if gpu.replicas}

    def settled(gpu: BoundGpu) -> BoundGpu:
        # A higher clock or another batch is for the sake of tasks: without one it would cost watts or a restart.
        if gpu.id not in own or any(task.is_resident for task in gpu.tasks):
            return gpu
        return replace(own[gpu.id], tasks=gpu.tasks)

    return tuple(map(settled, filled))


def _filled(wanted: FillProblem, limits: FillLimits) -> tuple[BoundGpu, ...]:
    basis = greedy.fill(wanted, limits)
    if not wanted.tasks:
        return basis
    filling = FillProgram(wanted, limits)
    # The greedy ignores the power budget, so its filling is trimmed before it is compared.
    basis = filling.within_budget(basis)
    if len(wanted.tasks) > MAX_TASKS or len(filling.offers.hosts) > MAX_HOSTS:
        return basis
    found = filling.within_budget(filling.solved(basis))
    return found if filling.worth(found) > filling.worth(basis) + _MIN_GAIN else basis


class FillProgram:
    """What one filling is made of and judged by."""

    def __init__(self, wanted: FillProblem, limits: FillLimits) -> None:
        self._wanted, self._limits = wanted, limits
        self.offers = Offers(wanted, limits)
        self._rents = Rents(wanted, self.offers.known)

    def worth(self, gpus: Sequence[BoundGpu]) -> float:
        """What a filling is worth, as `solvers.backfill.worth` counts it."""
        hosts = [self.offers.host(gpu) for gpu in gpus if gpu.tasks]
        return of_filling(hosts, self.offers.known, self._rents, self._limits)

    def solved(self, basis: Sequence[BoundGpu]) -> tuple[BoundGpu, ...]:
        """The program's mixes, with the seats of another filling to choose from too.

        The greedy, to which they are what runs, sees to the others, without their deadlines.
        """
        hosts = [*self.offers.hosts.values(), *self.offers.idle()]
        options = self.offers.options(hosts, basis)
        candidates = [
            _Candidate(host, mix, self._value(mix))
            for host in hosts
            for mix in self._mixes(host, options[host.gpu.id])
        ]
        running = self._in_force(_choose(candidates, self._left_w()))
        # Deadlines are part of the worth already: the greedy must not move for them what the program has placed.
        tasks = [replace(task, due_in_s=None) for task in self._wanted.tasks]
        following = replace(self._wanted, running=running, tasks=tasks)
        return greedy.fill(following, self._limits)

    def within_budget(self, gpus: tuple[BoundGpu, ...]) -> tuple[BoundGpu, ...]:
        """The filling without tasks for which a power budget has no watts, those of least weight first.

        Of equal weight those that run stay; one that ran there is swapped out, and comes back when there are watts.
        """
        left_w = self._left_w()
        if np.isinf(left_w):
            return gpus
        kept = self._within_watts([self.offers.host(gpu) for gpu in gpus], left_w)
        trimmed = (
            replace(gpu, tasks=tuple(self._without_watts(gpu, kept[gpu.id])))
            for gpu in gpus
        )
        return tuple(gpu for gpu in trimmed if gpu.replicas or gpu.tasks)

    def _within_watts(
        self,
        hosts: Sequence[Host],
        left_w: float,
    ) -> defaultdict[GpuId, list[BoundTask]]:
        """The tasks of each host for which there are watts, by precedence."""
        seated = [
            (host, bound, seat) for host in hosts for bound, seat in host.residents
        ]
        seated.sort(key=lambda each: self._precedence(each[0].gpu.id, each[1]))
        kept = defaultdict[GpuId, list[BoundTask]](list)
        for host, bound, seat in seated:
            # The first task on a GPU without replicas keeps it from being switched off, and so pays its idle watts.
            is_first = not host.replicas and not kept[host.gpu.id]
            watts = seat.row.power_w + (host.gpu_type.idle_w if is_first else 0.0)
            if watts <= left_w:
                left_w -= watts
                kept[host.gpu.id].append(bound)
        return kept

    def _precedence(self, key: GpuId, bound: BoundTask) -> tuple[float, bool, str]:
        standing = self.offers.known[bound.name]
        return -standing.weight, not self._ran(key, bound), bound.name

    def _ran(self, key: GpuId, bound: BoundTask) -> bool:
        return not is_new(self.offers.known[bound.name], key, bound.sm_percent)

    def _without_watts(
        self,
        gpu: BoundGpu,
        kept: Sequence[BoundTask],
    ) -> Iterator[BoundTask]:
        for task in gpu.tasks:
            if not task.is_resident or task in kept:
                yield task
            # Swapped out only next to replicas and where it ran: any other task goes back to waiting.
            elif gpu.replicas and self._ran(gpu.id, task):
                yield replace(task, is_resident=False)

    def _left_w(self) -> float:
        """Watts that a power budget leaves to tasks; infinite without one."""
        budget_w = self._wanted.problem.power_budget_w
        if budget_w is None:
            return np.inf
        busy = (host for host in self.offers.hosts.values() if host.replicas)
        drawn_w = sum(
            host.gpu_type.idle_w + sum(seat.row.power_w for seat in host.replicas)
            for host in busy
        )
        return max(0.0, budget_w * (1.0 + _SLACK) - drawn_w)

    def _mixes(self, host: Host, options: Sequence[Sequence[TaskOption]]) -> list[Mix]:
        """A host's mixes; of an idle one those with a task for which it may be opened."""
        is_frugal = self._wanted.problem.power_budget_w is not None
        max_tasks = self._limits.max_tasks_per_gpu
        found = mixes(
            host,
            options,
            self._rents,
            max_tasks=max_tasks,
            is_frugal=is_frugal,
        )
        if host.gpu.id in self.offers.hosts:
            return list(found)
        return [mix for mix in found if not self.offers.openers.isdisjoint(mix.names)]

    def _value(self, mix: Mix) -> float:
        # Relative to the worth of the absent tasks, which counts where the program leaves them out.
        return mix.worth - sum(
            of_absent(option.standing, self._limits) for option in mix.options
        )

    def _in_force(self, chosen: Sequence["_Candidate"]) -> BoundPlan:
        """The chosen mixes as a plan in force; tasks that are in none of them are swapped out where they were."""
        before = self._wanted.running or replace(self._wanted.bound, gpus=())
        taken = {name for each in chosen for name in each.mix.names}
        gpus = {gpu.id: _swapped_out(gpu, taken) for gpu in before.gpus}
        for host, mix, _ in chosen:
            key = host.gpu.id
            kept = gpus[key].tasks if key in gpus else ()
            tasks = (*map(_bound, mix.options), *kept)
            gpus[key] = replace(host.gpu, tasks=tasks)
        return replace(before, gpus=tuple(gpus[key] for key in sorted(gpus)))


class _Candidate(NamedTuple):
    """A column of the program."""

    host: Host
    mix: Mix
    value: float
    """v_p − Σ a_t."""


def _swapped_out(gpu: BoundGpu, taken: Collection[str]) -> BoundGpu:
    """The GPU with its tasks swapped out, without those that have a place."""
    tasks = (task for task in gpu.tasks if task.name not in taken)
    return replace(gpu, tasks=tuple(replace(task, is_resident=False) for task in tasks))


def _bound(option: TaskOption) -> BoundTask:
    """As it was where it goes on, so that nothing changes in its plan."""
    was = option.standing.was
    if option.is_new or was is None:
        return bound_task(option.standing.task, option.seat)
    return replace(was, is_resident=True)


def _choose(candidates: Sequence[_Candidate], left_w: float) -> list[_Candidate]:
    """The best mixes: one per host and task, within the watts; none where the search finds nothing."""
    # No optimum needs a mix that is worth no more than its tasks' absence, and fewer columns solve faster.
    worthy = [each for each in candidates if each.value > 0.0]
    if not worthy:
        return []
    found = milp(
        -np.array([each.value for each in worthy]),
        integrality=np.ones(len(worthy), dtype=np.int64),
        bounds=Bounds(0.0, 1.0),
        constraints=_constraints(worthy, left_w),
        # Nodes, not seconds: the same filling on every machine.
        options={"node_limit": _NODES, "mip_rel_gap": 0.0},
    )
    if found.x is None:
        return []
    return [worthy[at] for at in np.flatnonzero(np.round(found.x) > 0.0).tolist()]


def _constraints(
    candidates: Sequence[_Candidate], left_w: float
) -> list[LinearConstraint]:
    limits = [_at_most_one(candidates)]
    if np.isfinite(left_w):
        watts = np.array([[each.mix.watts for each in candidates]])
        limits.append(LinearConstraint(watts, ub=left_w))
    return limits


def _at_most_one(candidates: Sequence[_Candidate]) -> LinearConstraint:
    """One mix per host and per task."""
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for column, (host, mix, _) in enumerate(candidates):
        for row in (("host", host.gpu.id), *(("task", name) for name in mix.names)):
            rows[row].append(column)
    return LinearConstraint(_incidence(list(rows.values()), len(candidates)), ub=1.0)


def _incidence(rows: Sequence[Sequence[int]], columns: int) -> csr_matrix:
    index = np.concatenate([np.array(row) for row in rows])
    starts = np.cumsum([0, *map(len, rows)])
    return csr_matrix((np.ones(len(index)), index, starts), shape=(len(rows), columns))
