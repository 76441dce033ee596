"""What a plan costs and what it serves, as the contract counts it."""

import math
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TypeAlias

from solvers.laws.operating_rows import SM_PERCENT_DIGITS, OperatingRows
from solvers.types.errors import InvalidInput
from solvers.types.llm import LlmReplicaPlan, LlmRow
from solvers.types.outcome import PlanReport, Prices, SolveReport
from solvers.types.plan import (
    GpuPlan,
    Plan,
    ReplicaPlan,
    replica_counts,
    served_rates_rps,
    used_gpus,
)
from solvers.types.problem import Problem
from solvers.types.state import GpuType

_Processes: TypeAlias = tuple[tuple[str, str, float], ...]

_ORDINARY = (0.01, 1000.0)
"""USD per hour between which the largest price is left as it is: tolerances of solvers and rounding are made for it."""
_IN_USD = frozenset({"autoscale", "placement", "llm"})
"""Techniques whose reports state money; of `joint` only those under `min_cost` do."""


def cost_usd_per_hour(problem: Problem, plan: Plan) -> float:
    """Price and energy of the GPUs that are paid for because of the plan; migration cost is apart.

    Under `min_cost` these are the GPUs that carry a replica, of which the first `paid_count` of each type cost their
    energy only; under `max_goodput` all `count` of every type, where one without a replica draws its idle watts. Raises
    InvalidInput when the plan names a service, GPU type or row that the problem lacks.
    """
    rows = OperatingRows(problem)
    used = math.fsum(
        gpu.count
        * _gpu_usd_per_hour(
            problem, _gpu_type(problem, gpu), _power_w(problem, gpu, rows)
        )
        for gpu in plan.gpus
    )
    used += math.fsum(_llm_usd_per_hour(problem, each) for each in plan.llm_replicas)
    # Under `min_cost` a GPU without a replica is given back; under `max_goodput` the fleet is paid for anyway.
    if problem.objective == "max_goodput":
        return used + _idle_usd_per_hour(problem, plan)
    return used - _paid_usd_per_hour(problem, plan)


def _paid_usd_per_hour(problem: Problem, plan: Plan) -> float:
    """The prices of used GPUs that would be paid for without the plan, too."""
    used = used_gpus(plan)
    return math.fsum(
        min(gpu_type.paid_count, used[gpu_type.name]) * gpu_type.price_usd_per_hour
        for gpu_type in problem.gpu_types
        if gpu_type.paid_count
    )


def gpu_power_w(problem: Problem, gpu: GpuPlan) -> float:
    """Watts of one of the GPUs of a GpuPlan at full load, whatever the rate. Raises InvalidInput as above."""
    return _power_w(problem, gpu, OperatingRows(problem))


def migration_cost_usd_per_hour(problem: Problem, plan: Plan) -> float:
    """The charge for the replicas that do not run yet: new − min(old, new) by (service, GPU type, SM percent).

    0 when the problem has no current plan. A replica that only stops is free.
    """
    return problem.migration_cost_usd_per_hour * started(problem, plan)


def started(problem: Problem, plan: Plan) -> int:
    """Replicas that do not run yet; 0 when the problem has no current plan."""
    if problem.current is None:
        return 0
    return _replicas_beyond(plan, problem.current)


def launched(problem: Problem, plan: Plan) -> int:
    """Replicas that are to be launched: those of `started`, and such that run, but not on the GPU where they are to be.

    Of the GPUs that change, those go on under each other that have most replicas in common. 0 when the problem has no
    current plan. O(n · m) for n arrangements of GPUs that are new, each with replicas in common with m that were there.
    """
    if problem.current is None:
        return 0
    wanted, running = _gpus_of(plan), _gpus_of(problem.current)
    # Most GPUs stay as they are, and go on under themselves.
    new, old = wanted - running, running - wanted
    having = defaultdict(list)
    for gpu in old:
        for process in gpu:
            having[process].append(gpu)
    pairs = sorted(
        (
            (count, after, before)
            for after in new
            for before, count in Counter(
                each for process in after for each in having[process]
            ).items()
        ),
        key=lambda pair: (-pair[0], pair[1:]),
    )
    launches = sum(count * len(gpu) for gpu, count in new.items())
    for common, after, before in pairs:
        going_on = min(new[after], old[before])
        launches -= going_on * common
        new[after] -= going_on
        old[before] -= going_on
    return launches


def _gpus_of(plan: Plan) -> Counter[_Processes]:
    """GPUs by what runs on them: no two replicas on a GPU are of one service."""
    gpus: Counter[_Processes] = Counter()
    for gpu in plan.gpus:
        processes = sorted(process_key(gpu, each) for each in gpu.replicas)
        gpus[tuple(processes)] += gpu.count
    return gpus


def stopped(problem: Problem, plan: Plan) -> int:
    """Running replicas that the plan does not have; 0 when the problem has no current plan."""
    if problem.current is None:
        return 0
    return _replicas_beyond(problem.current, plan)


def served_weight(problem: Problem, plan: Plan) -> float:
    """Σ priority · served rps, where a service's served rps is at most its arrival rate."""
    rates = served_rates_rps(plan.gpus)
    for each in plan.llm_replicas:
        rates[each.service].append(each.count * each.arrival_rate_rps)
    return math.fsum(
        service.priority * min(math.fsum(rates[service.name]), service.arrival_rate_rps)
        for service in problem.all_services
    )


def llm_row(problem: Problem, replica: LlmReplicaPlan) -> LlmRow:
    """The row that a language model's replica is planned with. Raises InvalidInput where the problem lacks it."""
    row = problem.llm_row(replica)
    if row is None:
        message = (
            f"{replica.service} has no row on {replica.gpu_type} for tp {replica.tp}"
        )
        raise InvalidInput("llm_replicas", message)
    return row


