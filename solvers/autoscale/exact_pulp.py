"""The autoscaling program in PuLP, solved by CBC or HiGHS: independent second opinions, and the way to other solvers.

Rows are scaled so that absolute tolerances mean the same everywhere: demand in shares of λ_s, resources in shares
of their total, served weight in shares of Σ W_s · λ_s, cost in shares of the largest coefficient.
`export` writes the last level as .lp or .mps for CBC, HiGHS, Gurobi or CPLEX.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import pulp

from solvers.autoscale.greedy import solve_greedy
from solvers.autoscale.problem import AutoscaleProblem
from solvers.autoscale.program import (
    TOLERANCE,
    Counts,
    ExactAnswer,
    ScalingProgram,
    make_program,
    score,
    serves_all,
)
from solvers.highs import has_solution
from solvers.types.errors import InvalidInput
from solvers.types.outcome import Budget, SolveStatus

if TYPE_CHECKING:
    from highspy import Highs

PulpSolver = Literal["cbc", "highs"]

# Neither has a deterministic clock; the node count is the nearest thing. A small node takes CBC about 0.1 ms.
NODES_PER_WORK_UNIT = 10_000

_STATUS = {
    pulp.LpSolutionOptimal: SolveStatus.OPTIMAL,
    pulp.LpSolutionIntegerFeasible: SolveStatus.FEASIBLE,
    pulp.LpSolutionInfeasible: SolveStatus.INFEASIBLE,
    pulp.LpSolutionUnbounded: SolveStatus.FAILED,
    # CBC has "stopped" for every limit that came before the first solution.
    pulp.LpSolutionNoSolutionFound: SolveStatus.TIME_LIMIT,
}


def solve_pulp(
    program: ScalingProgram, *, start: Counts, budget: Budget, solver: PulpSolver
) -> ExactAnswer:
    """Solve the program's levels one after the other; `start` is a feasible answer that only tells which are needed."""
    formulation = _build(program, may_fall_short=not serves_all(program, start))
    best: Counts | None = None
    worst = SolveStatus.OPTIMAL
    messages: tuple[str, ...] = ()
    levels = _levels(formulation, program)
    for level in levels:
        status, message = _run(formulation, level, budget, solver)
        if status is not SolveStatus.OPTIMAL:
            worst = status
            message = message or f"ended as {status.value}"
            messages = (*messages, f"{solver}: {level.name}: {message}")
        if not status.has_solution:
            break
        best = tuple(round(variable.value()) for variable in formulation.counts)
        # Nothing comes after the last level.
        if level is not levels[-1]:
            _hold(formulation, level)
    if best is None:
        return ExactAnswer(status=worst, messages=messages)
    # PuLP passes no bound on: only a proven optimum is one.
    is_optimal = worst is SolveStatus.OPTIMAL
    return ExactAnswer(
        # An earlier level's solution counts, too.
        status=worst if worst.has_solution else SolveStatus.FEASIBLE,
        counts=best,
        bound=score(program, best).cost_usd_per_hour if is_optimal else None,
        messages=messages,
    )


def export(
    problem: AutoscaleProblem, path: Path, *, budget: Budget | None = None
) -> None:
    """Write the program's cost level to `path` as .lp or .mps.

    Where not everything can be served, the earlier levels are solved first and stand in the file as constraints.
    Raises InvalidInput for a problem out of range or another suffix.
    """
    if path.suffix not in (".lp", ".mps"):
        raise InvalidInput("path", f"must end in .lp or .mps, not {path.name!r}")
    program = make_program(problem)
    may_fall_short = not serves_all(program, solve_greedy(program))
    formulation = _build(program, may_fall_short=may_fall_short)
    *earlier, cost = _levels(formulation, program)
    for level in earlier:
        status, _ = _run(formulation, level, budget or Budget(), "cbc")
        if status.has_solution:
            _hold(formulation, level)
    formulation.problem.setObjective(cost.objective)
    if path.suffix == ".lp":
        formulation.problem.writeLP(str(path))
    else:
        formulation.problem.writeMPS(str(path))


