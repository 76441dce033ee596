"""Language models between two rearrangements: what runs goes on, and only what is missing is started.

A start takes minutes in which GPUs are paid for and serve nothing, and rates move from minute to minute: a plan that
follows each of them to the cheapest replicas starts more than it saves. So between rearrangements running replicas are
only given up where the others carry the rate without them, the dearest first; what is missing is planned for by itself.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from solvers.llm.planner.fleet import LlmFleet, bound_llms, plan_llms
from solvers.types.llm import LlmDemand, LlmReplicaPlan, LlmRow
from solvers.types.outcome import Budget
from solvers.types.problem import Problem
from solvers.types.state import GpuType

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """One replica that runs."""

    plan: LlmReplicaPlan
    """As it was planned, of one."""
    row: LlmRow
    usd_per_hour: float


def keep_llms(problem: Problem, budget: Budget) -> LlmFleet | None:
    """The replicas with all of those that are still of use; None where that leaves anything unserved, or none run."""
    kept = {
        service.name: list(_of_use(service, _running(problem, service)))
        for service in problem.llm_services
    }
    # Where nothing runs, there is nothing to keep: all is planned at once.
    rest = _rest(problem, kept) if any(kept.values()) else None
    if rest is None:
        return None
    replicas = [each.plan for own in kept.values() for each in own]
    prices: Mapping[str, float] = {}
    # Mostly nothing is missing, and then there is no program to solve.
    if rest.llm_services:
        more = plan_llms(rest, budget)
        if more.unserved:
            return None
        replicas += more.replicas
        prices = more.gpu_prices
    return LlmFleet(
        replicas=tuple(_rated(problem, replicas)),
        unserved=(),
        cost_bound=bound_llms(problem, budget),
        gpu_prices=prices,
    )


def _running(problem: Problem, service: LlmDemand) -> Iterator[_Running]:
    """The service's replicas that may go on, one by one."""
    for each in problem.current.llm_replicas if problem.current else ():
        row = problem.llm_row(each)
        # What its rows do not have any more, or its team does not allow, has no figures to be planned with.
        if each.service != service.name or row is None or row.capacity_rps <= 0.0:
            continue
        if service.allows(each.gpu_type):
            price = problem.gpu_type(each.gpu_type).price_usd_per_hour
            one = _Running(
                plan=replace(each, count=1), row=row, usd_per_hour=row.tp * price
            )
            yield from (one,) * each.count


def _of_use(service: LlmDemand, running: Iterable[_Running]) -> Iterator[_Running]:
    """Those without which the others would be too few, the cheapest per request first."""
    left_rps = service.arrival_rate_rps
    in_order = sorted(
        running,
        key=lambda each: (
            each.usd_per_hour / each.row.capacity_rps,
            each.plan.gpu_type,
            each.row,
        ),
    )
    for number, each in enumerate(in_order):
        is_enough = left_rps <= _ROUNDING and number >= service.min_replicas
        is_full = service.max_replicas is not None and number >= service.max_replicas
        if is_enough or is_full:
            return
        left_rps -= each.row.capacity_rps
        yield each


def _rest(problem: Problem, kept: Mapping[str, list[_Running]]) -> Problem | None:
    """What is missing besides, on the GPUs that are left; None where a service may not have more replicas."""
    lacking = [
        missing
        for service in problem.llm_services
        if (missing := _missing(service, kept[service.name])) is not None
    ]
    # Small replicas must make room for large ones, which only a plan of all of them can decide.
    if any(service.max_replicas == 0 for service in lacking):
        return None
    used = [each for own in kept.values() for each in own]
    types = tuple(_left(each, used) for each in problem.gpu_types)
    # Fewer GPUs than run: some were lost, or are another's now.
    if any(each.count is not None and each.count < 0 for each in types):
        return None
    return replace(problem, llm_services=tuple(lacking), gpu_types=types, current=None)


def _missing(service: LlmDemand, kept: Sequence[_Running]) -> LlmDemand | None:
    """What kept replicas leave of a service's demand; None: nothing."""
    carried_rps = sum(each.row.capacity_rps for each in kept)
    # What is kept may carry more than is asked for.
    left_rps = max(0.0, service.arrival_rate_rps - carried_rps)
    lacking = max(0, service.min_replicas - len(kept))
    if left_rps <= _ROUNDING and not lacking:
        return None
    limit = service.max_replicas
    return replace(
        service,
        arrival_rate_rps=left_rps,
        min_replicas=lacking,
        max_replicas=None if limit is None else max(0, limit - len(kept)),
    )


def _left(gpu_type: GpuType, used: Iterable[_Running]) -> GpuType:
    """A GPU type without what is used of it."""
    degrees = [each.plan.tp for each in used if each.plan.gpu_type == gpu_type.name]
    taken = sum(degrees)
    slots = tuple(
        # As the rule of slots counts: smaller replicas fit in between.
        (size, max(0, sets - sum(tp for tp in degrees if tp >= size) // size))
        for size, sets in gpu_type.free_slots
    )
    return replace(
        gpu_type,
        count=None if gpu_type.count is None else gpu_type.count - taken,
        free_slots=slots,
        paid_count=max(0, gpu_type.paid_count - taken),
    )


def _rated(
    problem: Problem, replicas: Iterable[LlmReplicaPlan]
) -> Iterator[LlmReplicaPlan]:
    """One entry per kind, all of a service equally far from what they can carry."""
    # Rates apart, running and new replicas of a kind are one entry.
    counts = Counter[LlmReplicaPlan]()
    for each in replicas:
        counts[replace(each, count=1, arrival_rate_rps=0.0)] += each.count
    loads = _loads(problem, counts)
    # By what tells kinds apart, so that equal plans are equal in every process.
    for kind in sorted(counts, key=_order):
        rate_rps = loads[kind.service] * _capacity_rps(problem, kind)
        yield replace(kind, count=counts[kind], arrival_rate_rps=rate_rps)


def _loads(problem: Problem, counts: Mapping[LlmReplicaPlan, int]) -> dict[str, float]:
    """By service, the share of what its replicas carry that is asked of them, 1 at most."""
    rates = {each.name: each.arrival_rate_rps for each in problem.llm_services}
    capacity = dict.fromkeys(rates, 0.0)
    for kind, number in counts.items():
        capacity[kind.service] += number * _capacity_rps(problem, kind)
    return {
        name: min(1.0, rate_rps / capacity[name])
        for name, rate_rps in rates.items()
        if capacity[name]
    }


def _capacity_rps(problem: Problem, kind: LlmReplicaPlan) -> float:
    row = problem.llm_row(kind)
    assert row is not None, "only what has a row is kept or planned"
    return row.capacity_rps


def _order(kind: LlmReplicaPlan) -> tuple[str, str, int, int, int]:
    return (
        kind.service,
        kind.gpu_type,
        kind.tp,
        kind.max_num_batched_tokens,
        kind.max_num_seqs,
    )
