"""The program over covers: one cover per service, within the GPUs of each type and the sets of them that nodes have.

Sets: services s, their covers q, GPU types g, sizes k = 2, 4, 8 of sets of GPUs of one node. Parameters: C_q, the cost
of a cover with its starts and with the price of what it leaves over; G_qg, its GPUs of type g; T_qgk, the sets of k
GPUs that its replicas of k GPUs or more take; N_g and S_gk, how many there are; P_g, GPUs that are paid for anyway, and
c_g, their price. Variables: z_q, whether a cover is chosen; d_g, GPUs that need not be paid for.

    min  Σ_q C_q z_q − Σ_g c_g d_g
         Σ_{q of s} z_q = 1                    one cover per service; the empty one is a cover, too
         Σ_q G_qg z_q ≤ N_g                    stock
         Σ_q T_qgk z_q ≤ S_gk                  slots: sizes that divide each other fit into nodes exactly then
         d_g ≤ Σ_q G_qg z_q,   d_g ≤ P_g       only used GPUs are free of charge

z between 0 and 1 gives prices of GPUs and of slots; the bound at any prices is the sum of the services' own bounds plus
what all that there is costs at them. Source: ours; column generation as in Desaulniers et al. 2005.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.highs import (
    INFINITE,
    PRIMAL_SIMPLEX,
    make_program,
    solve_program,
    solve_whole,
)
from solvers.llm.planner.covers import Cover, Kind, ServiceCovers
from solvers.llm.step_law import Reals
from solvers.types.problem import Problem
from solvers.types.state import GpuType


@dataclass(frozen=True, slots=True, kw_only=True)
class Coupling:
    """One row that services share."""

    gpu_type: str
    size: int
    """1: single GPUs; more: sets of that number on one node."""
    limit: float
    is_paid: bool = False
    """Whether it counts GPUs that are paid for anyway, and not those that there are."""

    def uses(self, kind: Kind) -> float:
        """What one replica of a kind counts in this row."""
        if kind.gpu_type != self.gpu_type or kind.row.tp < self.size:
            return 0.0
        return kind.row.tp / self.size


def couplings_of(problem: Problem) -> tuple[Coupling, ...]:
    """All rows that services share."""
    found: list[Coupling] = []
    for gpu_type in problem.gpu_types:
        found.extend(_limits(gpu_type))
        if gpu_type.paid_count:
            paid = float(
                min(gpu_type.paid_count, gpu_type.count or gpu_type.paid_count)
            )
            found.append(
                Coupling(gpu_type=gpu_type.name, size=1, limit=paid, is_paid=True)
            )
    return tuple(found)


def _limits(gpu_type: GpuType) -> Iterator[Coupling]:
    if gpu_type.count is not None:
        yield Coupling(gpu_type=gpu_type.name, size=1, limit=float(gpu_type.count))
    size = 2
    while size <= gpu_type.gpus_per_node:
        slots = gpu_type.slots(size)
        if slots is not None:
            yield Coupling(gpu_type=gpu_type.name, size=size, limit=float(slots))
        size *= 2


class CoverMaster:
    """The program with the covers that it has been given."""

    def __init__(self, problem: Problem, services: Sequence[ServiceCovers]) -> None:
        """Each service has its empty cover from the beginning, so that there always is a solution."""
        self.services = services
        self.couplings = couplings_of(problem)
        self._usd = {each.name: each.price_usd_per_hour for each in problem.gpu_types}
        self._uses = [
            # Shaped by hand: lists without rows or columns would lose one of them.
            np.array(
                [each.uses(kind) for each in self.couplings for kind in own.kinds]
            ).reshape(len(self.couplings), len(own.kinds))
            for own in services
        ]
        self._columns: list[tuple[int, Cover]] = []
        self._known: set[tuple[int, tuple[tuple[int, int], ...]]] = set()
        self._program = make_program(PRIMAL_SIMPLEX)
        self._add_rows()
        self._first = self._program.getNumCol()
        for at, own in enumerate(services):
            self.add(at, own.state({}))

    def _add_rows(self) -> None:
        none = np.array([], dtype=np.int32)
        for _ in self.services:
            self._program.addRow(1.0, 1.0, 0, none, none.astype(np.float64))
        for each in self.couplings:
            low, high = (0.0, INFINITE) if each.is_paid else (-INFINITE, each.limit)
            self._program.addRow(low, high, 0, none, none.astype(np.float64))
        self._add_paid()

    def _add_paid(self) -> None:
        """The GPUs that need not be paid for: as many as are used, and no more than there are."""
        for row, each in enumerate(self.couplings):
            if each.is_paid:
                place = np.array([len(self.services) + row], dtype=np.int32)
                usd = -self._usd[each.gpu_type]
                self._program.addCol(usd, 0.0, each.limit, 1, place, np.array([-1.0]))

    def add(self, service: int, cover: Cover) -> bool:
        """Take a cover in; whether it was new."""
        key = (service, cover.counts)
        if key in self._known:
            return False
        # The same cover may be found at many prices.
        self._known.add(key)
        self._columns.append((service, cover))
        uses = self.uses(service, cover)
        rows = np.flatnonzero(uses)
        places = np.append(service, len(self.services) + rows).astype(np.int32)
        values = np.append(1.0, uses[rows])
        # With starts and with what is left over: all that tells covers apart.
        cost = self.services[service].total(cover)
        self._program.addCol(cost, 0.0, 1.0, len(places), places, values)
        return True

    def uses(self, service: int, cover: Cover) -> Reals:
        """(C,) what a cover counts in each coupling."""
        found = np.zeros(len(self.couplings))
        for kind, number in cover.counts:
            found += number * self._uses[service][:, kind]
        return found

    def solve(self) -> tuple[Reals, Reals]:
        """(S,) what each service costs, and (C,) duals of the couplings, of the program with parts of covers."""
        solve_program(self._program, "program over covers")
        duals = np.array(self._program.getSolution().row_dual)
        return duals[: len(self.services)], duals[len(self.services) :]

    def prices(self, service: int, duals: Reals) -> Reals:
        """(R,) what a replica of each kind costs beyond its own cost at these duals."""
        if not self.services[service].kinds:
            return np.zeros(0)
        return np.asarray(-(duals @ self._uses[service]))

    def bound(self, duals: Reals) -> float:
        """No choice of covers costs less, starts apart; at any duals of the right signs."""
        # Each service by itself: at given prices nothing couples them any more.
        found = sum(
            own.bound(self.prices(at, duals)) for at, own in enumerate(self.services)
        )
        for each, dual in zip(self.couplings, duals, strict=True):
            if each.is_paid:
                # A GPU that need not be paid for saves its price less what its row says.
                found += min(0.0, dual - self._usd[each.gpu_type]) * each.limit
            else:
                found += dual * each.limit
        return float(found)

    def choose(self, nodes: int, is_over: Callable[[], bool]) -> list[Cover]:
        """One cover of each service, the cheapest that are found; the program is of no further use then."""
        places = np.arange(self._first, self._program.getNumCol(), dtype=np.int32)
        self._program.setOptionValue("mip_rel_gap", _GAP)
        best: list[Cover] = [own.state({}) for own in self.services]
        # Where time was up before any whole covers were found, all are empty.
        if not solve_whole(self._program, places, nodes, is_over):
            return best
        values = np.array(self._program.getSolution().col_value)[self._first :]
        for value, (service, cover) in zip(values, self._columns, strict=True):
            # Whole up to rounding.
            if value > 0.5:
                best[service] = cover
        return best

    def room(self, covers: Sequence[Cover]) -> Reals:
        """(C,) what covers of all services leave free in each coupling."""
        limits = [math.inf if each.is_paid else each.limit for each in self.couplings]
        left: Reals = np.array(limits)
        for at, cover in enumerate(covers):
            left = left - self.uses(at, cover)
        return left


_GAP = 1e-5
"""Relative gap at which a search for whole covers ends."""
