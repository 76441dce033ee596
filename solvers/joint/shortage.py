"""Best effort: where GPUs are too few for the SLOs' percentiles, an arrangement in which every median is in time.

What serves most of all weight may leave out one service altogether, the one that takes most of a GPU for a request,
though the GPUs would do for all of them with some requests late. So the control loop's policy asks first
whether its arrangement has all medians in time (`keeps_medians`), and else arranges for the medians (`at_medians`).
Promised and reported is what the percentiles allow there (`as_promised`): the plan obeys the capacity law as any other
one does, and says what exceeds it.
"""

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from solvers.greedy.arrange import running_carriers
from solvers.greedy.routing import route
from solvers.laws.capacity_law import make_capacity_law
from solvers.laws.cost import launched, process_key, served_weight, started, stopped
from solvers.types.plan import WANT_OF_GPUS, Plan, ReplicaPlan, replica_counts
from solvers.types.problem import CapacityLaw, Problem

MEDIAN = 0.5
STRETCH = 1.2
"""A service is planned for at most this multiple of what its percentile allows: a replica with next to no allowance
would be given next to no requests."""

_Row = tuple[tuple[float, ...], ...]
"""(B, R) of one percentile: the highest utilisation by batch and ratio."""


def at_medians(problem: Problem, plan: Plan) -> Problem:
    """The problem in which services of no higher priority than some service that the plan leaves out ask for medians.

    Others keep their percentiles. A row may serve what the median allows, but no more than `STRETCH` times what the
    service's own percentile does, and no less than that.
    """
    highest = max(
        (problem.service(name).priority for name in _left_out(plan)),
        default=0.0,
    )
    keys = softened_keys(problem.capacity_law)
    # A service of higher priority than all that are left out keeps its percentile.
    services = tuple(
        replace(one, percentile=keys[one.percentile])
        if one.priority <= highest and one.percentile > MEDIAN
        else one
        for one in problem.services
    )
    # The problem itself where no service is softened: the law with medians takes long to make the first time.
    if services == problem.services:
        return problem
    law = _with_medians(problem.capacity_law)
    return replace(problem, services=services, capacity_law=law)


def softened_keys(law: CapacityLaw) -> dict[float, float]:
    """By percentile above the median: the percentile under which a softened problem's law has its stretched row.

    It lies between this percentile and the next lower one, so that no service that keeps its percentile finds that row.
    """
    bounds = [MEDIAN, *(one for one in sorted(law.percentiles) if one > MEDIAN)]
    return {one: (below + one) / 2.0 for below, one in pairwise(bounds)}


def keeps_medians(problem: Problem, plan: Plan) -> bool:
    """Whether the plan's arrangement has every median in time that GPUs are missing for."""
    softened = at_medians(problem, plan)
    return not _left_out(_routed(softened, plan))


def as_promised(problem: Problem, plan: Plan) -> Plan:
    """The plan's arrangement with the rates that the problem's own percentiles allow, and what exceeds them."""
    return _routed(problem, plan)


def is_short(plan: Plan) -> bool:
    """Whether GPUs are missing."""
    return bool(_left_out(plan))


def _left_out(plan: Plan) -> list[str]:
    return [
        entry.service
        for entry in plan.unserved
        if entry.reason in WANT_OF_GPUS and entry.rate_rps > 0.0
    ]


def _routed(problem: Problem, plan: Plan) -> Plan:
    # `running_carriers` reads the plan in force, so this one is put in its place.
    carriers = running_carriers(replace(problem, current=plan))
    return route(problem, plan.policy, carriers, {})


@lru_cache(maxsize=8)
def _with_medians(law: CapacityLaw) -> CapacityLaw:
    """The law with another row for each percentile above the median, under its key."""
    # The law of the problem need not have the median among its percentiles.
    of_median = make_capacity_law([MEDIAN], law.batches)
    rows = dict(zip(law.percentiles, law.max_utilisation, strict=True))
    rows |= {
        key: _stretched(law, of_median, rows[one])
        for one, key in softened_keys(law).items()
    }
    return replace(
        law,
        percentiles=tuple(sorted(rows)),
        max_utilisation=tuple(rows[one] for one in sorted(rows)),
    )


