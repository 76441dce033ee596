"""Survivors: what a plan still carries when one GPU or one node is lost.

Capacities are those that the contract's laws give each replica by its neighbours; the loss of a GPU changes nothing
for the others, since neighbours are on one GPU. So what is left of a service after a loss is its capacity less that of
the lost replicas, and it falls short by what its arrival rate exceeds that. Requests are taken to move to the
survivors, as the router does.

Complexity: O(replicas) to gather, one (GPUs, services) array to judge.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solvers.laws.colocation import beside
from solvers.laws.operating_rows import OperatingRows
from solvers.types.plan import BoundPlan, GpuPlan, Plan, anonymous
from solvers.types.problem import Problem

Reals = npt.NDArray[np.float64]

_ROUNDING = 1e-6
"""A shortage below this share of the rate is rounding, as in the contract."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """What one service lacks after a loss."""

    service: str
    rate_rps: float
    """What no survivor can carry."""
    share: float
    """The same as a share of the arrival rate, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One GPU or one node that is gone."""

    name: str
    """Id of the GPU or the node; of an anonymous plan the position of the GPU's entry, `gpus[3]`."""
    gpus: int
    shortfalls: tuple[Shortfall, ...]
    """Services that fall short, the largest share first; never empty."""
    weight: float
    """Σ priority · rps that is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivors:
    """Every single loss that does harm, the worst first."""

    gpu_losses: tuple[Loss, ...]
    node_losses: tuple[Loss, ...]
    gpus: int
    """GPUs that were looked at."""
    nodes: int
    short_already: tuple[Shortfall, ...]
    """What the plan lacks before any loss; it is not counted against the losses."""


def survivors(problem: Problem, plan: Plan | BoundPlan) -> Survivors:
    """What breaks when one GPU is lost and, for a plan with identities, when one node is lost.

    Equal GPUs of an anonymous plan count as one: losing any of them does the same. Raises InvalidInput when the plan
    names a service, GPU type or row that the problem lacks.
    """
    names, nodes = _identities(plan)
    plan = anonymous(plan) if isinstance(plan, BoundPlan) else plan
    counts = np.array([float(gpu.count) for gpu in plan.gpus])
    carried = _carried(problem, plan)
    judge = _Judge(problem, counts @ carried)
    by_node, node_names, sizes = _by_node(carried, nodes)
    return Survivors(
        gpu_losses=judge.losses(names, carried, np.ones(len(names), np.int64)),
        node_losses=judge.losses(node_names, by_node, sizes),
        gpus=int(counts.sum()),
        nodes=len(node_names),
        short_already=judge.short_already(),
    )


def _identities(plan: Plan | BoundPlan) -> tuple[list[str], list[str]]:
    """Names of the GPUs and of their nodes; an anonymous plan has no nodes."""
    if not isinstance(plan, BoundPlan):
        return [f"gpus[{at}]" for at in range(len(plan.gpus))], []
    # In the order of ids, which is that of the anonymous plan's entries.
    used = (gpu for gpu in plan.gpus if gpu.replicas)
    gpus = sorted(used, key=lambda gpu: gpu.id)
    return [str(gpu.id) for gpu in gpus], [str(gpu.node) for gpu in gpus]


def _carried(problem: Problem, plan: Plan) -> Reals:
    """(GPU entries, S) rps that one GPU of each entry can carry of each service."""
    rows = OperatingRows(problem)
    carried = np.zeros((len(plan.gpus), len(problem.services)))
    # The GPUs of a large fleet run few different sets of replicas, and the laws take long for each.
    known: dict[tuple[object, ...], Reals] = {}
    for at, gpu in enumerate(plan.gpus):
        key = (
            gpu.gpu_type,
            gpu.clock_mhz,
            *((one.service, one.sm_percent, one.batch) for one in gpu.replicas),
        )
        if key not in known:
            known[key] = _carried_by(problem, rows, gpu)
        carried[at] = known[key]
    return carried


def _carried_by(problem: Problem, rows: OperatingRows, gpu: GpuPlan) -> Reals:
    """(S,) rps that one such GPU can carry."""
    number = {service.name: at for at, service in enumerate(problem.services)}
    carried = np.zeros(len(problem.services))
    gpu_type = problem.gpu_type(gpu.gpu_type)
    seats = [(each.service, rows.row_of(gpu, each)) for each in gpu.replicas]
    for position, (service, _) in enumerate(seats):
        found = beside(problem, gpu_type, seats, position)
        carried[number[service]] += found.capacity_rps
    return carried


def _by_node(
    carried: Reals,
    nodes: Sequence[str],
) -> tuple[Reals, list[str], npt.NDArray[np.int64]]:
    """(nodes, S) what each node carries, the nodes' names, and how many GPUs of each carry anything."""
    names = sorted(set(nodes))
    at = {name: number for number, name in enumerate(names)}
    position = np.array([at[name] for name in nodes], np.int64)
    # An anonymous plan has GPUs but no nodes; `position` is empty then.
    total = np.zeros((len(names), carried.shape[1]))
    np.add.at(total, position, carried[: len(position)])
    return total, names, np.bincount(position, minlength=len(names))


class _Judge:
    """What losses leave of a plan that carries so much of each service."""

    def __init__(self, problem: Problem, total_rps: Reals) -> None:
        self._problem, self._total = problem, total_rps
        self._rate = np.array(
            [service.arrival_rate_rps for service in problem.services]
        )
        self._priority = np.array([service.priority for service in problem.services])
        self._before = np.maximum(self._rate - total_rps, 0.0)

    def short_already(self) -> tuple[Shortfall, ...]:
        """What is short before any loss."""
        return self._shortfalls(self._before)

    def losses(
        self,
        names: Sequence[str],
        lost_rps: Reals,
        gpus: npt.NDArray[np.int64],
    ) -> tuple[Loss, ...]:
        """Those that do harm, the worst first; lost_rps: (L, S)."""
        short = self._added(lost_rps)
        weight = short @ self._priority
        harmful = np.flatnonzero(weight > 0.0).tolist()
        order = sorted(harmful, key=lambda at: (-weight[at], names[at]))
        return tuple(
            Loss(
                name=names[at],
                gpus=int(gpus[at]),
                shortfalls=self._shortfalls(short[at]),
                weight=float(weight[at]),
            )
            for at in order
        )

    def _added(self, lost_rps: Reals) -> Reals:
        """(L, S) what each loss adds to what was short before."""
        short: Reals = np.maximum(self._rate - (self._total - lost_rps), 0.0)
        short -= self._before
        short[short <= _ROUNDING * self._rate] = 0.0
        return short

    def _shortfalls(self, short: Reals) -> tuple[Shortfall, ...]:
        entries = [
            Shortfall(
                service=self._problem.services[at].name,
                rate_rps=float(short[at]),
                share=float(short[at] / self._rate[at]),
            )
            for at in np.flatnonzero(short > _ROUNDING * self._rate).tolist()
        ]
        return tuple(sorted(entries, key=lambda entry: (-entry.share, entry.service)))