class _Formulation(NamedTuple):
    problem: pulp.LpProblem
    counts: Sequence[pulp.LpVariable]
    launched: Sequence[pulp.LpVariable]
    shortage: Sequence[pulp.LpVariable]
    missing: Sequence[pulp.LpVariable]
    may_fall_short: bool


class _Level(NamedTuple):
    name: str
    objective: pulp.LpAffineExpression
    margin: float
    """By how much a later level may be worse on this one."""
    part: float
    """Share of the budget: a level must leave something to the next."""


def _build(program: ScalingProgram, *, may_fall_short: bool) -> _Formulation:
    options = [(option.service, option.gpu_type) for option in program.options]
    services = [(service.name,) for service in program.services]
    # Bounds of 0 instead of no variables, so that both kinds of formulation have the same rows.
    slack = 1.0 if may_fall_short else 0.0
    lacks = [slack * service.min_replicas for service in program.services]
    formulation = _Formulation(
        problem=pulp.LpProblem("autoscale", pulp.LpMinimize),
        counts=_variables("n", options, program.max_counts, pulp.LpInteger),
        launched=_variables("launched", options, [None] * len(options)),
        shortage=_variables("short", services, [slack] * len(services)),
        missing=_variables("missing", services, lacks),
        may_fall_short=may_fall_short,
    )
    _add_services(formulation, program)
    _add_limits(formulation, program)
    _add_launches(formulation, program)
    return formulation


def _variables(
    kind: str,
    owners: Sequence[tuple[str, ...]],
    bounds: Sequence[float | None],
    category: str = pulp.LpContinuous,
) -> list[pulp.LpVariable]:
    """One variable from 0 to its bound for each owner."""
    pairs = enumerate(zip(owners, bounds, strict=True))
    return [
        pulp.LpVariable(_name(kind, index, *owner), 0, bound, category)
        for index, (owner, bound) in pairs
    ]


def _add_services(formulation: _Formulation, program: ScalingProgram) -> None:
    problem = formulation.problem
    for row, (service, own) in enumerate(program.services_with_options):
        counts = [formulation.counts[index] for index in own]
        replicas = pulp.lpSum(counts)
        wanted = service.arrival_rate_rps
        if wanted > 0:
            shares = [program.options[index].capacity_rps / wanted for index in own]
            # Cut at 1: more than the entire rate serves nothing more, and the relaxation is tighter.
            served = _weighted(counts, [min(1.0, share) for share in shares])
            enough = served + formulation.shortage[row] >= 1
            problem += enough, _name("demand", row, service.name)
        if service.min_replicas > 0:
            enough = replicas + formulation.missing[row] >= service.min_replicas
            problem += enough, _name("least", row, service.name)
        if service.max_replicas is not None and own:
            allowed = replicas <= service.max_replicas
            problem += allowed, _name("most", row, service.name)


def _add_limits(formulation: _Formulation, program: ScalingProgram) -> None:
    problem = formulation.problem
    for row, limit in enumerate(program.limits):
        # Where the total is 0, every count is bounded by 0 already.
        if limit.total > 0:
            counts = [formulation.counts[index] for index, _ in limit.needs]
            needs = [need for _, need in limit.needs]
            used = _weighted(counts, needs, limit.total)
            problem += used <= 1, _name(limit.rule, row, limit.where)


def _add_launches(formulation: _Formulation, program: ScalingProgram) -> None:
    problem = formulation.problem
    for index, option in enumerate(program.options):
        enough = (
            formulation.launched[index] >= formulation.counts[index] - option.running
        )
        problem += enough, _name("launch", index, option.service, option.gpu_type)


def _levels(formulation: _Formulation, program: ScalingProgram) -> list[_Level]:
    """Shortage, missing replicas, cost; the first two only where they may differ from 0. All are minimised."""
    levels = _service_levels(formulation, program) if formulation.may_fall_short else []
    prices = [option.cost_usd_per_hour for option in program.options]
    largest = max([*prices, *program.launch_cost], default=1.0)
    cost = _weighted(formulation.counts, prices, largest)
    cost += _weighted(formulation.launched, program.launch_cost, largest)
    return [*levels, _Level("cost", cost, 0.0, 1.0)]