def _stretched(law: CapacityLaw, of_median: CapacityLaw, own: _Row) -> _Row:
    """What the median allows, within `STRETCH` times the percentile's own row, and never below that one.

    The law of medians falls short of a percentile's row only by rounding, or where a law was made by other means.
    """
    return tuple(
        tuple(
            max(most, min(of_median.utilisation(MEDIAN, batch, ratio), STRETCH * most))
            for ratio, most in zip(law.slo_ratios, column, strict=True)
        )
        for batch, column in zip(law.batches, own, strict=True)
    )


PAID_MOVE_WORTH = 0.3
"""On GPUs that are all paid for a move saves nothing but what it serves more, which must be this part of the rate that
the replicas which stop for it serve: they are away while others start, and the load may have changed by then."""
STARVED = 0.5
"""A service that is left out by more than this part of its rate does not wait for steadiness."""


def is_worth_moving(
    problem: Problem,
    kept: Plan,
    other: Plan,
    *,
    start_price: float,
) -> bool:
    """Whether `other` may stop running replicas to serve more than they do, which is `kept`.

    Always while some GPU is free, where nothing stops, and where somebody is starved who would not be or replicas are
    missing that would not be; else where the part of all weight that is served goes up by more than `start_price` times
    the part of the running replicas that stops. On owned GPUs what stops is weighed by its rate (PAID_MOVE_WORTH).
    """
    current = problem.current
    if current is None or _has_free_gpu(problem, current):
        return True
    moved = _interrupted(problem, other) - _interrupted(problem, kept)
    mends = _missing(kept) > _missing(other) or _ends_starvation(problem, kept, other)
    if moved <= 0 or mends:
        return True
    running = sum(gpu.count * len(gpu.replicas) for gpu in current.gpus)
    everything = sum(one.priority * one.arrival_rate_rps for one in problem.services)
    gain = served_weight(problem, other) - served_weight(problem, kept)
    # Without running replicas or demand there are no shares to compare, and none to disturb.
    if not running or everything <= 0.0:
        return True
    if all(one.is_owned for one in problem.gpu_types if one.count != 0):
        return gain > PAID_MOVE_WORTH * _stopped_weight(problem, current, other)
    return gain / everything > start_price * moved / running


def _interrupted(problem: Problem, plan: Plan) -> int:
    """Running replicas that stop, or stop here to start on another GPU."""
    moves = launched(problem, plan) - started(problem, plan)
    return stopped(problem, plan) + moves


def _stopped_weight(problem: Problem, current: Plan, other: Plan) -> float:
    """Σ priority · planned rps of the running replicas that the other plan does not have."""
    stays = replica_counts(other, process_key)
    weight = 0.0
    for gpu in current.gpus:
        for replica in gpu.replicas:
            key = process_key(gpu, replica)
            stopping = max(0, gpu.count - stays[key])
            stays[key] -= gpu.count - stopping
            weight += stopping * _weight_of(problem, replica)
    return weight


def _weight_of(problem: Problem, replica: ReplicaPlan) -> float:
    # What runs may be of a service that the problem does not have any more: it weighs nothing.
    known = {service.name: service.priority for service in problem.services}
    return known.get(replica.service, 0.0) * replica.arrival_rate_rps


def _has_free_gpu(problem: Problem, current: Plan) -> bool:
    stock = [gpu_type.count for gpu_type in problem.gpu_types]
    return None in stock or sum(gpu.count for gpu in current.gpus) < sum(
        count or 0 for count in stock
    )


def _missing(plan: Plan) -> int:
    return sum(entry.replicas_missing for entry in plan.unserved)


def _ends_starvation(problem: Problem, kept: Plan, other: Plan) -> bool:
    after = {entry.service: entry.rate_rps for entry in other.unserved}
    return any(
        entry.rate_rps - after.get(entry.service, 0.0)
        > STARVED * problem.service(entry.service).arrival_rate_rps
        for entry in kept.unserved
    )
