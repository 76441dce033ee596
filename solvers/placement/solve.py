"""Placement's quality chain: greedy, proven by bounds where they reach it, else CP-SAT within the budget."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from solvers.placement.bounds import lowest_peak, max_value, min_gpus
from solvers.placement.greedy import place_as_printed, place_greedily
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

if TYPE_CHECKING:
    from solvers.placement.exact import SolveLimits

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
    def price_usd_per_hour(self) -> float:
        return len(self.groups) * self.packing.stock.price_usd_per_hour

    @property
    def price_bound_usd_per_hour(self) -> float:
        return self.gpus_bound * self.packing.stock.price_usd_per_hour

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

    A placement always exists; with `is_worst_fit` it is worst fit as printed, and nothing is improved. Status
    OPTIMAL when value and price are proven (evenness is a tie-break and may stay unproven, which a message says),
    else FEASIBLE. Objective and bound are the price of the used GPUs in USD/h. The budget's work is shared by the
    GPU types that the bounds leave open.
    """
    started = budget.elapsed()
    if problem.is_worst_fit:
        printed = [
            _printed_answer(packing, problem.order) for packing in split(problem)
        ]
        solution = _solution(problem, printed)
        return solution, _report(solution, printed, seconds=budget.elapsed() - started)
    greedy = [_greedy_answer(packing, problem.order) for packing in split(problem)]
    open_types = sum(not answer.is_proven for answer in greedy)
    shared = replace(budget, work=budget.work / max(1, open_types))
    answers = [_evened(_improved(answer, shared), shared) for answer in greedy]
    solution = _solution(problem, answers)
    # No answer of a solver is trusted unchecked: the greedy's stands instead, and the report says why.
    if wrong := broken_rules(problem, solution.gpus):
        solution = _solution(problem, greedy)
        answers = [replace(one, messages=wrong) for one in greedy]
    return solution, _report(solution, answers, seconds=budget.elapsed() - started)


def _printed_answer(packing: TypePacking, order: Sequence[str]) -> _Answer:
    """What spreads replicas is not meant to be cheap: its bounds are those that no placement can miss."""
    return _Answer(
        packing=packing,
        groups=place_as_printed(packing, order),
        value_bound=max_value(packing),
        gpus_bound=1,
        method="worst fit",
    )


def _greedy_answer(packing: TypePacking, order: Sequence[str]) -> _Answer:
    groups = place_greedily(packing, order)
    if has_all(packing, groups):
        value_bound = score(packing, groups).value
        gpus_bound = min_gpus(packing)
    else:
        value_bound = max_value(packing)
        gpus_bound = 1
    return _Answer(
        packing=packing, groups=groups, value_bound=value_bound, gpus_bound=gpus_bound
    )


def _improved(answer: _Answer, budget: Budget) -> _Answer:
    name = answer.packing.stock.gpu_type
    if answer.is_proven:
        return answer
    if budget.remaining_s() <= 0.0:
        return replace(answer, messages=(f"{name}: no time left for CP-SAT",))
    # Imports ortools, about 1 s: only where a search is needed.
    from solvers.placement.exact import place_better

    better = place_better(answer.packing, answer.groups, _limits(budget))
    improved = replace(
        answer,
        groups=better.groups,
        value_bound=better.value_bound,
        gpus_bound=better.gpus_bound,
        method="greedy" if better.groups == answer.groups else "cp-sat",
    )
    if better.status is SolveStatus.OPTIMAL:
        return improved
    message = f"{name}: CP-SAT ended with {better.status} before the proof"
    return replace(improved, messages=(message,))


def _limits(budget: Budget, *, part: float = 1.0) -> "SolveLimits":
    """What is left of the time, and a part of the work."""
    from solvers.placement.exact import SolveLimits

    return SolveLimits(
        seconds=budget.remaining_s(),
        work=budget.work * part,
        seed=budget.seed,
        threads=budget.threads,
    )


def _evened(answer: _Answer, budget: Budget) -> _Answer:
    """The answer with a lower peak SM percent, by moves and swaps; then by CP-SAT, unless price is still open."""
    packing = answer.packing
    groups = even_out(answer.packing, answer.groups)
    min_peak = lowest_peak(packing, len(groups)) if has_all(packing, groups) else 0
    # Evenness of a placement that costs too much is not worth a search.
    if (
        peak(packing, groups) <= min_peak
        or not answer.is_proven
        or budget.remaining_s() <= 0.0
    ):
        return replace(answer, groups=groups)
    from solvers.placement.exact import place_more_evenly

    limits = _limits(budget, part=EVENNESS_WORK)
    groups, status = place_more_evenly(packing, groups, limits)
    messages = answer.messages
    if status is not SolveStatus.OPTIMAL:
        messages += (f"{packing.stock.gpu_type}: evenness is not proven",)
    return replace(answer, groups=groups, messages=messages)


def _solution(
    problem: PlacementProblem,
    answers: Sequence[_Answer],
) -> PlacementSolution:
    gpus = tuple(_used_gpus(answers))
    return PlacementSolution(
        gpus=gpus,
        unplaced=tuple(_unplaced(problem, gpus)),
        placed_value=sum(map(_value, answers)),
        placed_value_bound=sum(map(_value_bound, answers)),
        price_usd_per_hour=sum(answer.price_usd_per_hour for answer in answers),
        price_bound_usd_per_hour=sum(
            answer.price_bound_usd_per_hour for answer in answers
        ),
    )


def _unplaced(
    problem: PlacementProblem, gpus: Iterable[PackedGpu]
) -> Iterator[Unplaced]:
    placed = {name for gpu in gpus for name in gpu.replicas}
    stocks = {stock.gpu_type: stock for stock in problem.gpus}
    for one in sorted(problem.replicas, key=lambda one: one.name):
        if one.name not in placed:
            reason = why_left_out(one, stocks.get(one.gpu_type))
            yield Unplaced(replica=one.name, reason=reason)


def _report(
    solution: PlacementSolution, answers: Sequence[_Answer], *, seconds: float
) -> SolveReport:
    methods = [answer.method for answer in answers]
    method = "cp-sat" if "cp-sat" in methods else methods[0] if methods else "greedy"
    is_proven = all(answer.is_proven for answer in answers)
    return SolveReport(
        technique="placement",
        method=method,
        status=SolveStatus.OPTIMAL if is_proven else SolveStatus.FEASIBLE,
        objective=solution.price_usd_per_hour,
        bound=solution.price_bound_usd_per_hour,
        seconds=seconds,
        messages=tuple(message for answer in answers for message in answer.messages),
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
    # The rounding of units may take the bound beyond all that there is.
    everything = sum(replica.value for replica in packing.replicas)
    return min(
        everything, answer.value_bound * packing.value_unit + packing.value_rounding
    )
