"""The rules that a plan's report must keep: each of its figures follows from the plan and the problem alone.

Like `solvers.check`, whose tolerances and row lookup it shares, this file shares no code with the solvers.
"""

from collections.abc import Iterator

from solvers.check import RowLookup, drawn_w
from solvers.check_base import RELATIVE_TOLERANCE, broken, exceeds
from solvers.types.outcome import PlanReport, Violation
from solvers.types.plan import Plan
from solvers.types.problem import Problem, ServiceDemand

GAP_TOLERANCE_PERCENT = 1e-3
"""A gap is a quotient of two figures of 1e-6 each, times 100, with room for a report that rounds."""


def report_violations(
    problem: Problem, plan: Plan, report: PlanReport
) -> tuple[Violation, ...]:
    """Every figure of the report that the plan itself contradicts, all under the rule `report`.

    The cost (and the served weight under `max_goodput`) is recomputed; the bound must not exceed it and the gap must
    follow from both. Replicas without a row count 0 W: `violations` names them.
    """
    found = []
    cost = _cost_usd_per_hour(problem, plan)
    if not _close(report.cost_usd_per_hour, cost):
        found.append(
            _contradicted(
                "cost_usd_per_hour",
                f"{report.cost_usd_per_hour!r}, but it is {cost!r}",
            )
        )

    bound = report.lower_bound_usd_per_hour
    if bound is not None and exceeds(bound, cost):
        found.append(
            _contradicted(
                "lower_bound_usd_per_hour",
                f"{bound!r} is above the cost, {cost!r}",
            )
        )

    if problem.objective == "max_goodput":
        found.extend(_weight_violations(problem, plan, report))
    elif bound is not None and report.gap_percent is not None:
        found.extend(_gap_violations(report.gap_percent, cost - bound, bound))
    return tuple(found)


def _cost_usd_per_hour(problem: Problem, plan: Plan) -> float:
    """USD per hour of the GPUs that are paid for and of the energy that they draw at full load."""
    lookup = RowLookup(problem)
    # Under `max_goodput` the fleet is given: GPUs that the plan leaves out stand idle and cost all the same.
    pays_for_fleet = problem.objective == "max_goodput"

    total = 0.0
    for gpu_type in problem.gpu_types:
        watts = drawn_w(lookup, plan, gpu_type)
        paid = sum(gpu.count for gpu in plan.gpus if gpu.gpu_type == gpu_type.name)
        paid += sum(
            each.gpus for each in plan.llm_replicas if each.gpu_type == gpu_type.name
        )
        if pays_for_fleet and gpu_type.count is not None and gpu_type.count > paid:
            watts += (gpu_type.count - paid) * gpu_type.idle_w
            paid = gpu_type.count
        total += (
            paid * gpu_type.price_usd_per_hour
            + problem.energy_price_usd_per_kwh * watts / 1000.0
        )
    return total


def _weight_violations(
    problem: Problem, plan: Plan, report: PlanReport
) -> Iterator[Violation]:
    weight = 0.0
    for service in problem.services:
        weight += _served_weight(service, plan)
    for model in problem.llm_services:
        rates = (
            each.count * each.arrival_rate_rps
            for each in plan.llm_replicas
            if each.service == model.name
        )
        weight += model.priority * min(sum(rates), model.arrival_rate_rps)

    if report.served_weight is None or not _close(report.served_weight, weight):
        yield _contradicted(
            "served_weight",
            f"{report.served_weight!r}, but it is {weight!r}",
        )

    bound = report.served_weight_upper_bound
    if bound is None:
        return
    if exceeds(weight, bound):
        yield _contradicted(
            "served_weight_upper_bound",
            f"{bound!r} is below the weight, {weight!r}",
        )
    if report.gap_percent is not None:
        yield from _gap_violations(report.gap_percent, bound - weight, bound)


def _served_weight(service: ServiceDemand, plan: Plan) -> float:
    rates = (
        gpu.count * replica.arrival_rate_rps
        for gpu in plan.gpus
        for replica in gpu.replicas
        if replica.service == service.name
    )
    # Capacity beyond the demand serves no request, so it adds no weight.
    return service.priority * min(sum(rates), service.arrival_rate_rps)


def _gap_violations(
    gap_percent: float, distance: float, bound: float
) -> Iterator[Violation]:
    """The gap is 100 · distance / bound; where the bound is 0 only a distance of 0 has one, and it is 0."""
    expected = 100.0 * distance / bound if bound else 0.0
    # Not written as `>`, so that a gap of NaN is a violation too.
    is_close = abs(gap_percent - expected) <= GAP_TOLERANCE_PERCENT
    if bound <= 0.0 < distance or not is_close:
        yield _contradicted(
            "gap_percent",
            f"{gap_percent:g} does not follow from the bound, {bound!r}",
        )


def _contradicted(field: str, detail: str) -> Violation:
    return broken("report", f"report.{field}", detail)


def _close(value: float, expected: float) -> bool:
    return abs(value - expected) <= RELATIVE_TOLERANCE * abs(expected)