def _service_levels(formulation: _Formulation, program: ScalingProgram) -> list[_Level]:
    weights = program.weights
    priorities = [service.priority for service in program.services]
    shortage = _weighted(formulation.shortage, weights, sum(weights))
    missing = _weighted(formulation.missing, priorities, max(priorities))
    # Half of what is left of the budget for each: the cost, which comes last, gets all that they leave.
    return [
        _Level("shortage", shortage, TOLERANCE, 0.5),
        _Level("missing", missing, TOLERANCE, 0.5),
    ]


def _weighted(
    variables: Sequence[pulp.LpVariable], weights: Sequence[float], unit: float = 1.0
) -> pulp.LpAffineExpression:
    # Where all weights are 0 their unit is, too, and the level costs nothing whatever the unit.
    pairs = zip(variables, weights, strict=True)
    return pulp.LpAffineExpression(
        [(variable, weight / (unit or 1.0)) for variable, weight in pairs]
    )


def _hold(formulation: _Formulation, level: _Level) -> None:
    """Keep a level that was just solved at its value."""
    best = pulp.value(level.objective)
    formulation.problem.addConstraint(
        level.objective <= best + level.margin, f"hold_{level.name}"
    )


def _run(
    formulation: _Formulation, level: _Level, budget: Budget, name: PulpSolver
) -> tuple[SolveStatus, str]:
    """Minimise one level over the formulation as it stands; the status, and the solver's complaint if it failed."""
    formulation.problem.setObjective(level.objective)
    seconds = level.part * budget.remaining_s()
    limit_s = seconds if math.isfinite(seconds) else None
    nodes = max(1, round(level.part * budget.work * NODES_PER_WORK_UNIT))
    make = _cbc if name == "cbc" else _highs
    try:
        formulation.problem.solve(make(limit_s, nodes, budget.seed % (1 << 31)))
    # CBC reads and writes files, which a full or read-only disk refuses.
    except (pulp.PulpSolverError, OSError) as error:
        return SolveStatus.FAILED, str(error)
    except KeyError:
        # PuLP has no word for some ends of HiGHS, as that at the limit on nodes; the values are in place by then.
        status = SolveStatus.FEASIBLE
    else:
        status = _STATUS.get(formulation.problem.sol_status, SolveStatus.UNKNOWN)
    if name == "highs" and status is SolveStatus.FEASIBLE:
        return _cut_short(formulation.problem.solverModel), ""
    return status, ""


def _cut_short(program: "Highs") -> SolveStatus:
    """The status of a HiGHS that stopped before the proof: PuLP calls each of its limits a solution."""
    has = has_solution(program)
    return SolveStatus.FEASIBLE if has else SolveStatus.TIME_LIMIT


def _cbc(limit_s: float | None, nodes: int, seed: int) -> pulp.LpSolver:
    return pulp.PULP_CBC_CMD(
        msg=False,
        # No `threads`: with 1 CBC starts its parallel search with one worker, which was seen to hang on a tiny case.
        timeLimit=limit_s,
        maxNodes=nodes,
        gapRel=0.0,
        gapAbs=0.0,
        # By default CBC drops a solution that is better by less than 1e-5; and its preprocessing was seen to cut the
        # optimum off, and to call what was left optimal, when a level was held with a margin of 1e-6.
        options=[f"randomCbcSeed {seed}", "increment 1e-9", "preprocess off"],
    )


def _highs(limit_s: float | None, nodes: int, seed: int) -> pulp.LpSolver:
    return pulp.HiGHS(
        msg=False,
        threads=1,
        timeLimit=limit_s,
        gapRel=0.0,
        gapAbs=0.0,
        mip_max_nodes=nodes,
        random_seed=seed,
        # Held levels have a margin of 1e-6, which the default tolerance of 1e-6 would double.
        mip_feasibility_tolerance=1e-9,
    )


def _name(kind: str, index: int, *parts: str) -> str:
    """A name that the LP format takes; the index keeps it unique after other characters became `_`."""
    return re.sub(r"[^A-Za-z0-9_]", "_", "_".join((kind, str(index), *parts)))
