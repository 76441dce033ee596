"""The autoscaling program in CP-SAT: the fast exact method. Importing this module loads ortools (about a second).

CP-SAT takes integers only. Rounding goes one way, so that everything that is feasible in real numbers stays so:
the integer program is a relaxation, and its bounds are proofs. And it is so small that an answer stays within the
contract's 1e-6:

* demand in units of λ_s / 2^30, a replica's capacity rounded up (and cut at λ_s: more would serve nothing more).
  A service with n replicas falls short by at most n · 2^-30 of its rate, 1e-6 at a thousand replicas.
* resources in thousandths (MiB, percent, W, cores), coarser where the sum could overflow; needs and totals rounded
  down.
* cost scaled by a power of ten so that the largest coefficient is below 1e9, rounded down.

Overflow: every sum stays below 2^60, half of an exponent below the 2^62 that CP-SAT accepts. Served weight is at most
services · (largest weight) · 2^30, so the largest weight is 2^30 / services; the cost's scale shrinks with the counts.
"""

import math
from collections.abc import Iterator, Sequence

from ortools.sat.python import cp_model

from solvers.autoscale.program import (
    TOLERANCE,
    Counts,
    ExactAnswer,
    ScalingProgram,
    score,
    serves_all,
)
from solvers.types.outcome import Budget, SolveStatus

_DEMAND_UNIT = 1 << 30
_MAX_SUM = 1 << 60
_MAX_COST = 1e9
_MAX_SCALE = 1e300
_THOUSANDTHS = 1000.0
_EARLIER_PART = 0.5
"""Each level before the cost gets this part of what is left of the budget, so that something is left for the next."""
_GUARD = 1e-6
"""Part of one unit that keeps 0.29 · 1000 = 289.99999999999994 from losing an entire one."""

_STATUS = {
    cp_model.OPTIMAL: SolveStatus.OPTIMAL,
    cp_model.FEASIBLE: SolveStatus.FEASIBLE,
    cp_model.INFEASIBLE: SolveStatus.INFEASIBLE,
    cp_model.MODEL_INVALID: SolveStatus.FAILED,
    # CP-SAT says UNKNOWN when a limit came before the first solution.
    cp_model.UNKNOWN: SolveStatus.TIME_LIMIT,
}


def solve_cp_sat(
    program: ScalingProgram, *, start: Counts, budget: Budget
) -> ExactAnswer:
    """Solve the program's levels one after the other; `start` is a feasible answer that it begins from.

    One worker, `budget.seed`, and `budget.work` units of CP-SAT's deterministic time over all levels.
    """
    return _Solve(program, start=start, budget=budget).answer()


