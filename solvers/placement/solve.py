"""Placement's quality chain: greedy, proven by bounds where they reach it, else CP-SAT within the budget."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from solvers.placement.bounds import lowest_peak, max_value, min_gpus
from solvers.placement.greedy import place_greedily
from solvers.placement.integer_problem import (
    Groups,
    TypePacking,
    has_all,
    peak,
    score,
    split,
)
from solvers.placement.load_balance import even_out
from solvers.placement.problem import (
    PackedGpu,
    PlacementProblem,
    PlacementSolution,
    Unplaced,
    broken_rules,
    why_left_out,
)
from solvers.types.outcome import Budget, SolveReport, SolveStatus

EVENNESS_WORK = 0.02
"""Part of the budget's work for the tie-break: evenness never delays a plan noticeably."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """One GPU type's placement and what is proven about it."""

    packing: TypePacking
    groups: Groups
    value_bound: int
    gpus_bound: int
    method: str = "greedy"
    messages: tuple[str, ...] = ()

    @property
    def is_proven(self) -> bool:
        return (
            score(self.packing, self.groups).value == self.value_bound
            and len(self.groups) == self.gpus_bound
        )


def solve(
    problem: PlacementProblem, budget: Budget
) -> tuple[PlacementSolution, SolveReport]:
    """Most placed value, then least price, then most even; what cannot be placed is listed with its reason.

    A placement always exists. Status OPTIMAL when value and price are proven (evenness is a tie-break and may stay
    unproven, which a message says), else FEASIBLE. Objective and bound are the price of the used GPUs in USD/h. The
    budget's work is shared by the GPU types that the bounds leave open.
    """
    started = budget.elapsed()
    greedy = [_greedy_answer(packing, problem.order) for packing in split(problem)]
    open_types = sum(not answer.is_proven for answer in greedy)
    shared = replace(budget, work=budget.work / max(1, open_types))
    answers = [_evened(_improved(answer, shared), shared) for answer in greedy]
    solution = _solution(problem, answers)
    wrong = broken_rules(problem, solution.gpus)
    if wrong:
        solution, answers = (
            _solution(problem, greedy),
            [replace(one, messages=wrong) for one in greedy],
        )
    report = SolveReport(
        technique="placement",
        method="cp-sat"
        if any(answer.method == "cp-sat" for answer in answers)
        else "greedy",
        status=SolveStatus.OPTIMAL
        if all(answer.is_proven for answer in answers)
        else SolveStatus.FEASIBLE,
        objective=solution.price_usd_per_hour,
        bound=solution.price_bound_usd_per_hour,
        seconds=budget.elapsed() - started,
        messages=tuple(message for answer in answers for message in answer.messages),
    )
    return solution, report


def _greedy_answer(packing: TypePacking, order: Sequence[str]) -> _Answer:
    groups = place_greedily(packing, order)
    if has_all(packing, groups):
        value_bound, gpus_bound = score(packing, groups).value, min_gpus(packing)
    else:
        value_bound, gpus_bound = max_value(packing), 1
    return _Answer(
        packing=packing, groups=groups, value_bound=value_bound, gpus_bound=gpus_bound
    )


def _improved(answer: _Answer, budget: Budget) -> _Answer:
    name = answer.packing.stock.gpu_type
    if answer.is_proven:
        return answer
    if budget.remaining_s() <= 0.0:
        return replace(answer, messages=(f"{name}: no time left for CP-SAT",))
    from solvers.placement.exact import (
        SolveLimits,  # Imports ortools: only where a search is needed.
        place_better,
    )

    limits = SolveLimits(
        seconds=budget.remaining_s(),
        work=budget.work,
        seed=budget.seed,
        threads=budget.threads,
    )
    better = place_better(answer.packing, answer.groups, limits)
    improved = replace(
        answer,
        groups=better.groups,
        value_bound=better.value_bound,
        gpus_bound=better.gpus_bound,
        method="greedy" if better.groups == answer.groups else "cp-sat",
    )
    if better.status is SolveStatus.OPTIMAL:
        return improved
    return replace(
        improved,
        messages=(f"{name}: CP-SAT ended with {better.status} before the proof",),
    )


def _evened(answer: _Answer, budget: Budget) -> _Answer:
    """The answer with a lower peak SM percent, by moves and swaps; then by CP-SAT, unless price is still open."""
    packing, groups = answer.packing, even_out(answer.packing, answer.groups)
    least = lowest_peak(packing, len(groups)) if has_all(packing, groups) else 0
    if (
        peak(packing, groups) <= least
        or not answer.is_proven
        or budget.remaining_s() <= 0.0
    ):
        return replace(answer, groups=groups)
    from solvers.placement.exact import (
        SolveLimits,  # As above.
        place_more_evenly,
    )

    work = budget.work * EVENNESS_WORK
    limits = SolveLimits(
        seconds=budget.remaining_s(),
        work=work,
        seed=budget.seed,
        threads=budget.threads,
    )
    evened, status = place_more_evenly(packing, groups, limits)
    if status is SolveStatus.OPTIMAL:
        return replace(answer, groups=evened)
    return replace(
        answer,
        groups=evened,
        messages=(
            *answer.messages,
            f"{packing.stock.gpu_type}: evenness is not proven",
        ),
    )


def _solution(
    problem: PlacementProblem, answers: Sequence[_Answer]
) -> PlacementSolution:
    gpus = tuple(_used_gpus(answers))
    placed = {name for gpu in gpus for name in gpu.replicas}
    stocks = {stock.gpu_type: stock for stock in problem.gpus}
    left_out = sorted(
        (one for one in problem.replicas if one.name not in placed),
        key=lambda one: one.name,
    )
    return PlacementSolution(
        gpus=gpus,
        unplaced=tuple(
            Unplaced(
                replica=one.name, reason=why_left_out(one, stocks.get(one.gpu_type))
            )
            for one in left_out
        ),
        placed_value=sum(_value(answer) for answer in answers),
        placed_value_bound=sum(_value_bound(answer) for answer in answers),
        price_usd_per_hour=sum(
            len(a.groups) * a.packing.stock.price_usd_per_hour for a in answers
        ),
        price_bound_usd_per_hour=sum(
            a.gpus_bound * a.packing.stock.price_usd_per_hour for a in answers
        ),
    )


def _used_gpus(answers: Iterable[_Answer]) -> Iterable[PackedGpu]:
    for answer in answers:
        for group in answer.groups:
            names = tuple(answer.packing.replicas[index].name for index in group)
            yield PackedGpu(gpu_type=answer.packing.stock.gpu_type, replicas=names)


def _value(answer: _Answer) -> float:
    return sum(
        answer.packing.replicas[index].value
        for group in answer.groups
        for index in group
    )


def _value_bound(answer: _Answer) -> float:
    """The bound in true values; equal to the placed value where that is proven the most, to a millionth."""
    packing = answer.packing
    if score(packing, answer.groups).value == answer.value_bound:
        return _value(answer)
    everything = sum(replica.value for replica in packing.replicas)
    return min(
        everything, answer.value_bound * packing.value_unit + packing.value_rounding
    )