def llm_power_w(problem: Problem, replica: LlmReplicaPlan) -> float:
    """Watts of one of a language model's GPUs at full load. Raises InvalidInput as above."""
    gpu_type = problem.gpu_type(replica.gpu_type)
    return gpu_type.idle_w + llm_row(problem, replica).power_w_per_gpu


def _llm_usd_per_hour(problem: Problem, replica: LlmReplicaPlan) -> float:
    gpu_type = problem.gpu_type(replica.gpu_type)
    power_w = llm_power_w(problem, replica)
    return replica.gpus * _gpu_usd_per_hour(problem, gpu_type, power_w)


def _gpu_usd_per_hour(problem: Problem, gpu_type: GpuType, power_w: float) -> float:
    energy = problem.energy_price_usd_per_kwh * power_w / 1000.0
    return gpu_type.price_usd_per_hour + energy


def _power_w(problem: Problem, gpu: GpuPlan, rows: OperatingRows) -> float:
    return _gpu_type(problem, gpu).idle_w + math.fsum(
        rows.row_of(gpu, replica).power_w for replica in gpu.replicas
    )


def _idle_usd_per_hour(problem: Problem, plan: Plan) -> float:
    used = used_gpus(plan)
    return math.fsum(
        max(0, (gpu_type.count or 0) - used[gpu_type.name])
        * _gpu_usd_per_hour(problem, gpu_type, gpu_type.idle_w)
        for gpu_type in problem.gpu_types
    )


def _gpu_type(problem: Problem, gpu: GpuPlan) -> GpuType:
    try:
        return problem.gpu_type(gpu.gpu_type)
    except KeyError:
        raise InvalidInput(
            "gpu_type", f"the problem has no GPU type called {gpu.gpu_type!r}"
        ) from None


def _replicas_beyond(plan: Plan, other: Plan) -> int:
    """Replicas of the plan that the other one does not have."""
    mine = replica_counts(plan, process_key)
    return (mine - replica_counts(other, process_key)).total()


def process_key(gpu: GpuPlan, replica: ReplicaPlan) -> tuple[str, str, float]:
    """Service, GPU type and SM percent: what a replica cannot change without being started again."""
    # Rounded as the contract matches figures: a row's 33.3 and a plan's 33.3000001 are the same replica.
    return replica.service, gpu.gpu_type, round(replica.sm_percent, SM_PERCENT_DIGITS)


def at_ordinary_prices(problem: Problem) -> tuple[Problem, float]:
    """The problem in a unit of money in which its largest price is an ordinary one, and that unit in USD.

    Solvers compare costs with tolerances in absolute figures, so prices of 1e-9 or 1e6 USD per hour would be planned
    carelessly, or not be told apart. The unit is a power of ten, so that the figures of a price list stay.
    """
    largest = max(
        (
            _gpu_usd_per_hour(problem, each, each.power_cap_w)
            for each in problem.gpu_types
        ),
        default=1.0,
    )
    # Without any price there is nothing to tell apart.
    if largest <= 0.0 or _ORDINARY[0] <= largest <= _ORDINARY[1]:
        return problem, 1.0
    unit = 10.0 ** math.floor(math.log10(largest))
    return in_units(problem, unit), unit


def in_units(problem: Problem, unit: float) -> Problem:
    """The problem with its money in units of that many USD, or of what it was in."""
    if unit == 1.0:
        return problem
    types = tuple(
        replace(each, price_usd_per_hour=each.price_usd_per_hour / unit)
        for each in problem.gpu_types
    )
    return replace(
        problem,
        gpu_types=types,
        energy_price_usd_per_kwh=problem.energy_price_usd_per_kwh / unit,
        migration_cost_usd_per_hour=problem.migration_cost_usd_per_hour / unit,
        start_usd_per_second_and_gpu=problem.start_usd_per_second_and_gpu / unit,
    )


def in_usd(problem: Problem, report: PlanReport, unit: float) -> PlanReport:
    """A report whose money is in units of that many USD, in USD."""
    if unit == 1.0:
        return report
    return replace(
        report,
        cost_usd_per_hour=unit * report.cost_usd_per_hour,
        lower_bound_usd_per_hour=_times(unit, report.lower_bound_usd_per_hour),
        steps=tuple(_step_in_usd(problem, step, unit) for step in report.steps),
        prices=report.prices and _prices_in_usd(report.prices, unit),
    )


def _step_in_usd(problem: Problem, step: SolveReport, unit: float) -> SolveReport:
    is_joint = step.technique == "joint" and problem.objective == "min_cost"
    if not is_joint and step.technique not in _IN_USD:
        return step
    return replace(
        step,
        objective=_times(unit, step.objective),
        bound=_times(unit, step.bound),
    )


def _prices_in_usd(prices: Prices, unit: float) -> Prices:
    if prices.unit != "usd_per_hour":
        return prices
    services = tuple(
        replace(
            each,
            per_rps=unit * each.per_rps,
            per_rps_more=unit * each.per_rps_more,
            per_replica=unit * each.per_replica,
        )
        for each in prices.services
    )
    gpu_types = tuple(
        replace(each, per_gpu=unit * each.per_gpu) for each in prices.gpu_types
    )
    relaxation = _times(unit, prices.relaxation_usd_per_hour)
    return replace(
        prices,
        services=services,
        gpu_types=gpu_types,
        relaxation_usd_per_hour=relaxation,
    )


def _times(unit: float, value: float | None) -> float | None:
    return None if value is None else unit * value