class _Solve:
    """One formulation that is solved once per level."""

    def __init__(
        self, program: ScalingProgram, *, start: Counts, budget: Budget
    ) -> None:
        self._program = program
        self._budget = budget
        self._work_left = budget.work
        self._best = start
        self._found = False
        self._bound: float | None = None
        self._status = SolveStatus.OPTIMAL
        self._messages: list[str] = []
        self._formulation = cp_model.CpModel()
        self._counts = [
            self._formulation.new_int_var(0, max_count, f"n{i}")
            for i, max_count in enumerate(program.max_counts)
        ]
        self._add_limits()

    def answer(self) -> ExactAnswer:
        """Run the levels and decode the last solution."""
        # Where the start serves everything, levels 1 and 2 are optimal already: their variables become constants.
        may_fall_short = not serves_all(self._program, self._best)
        served = self._add_demand(may_fall_short=may_fall_short)
        missing = self._add_min_replicas(may_miss=may_fall_short)
        bound = None
        if not may_fall_short or (
            self._hold_max_served(served) and self._hold_min_missing(missing)
        ):
            bound = self._minimise_cost()
        if not self._found:
            return ExactAnswer(status=self._status, messages=tuple(self._messages))
        # An earlier level's solution counts too: it keeps every constraint.
        status = self._status if self._status.has_solution else SolveStatus.FEASIBLE
        return ExactAnswer(
            status=status,
            counts=self._best,
            bound=bound,
            messages=tuple(self._messages),
        )

    def _add_limits(self) -> None:
        max_counts = self._program.max_counts
        for limit in self._program.limits:
            max_used = sum(need * max_counts[index] for index, need in limit.needs)
            scale = min(_THOUSANDTHS, _MAX_SUM / max(1.0, max_used))
            used = sum(
                _floor(need, scale) * self._counts[index] for index, need in limit.needs
            )
            self._formulation.add(used <= _floor(min(limit.total, max_used), scale))
        for service, own in self._program.services_with_options:
            # Without options the sum is the number 0, and no constraint.
            if service.max_replicas is not None and own:
                self._formulation.add(self._replicas(own) <= service.max_replicas)

    def _replicas(self, own: Sequence[int]) -> cp_model.LinearExprT:
        return sum(self._counts[index] for index in own)

    def _add_demand(self, *, may_fall_short: bool) -> list[cp_model.LinearExprT]:
        """Per service, the share of its rate that is served, in units of 2^-30."""
        shares: list[cp_model.LinearExprT] = []
        for service, own in self._program.services_with_options:
            if service.arrival_rate_rps == 0:
                shares.append(_DEMAND_UNIT)
                continue
            served = sum(
                self._served_share(index, service.arrival_rate_rps)
                * self._counts[index]
                for index in own
            )
            if not may_fall_short:
                self._formulation.add(served >= _DEMAND_UNIT)
                shares.append(_DEMAND_UNIT)
                continue
            # An equality, so that the counts settle the share: with ≤ alone CP-SAT raises it unit by unit.
            share = self._formulation.new_int_var(
                0, _DEMAND_UNIT, f"served_{service.name}"
            )
            self._formulation.add_min_equality(share, [served, _DEMAND_UNIT])
            shares.append(share)
        return shares

    def _served_share(self, index: int, wanted_rps: float) -> int:
        """The part of a rate that one replica of the option serves, in units of 2^-30, rounded up."""
        share = min(1.0, self._program.options[index].capacity_rps / wanted_rps)
        return math.ceil(share * _DEMAND_UNIT - _GUARD)

    def _add_min_replicas(self, *, may_miss: bool) -> list[cp_model.LinearExprT]:
        """Per service, how many replicas it lacks to its `min_replicas`."""
        lacks: list[cp_model.LinearExprT] = []
        for service, own in self._program.services_with_options:
            max_lack = service.min_replicas if may_miss else 0
            lack = self._formulation.new_int_var(0, max_lack, f"missing_{service.name}")
            self._formulation.add(self._replicas(own) + lack >= service.min_replicas)
            lacks.append(lack)
        return lacks

    def _hold_max_served(self, shares: list[cp_model.LinearExprT]) -> bool:
        weights = _weights(self._program.weights)
        served = cp_model.LinearExpr.weighted_sum(shares, weights)
        self._formulation.maximize(served)
        best = self._run(part=_EARLIER_PART)
        if best is not None:
            # The margin of `serves_more`: within it, missing replicas and cost decide.
            margin = math.ceil(TOLERANCE * sum(weights) * _DEMAND_UNIT)
            self._formulation.add(served >= round(best) - margin)
        return best is not None

    def _hold_min_missing(self, lacks: list[cp_model.LinearExprT]) -> bool:
        weights = _weights([service.priority for service in self._program.services])
        missing = cp_model.LinearExpr.weighted_sum(lacks, weights)
        self._formulation.minimize(missing)
        best = self._run(part=_EARLIER_PART)
        if best is not None:
            self._formulation.add(missing <= round(best))
        return best is not None

    def _minimise_cost(self) -> float | None:
        """Level 3; returns its proven lower bound in USD per hour."""
        program = self._program
        prices = [option.cost_usd_per_hour for option in program.options]
        scale = _cost_scale([*prices, *program.launch_cost], sum(program.max_counts))
        terms = [
            _floor(price, scale) * count
            for price, count in zip(prices, self._counts, strict=True)
        ]
        self._formulation.minimize(sum([*terms, *self._launch_terms(scale)]))
        self._run(part=1.0)
        if self._bound is None:
            return None
        # The objective above counts replicas, level 3 changes; what runs is the constant between the two.
        paid_already = sum(
            option.cost_usd_per_hour * option.running for option in program.options
        )
        # Rounding may lift the bound above the cost of an answer, which no lower bound can be.
        cost = score(program, self._best).cost_usd_per_hour
        return min(self._bound / scale - paid_already, cost)

    def _launch_terms(self, scale: float) -> Iterator[cp_model.LinearExprT]:
        """The launch cost of each option that can launch a replica at a cost."""
        program = self._program
        for index, option in enumerate(program.options):
            room = program.max_counts[index] - option.running
            if room > 0 and program.launch_cost[index] > 0:
                launched = self._formulation.new_int_var(0, room, f"launched{index}")
                self._formulation.add(launched >= self._counts[index] - option.running)
                yield _floor(program.launch_cost[index], scale) * launched

    def _run(self, *, part: float) -> float | None:
        """Solve the formulation as it stands with a part of what is left of the budget.

        Returns the objective's value, or None when no solution came.
        """
        # A formulation takes one hint per variable, and the last level's solution is the better one.
        self._formulation.clear_hints()
        for variable, value in zip(self._counts, self._best, strict=True):
            self._formulation.add_hint(variable, value)
        solver = self._solver(part)
        status = _STATUS.get(solver.solve(self._formulation), SolveStatus.UNKNOWN)
        spent = solver.response_proto.deterministic_time
        # CP-SAT looks at its work clock now and then, so it may stop a little early by its own account.
        cut_by_work = spent >= 0.99 * part * self._work_left
        self._work_left = max(0.0, self._work_left - spent)
        self._formulation.clear_objective()
        self._note(status, cut_by_work=cut_by_work)
        self._bound = solver.best_objective_bound if status.has_solution else None
        if not status.has_solution:
            return None
        self._found = True
        self._best = tuple(round(solver.value(variable)) for variable in self._counts)
        return float(solver.objective_value)

    def _solver(self, part: float) -> cp_model.CpSolver:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = self._budget.seed % (1 << 31)
        solver.parameters.max_deterministic_time = part * self._work_left
        solver.parameters.max_time_in_seconds = part * self._budget.remaining_s()
        # The program is close to its linear relaxation: with all of it in the LP, 30 services are 30 times faster.
        solver.parameters.linearization_level = 2
        solver.parameters.relative_gap_limit = 0.0
        solver.parameters.absolute_gap_limit = 0.0
        # Signals belong to the process: CP-SAT would end early at Ctrl-C, and leave it at its default afterwards.
        solver.parameters.catch_sigint_signal = False
        return solver

    def _note(self, status: SolveStatus, *, cut_by_work: bool) -> None:
        """Keep the worst status of all levels, and say when the wall clock rather than the work limit cut one."""
        if status is SolveStatus.OPTIMAL:
            return
        self._status = status
        if status not in (SolveStatus.FEASIBLE, SolveStatus.TIME_LIMIT):
            self._messages.append(f"cp-sat: ended as {status.value}")
            return
        cut = (
            "the work limit"
            if cut_by_work
            else "the wall clock, so a second run may differ"
        )
        self._messages.append(f"cp-sat: stopped by {cut}")


def _floor(value: float, scale: float) -> int:
    return math.floor(value * scale + _GUARD)


def _weights(values: Sequence[float]) -> list[int]:
    """Integer weights in the same proportions; one that would vanish becomes 1."""
    largest = max(values, default=0.0)
    if largest == 0:
        return [0] * len(values)
    max_weight = _MAX_SUM // _DEMAND_UNIT // len(values)
    return [
        max(1, math.floor(value / largest * max_weight)) if value else 0
        for value in values
    ]


def _cost_scale(coefficients: Sequence[float], replicas: int) -> float:
    largest = max(coefficients, default=0.0)
    if largest == 0:
        return 1.0
    limit = min(_MAX_COST, _MAX_SUM / (2 * max(1, replicas)))
    return float(10.0 ** math.floor(math.log10(min(limit / largest, _MAX_SCALE))))
