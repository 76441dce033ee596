"""Best effort: where GPUs are too few for the SLOs' percentiles, an arrangement in which every median is in time.

What serves most of all weight may leave out one service altogether, the one that takes most of a GPU for a request,
though the GPUs would do for all of them with some requests late. So whoever arranges for the control loop asks first
whether its arrangement has all medians in time (`keeps_medians`), and else arranges for the medians (`at_medians`).
Promised and reported is what the percentiles allow there (`as_promised`): the plan obeys the capacity law as any other
one does, and says what exceeds it.
"""

from dataclasses import replace
from functools import lru_cache

from solvers.plan import WANT_OF_GPUS, Plan
from solvers.policies.arrange import running_carriers
from solvers.policies.routing import route
from solvers.predict.capacity_law import make_capacity_law
from solvers.problem import CapacityLaw, Problem

MEDIAN = 0.5
STRETCH = 1.2
"""Nobody is arranged for more than so many times what their percentile allows: a replica that it allows next to nothing
would be given next to no requests."""


def at_medians(problem: Problem, plan: Plan) -> Problem:
    """The problem in which whoever is no more important than some service that the plan leaves out asks for its median.

    Others keep their percentiles. A row may serve what the median allows, but no more than `STRETCH` times what the
    percentile does that was asked for.
    """
    highest = max((problem.service(name).priority for name in _left_out(plan)), default=0.0)
    softened = [one for one in problem.services if one.priority <= highest and one.percentile > MEDIAN]
    if not softened:
        return problem
    strictest = max(one.percentile for one in softened)
    names = {one.name for one in softened}
    services = tuple(replace(one, percentile=MEDIAN) if one.name in names else one for one in problem.services)
    return replace(problem, services=services, capacity_law=_with_medians(problem.capacity_law, strictest))


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
    return [entry.service for entry in plan.unserved if entry.reason in WANT_OF_GPUS and entry.rate_rps > 0.0]


def _routed(problem: Problem, plan: Plan) -> Plan:
    return route(problem, plan.policy, running_carriers(replace(problem, current=plan)), {})


@lru_cache(maxsize=8)
def _with_medians(law: CapacityLaw, strictest: float) -> CapacityLaw:
    """The law with a row of the median, which stays within `STRETCH` times that of the strictest percentile."""
    if MEDIAN in law.percentiles:
        return law
    of_median, strict = make_capacity_law([MEDIAN], law.batches), law.max_utilisation[law.percentiles.index(strictest)]
    row = tuple(
        tuple(
            min(of_median.utilisation(MEDIAN, batch, ratio), STRETCH * most)
            for ratio, most in zip(law.slo_ratios, strict[place], strict=True)
        )
        for place, batch in enumerate(law.batches)
    )
    rows = {**dict(zip(law.percentiles, law.max_utilisation, strict=True)), MEDIAN: row}
    return replace(law, percentiles=tuple(sorted(rows)), max_utilisation=tuple(rows[one] for one in sorted(rows)))
