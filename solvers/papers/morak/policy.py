"""Policy `morak`: GPUs filled with networks up to their knee points, then partitioned by them.

1. Per service the largest batch that runs within half its SLO at the knee of its latency over the SM percent
   (`knee_partition`), and the knee. The batch becomes the limit of the node's governor.
2. As many replicas as the rate needs by what one carries at its knee; each goes to the fullest GPU whose knees leave
   room for its own, widest knees first.
3. A GPU is partitioned by the knees of who shares it, and all of it is given away. Its clock is the highest at which
   that keeps the power cap; batches are the largest that run within half the SLO there.
4. Neighbours and clocks cost capacity: services that fall short get more replicas, and it is done again.
5. Where that leaves something unserved, it is all done for tighter SLOs as well (`LADDER`), with the batch that
   carries most per SM percent at its knee as with the largest, and with each GPU divided for the most that its
   networks serve together (`solvers.sharing.division`) as by knees; what serves most under the true SLOs is taken.
6. Where a governor says that no clock and batch keeps its limits, the services of that GPU count as
   `step_percent` wider from then on, so that fewer of them share a GPU.

Where GPUs are short, all services get the same part of the replicas that they want.

With `governor: power_latency`, which turns clock and batches within this plan, it is the paper's system.

Source: Morak, sections III-C and V-C, algorithm 1, line 18. The paper has a server with four GPUs, as many networks as
fit, and says neither who shares a GPU nor how many replicas there are, nor what a reallocation changes: 2 and 4 to 6
are ours. Capacities are those of the capacity law, so that a plan keeps its promises without a governor, too. Several
GPU types: `type_by_type`.

Good for throughput under a power cap: every SM is given away where it helps most. Limits: a lightly loaded fleet is no
cheaper with knees than with smaller shares; it knows no price of a move, and no priority but in what is unserved.
"""

from collections.abc import Mapping
from dataclasses import replace

from solvers.baselines.type_by_type import TypePolicy, plan_type_by_type
from solvers.greedy.routing import true_capacities
from solvers.papers.morak.fill import NAME, FillEffort, MorakFilling
from solvers.papers.morak.parameters import MorakParameters
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed

MEMORY_VERSION = 1


def make_plan(
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    """The plan of knees for the Problem's rates, its report, and which services count as wider."""
    parameters = budget.parameters_as(MorakParameters)
    names = {service.name for service in problem.services}
    wider, heard_at_s = _remembered(memory, names, observed.at_s)
    asked = _asked(observed, heard_at_s, parameters.settling_s)
    for name in asked:
        wider[name] = min(
            wider.get(name, 0) + 1, round(100.0 / parameters.step_percent)
        )
    extra_percent = {
        name: parameters.step_percent * steps for name, steps in wider.items()
    }
    filling = MorakFilling(
        extra_percent=extra_percent,
        division=parameters.division,
        effort=FillEffort(budget),
    )
    rules = TypePolicy(name=NAME, fill=filling.fill, capacities=true_capacities)
    # A plan that runs is kept while it serves; one whose governors asked for another is not.
    of = replace(problem, current=None) if asked else problem
    plan, report = plan_type_by_type(of, rules, budget)
    if asked:
        message = f"another partition for {', '.join(sorted(asked))}"
        report = replace(report, messages=(*report.messages, message))
        heard_at_s = observed.at_s
    return plan, report, _memory_of(wider, heard_at_s)


def _asked(
    observed: Observed, heard_at_s: float | None, settling_s: float
) -> tuple[str, ...]:
    """The services whose governors ask for another partition; none while a former request settles."""
    is_settled = heard_at_s is None or observed.at_s >= heard_at_s + settling_s
    # Algorithm 1, line 18: governors ask after three failing periods; the policy decides what becomes of it.
    return observed.repartition if is_settled else ()


def _memory_of(wider: Mapping[str, int], heard_at_s: float | None) -> Json:
    return {
        "version": MEMORY_VERSION,
        "wider": dict(sorted(wider.items())),
        "heard_at_s": heard_at_s,
    }


def _remembered(
    memory: Json,
    services: set[str],
    now_s: float,
) -> tuple[dict[str, int], float | None]:
    """How many steps wider each service counts, and when a request was last heard; None = never."""
    if not isinstance(memory, Mapping) or memory.get("version") != MEMORY_VERSION:
        return {}, None
    wider = memory.get("wider")
    heard_at_s = memory.get("heard_at_s")
    if not isinstance(wider, Mapping):
        return {}, None
    steps = {
        name: count
        for name, count in wider.items()
        if name in services and isinstance(count, int)
    }
    if not isinstance(heard_at_s, int | float):
        return steps, None
    # A clock that was set back must not make the policy deaf for longer than it settles.
    return steps, min(float(heard_at_s), now_s)
