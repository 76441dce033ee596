"""Policy `inss`: batches at once, provisions only when batches do not help, by an actor that was trained for the fleet.

1. A provision says which service holds which SM percent on which GPU. It stays, and with it every replica: when rates
   change, only batches change (`solvers.papers.inss.batch_decision`). This is the paper's case 1.
2. Where some service is not served in full whatever its batch (case 2), provisions are proposed: by the actor
   (`solvers.papers.inss.training.actor`), a trained soft actor-critic, where one is valid for this fleet and these
   services, and where its best proposal still falls short also by a local search that begins from its proposals
   (`solvers.papers.inss.local_search`). Without an actor, the greedy provisioner and that search propose.
3. The best proposal is taken if it serves enough more than what runs for the replicas that it moves. New shares start
   beside the old ones, which go when the new ones are ready, where memory allows it (`solvers.tick.transition`: the
   paper's shadow instances).

Source: "InSS: An Intelligent Scheduling Orchestrator for Multi-GPU Inference with Spatio-Temporal Sharing", sections
5.1 to 5.5. Changed: what a replica carries is what the capacity law leaves of its throughput, so that plans keep the
promise of a percentile. The actor's first proposal is not simply taken: the best of some is. Constraint 1e (one GPU for
each network) holds only for the variant `inss_1e`; here the search may give a service a second replica, the greedy
provisioner more. The measured backlog is what a latency beyond the SLO says of it, since agents do not report queues.

Good for loads that swing within what the GPUs carry: it does not restart replicas for that. Limits: it minimises no
cost, uses the whole fleet, knows no clocks but the highest and no price of a move; the actor is valid for one fleet.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from solvers.greedy.routing import (
    Capacities,
    Carrier,
    reasons_short,
    route,
    true_capacities,
)
from solvers.laws.colocation import capacity_rps
from solvers.laws.cost import cost_usd_per_hour, served_weight
from solvers.papers.inss.greedy_provisioning import provision_greedily
from solvers.papers.inss.last_attempt import (
    memory_of,
    remembered,
    remembered_try,
    tried_with,
)
from solvers.papers.inss.local_search import EVEN_WEIGHT, improve, random_starts
from solvers.papers.inss.options import (
    MAX_SLOTS,
    STARTS,
    best_proposals,
    figures_of,
    options_of,
    provision_of,
    setting_without_actor,
    situation_of,
    world_of,
)
from solvers.papers.inss.provisioning import (
    BatchDecider,
    ProvisioningRules,
    Settled,
    lawful,
)
from solvers.papers.inss.training.actor import (
    Actor,
    BadActor,
    actor_from_bytes,
    propose,
    refusal,
    setting_of,
)
from solvers.papers.inss.training.world_rows import ActorSetting, Indices
from solvers.types.outcome import Budget, PlanReport, PlanStatus
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed

NAME = "inss"

_ROUNDS = 64
"""Proposals of the actor."""
_PASSES = 6
_MAX_GPUS = 16
"""A larger fleet is not for the local search."""
_TRIFLE, _DIGITS = 1e-9, 9
_MOVE = 0.1
"""Of the worth (`_worth`): so much a new provision must gain if it moves all replicas, and less as it moves fewer. Who
moves serves nothing until it has started, as boards are too full for most shadow instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InssVariant:
    """What the paper compares itself with."""

    name: str
    belief: ProvisioningRules


INSS = InssVariant(name=NAME, belief=ProvisioningRules())


def make_plan(
    problem: Problem, observed: Observed, memory: Json, budget: Budget
) -> tuple[Plan, PlanReport, Json]:
    """The plan of the present provision at the present rates, or of a new one; its report; and the provision."""
    return plan_as(INSS, problem, observed, memory, budget)


def plan_as(
    variant: InssVariant,
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    """The same under another belief."""
    begun = budget.elapsed()
    settler = BatchDecider(
        problem=problem, belief=variant.belief, queued=_queued(problem, observed)
    )
    before = remembered(problem, memory)
    held = settler.settle(lawful(settler, before))
    tried = (
        remembered_try(memory)
        if set(held.provision) == {gpu for gpu in before if gpu.shares}
        else None
    )
    if not settler.short(held):
        found = _Found(held, "kept", ("batches: what is provisioned serves all rates",))
    else:
        asked = tried_with(
            problem, variant.belief, actor=observed.actor, seed=budget.seed
        )
        if tried is not None and asked.is_like(tried):
            found = _Found(
                held,
                "kept",
                ("no provision served clearly more when rates were last like these",),
            )
        else:
            found, tried = _provision(settler, held, observed, seed=budget.seed), asked
    plan = _plan(settler, variant, found.settled)
    report = PlanReport(
        status=found.status,
        cost_usd_per_hour=cost_usd_per_hour(problem, plan),
        seconds=budget.elapsed() - begun,
        method=variant.name,
        messages=found.messages,
        served_weight=served_weight(problem, plan)
        if problem.objective == "max_goodput"
        else None,
    )
    return plan, report, memory_of(found.settled.provision, tried)


@dataclass(frozen=True, slots=True)
class _Found:
    settled: Settled
    status: PlanStatus
    messages: tuple[str, ...]


def _provision(
    settler: BatchDecider, held: Settled, observed: Observed, *, seed: int
) -> _Found:
    """Case 2: the best proposal, or what is held where none is clearly better."""
    short = ", ".join(service.name for service in settler.short(held))
    actor, why_not = _valid_actor(observed, settler.problem)
    messages = [f"batches do not suffice for {short}"]
    best: _Found | None = None
    starts: Indices | None = None
    if actor is not None:
        world = world_of(settler, setting_of(actor, settler.problem))
        starts = propose(
            actor, world, situation_of(settler, world, held), rounds=_ROUNDS, seed=seed
        )
        proposal, starts = best_proposals(settler, world, starts)
        best = _Found(
            proposal,
            "feasible",
            (f"the actor provisioned ({actor.notes or 'without notes'})",),
        )
    else:
        messages.append(f"no actor: {why_not}")
    if best is None or settler.short(best.settled):
        for other in _searched(settler, held, starts, actor, seed=seed):
            if best is None or _merit(settler, other.settled, held) > _merit(
                settler, best.settled, held
            ):
                best = other
    if (
        best is None
        or _merit(settler, best.settled, held)[0] <= _worth(settler, held) + _TRIFLE
    ):
        return _Found(
            held,
            "kept",
            (*messages, "no provision serves clearly more than the present one"),
        )
    return replace(best, messages=(*messages, *best.messages))


def _searched(
    settler: BatchDecider,
    held: Settled,
    starts: Indices | None,
    actor: Actor | None,
    *,
    seed: int,
) -> list[_Found]:
    """What the greedy provisioner, where there is no actor, and the local search propose.

    The search begins from the actor's proposals, from drawn ones, and once from what is held alone, which finds what
    moves little.
    """
    found = []
    if actor is None:
        greedy = provision_greedily(settler)
        found.append(_Found(greedy, "greedy", ("the greedy provisioner provisioned",)))
    gpus = sum(gpu_type.count or 0 for gpu_type in settler.problem.gpu_types)
    has_stock = all(
        gpu_type.count is not None for gpu_type in settler.problem.gpu_types
    )
    services = [
        service for service in settler.problem.services if service.max_replicas != 0
    ]
    if (
        not services
        or not has_stock
        or not 0 < gpus <= _MAX_GPUS
        or len(services) > MAX_SLOTS
    ):
        return found
    settings: list[tuple[ActorSetting, Indices | None]] = [
        (setting_without_actor(settler), None)
    ]
    if actor is not None:
        settings.append((setting_of(actor, settler.problem), starts))
    for setting, proposed in settings:
        world = world_of(settler, setting)
        rates, queued, weights = figures_of(settler, world)
        begin = random_starts(world, rates, count=STARTS, seed=seed)
        if proposed is not None:
            begin = np.concatenate([proposed, begin])
        for tried in (begin, options_of(world, held.provision)):
            if len(tried):
                chosen, _ = improve(
                    world, tried, rates, queued, weights, passes=_PASSES
                )
                settled = settler.settle(provision_of(world, chosen))
                found.append(
                    _Found(settled, "feasible", ("a local search provisioned",))
                )
    return found


def _merit(settler: BatchDecider, one: Settled, held: Settled) -> tuple[float, float]:
    """What a provision is worth less what it moves; where that is equal, the room that it has."""
    return round(
        _worth(settler, one) - _MOVE * moved_share(held, one), _DIGITS
    ), settler.headroom(one)


def moved_share(held: Settled, one: Settled) -> float:
    """The part of the held replicas that a provision does not have."""
    before, after = (
        Counter(
            (gpu.gpu_type, share) for gpu in settled.provision for share in gpu.shares
        )
        for settled in (held, one)
    )
    return (before - after).total() / before.total() if before else 0.0


def _worth(settler: BatchDecider, settled: Settled) -> float:
    """What is served, as a share of the weighted demand, and how evenly: as the local search has it."""
    demand = (
        sum(
            service.priority * service.arrival_rate_rps
            for service in settler.problem.services
        )
        or 1.0
    )
    return (
        EVEN_WEIGHT * min(settler.headroom(settled), 1.0)
        - settler.unserved(settled) / demand
    )


def _plan(settler: BatchDecider, variant: InssVariant, settled: Settled) -> Plan:
    problem = settler.problem
    able = {
        service.name
        for service in problem.services
        for gpu_type in problem.gpu_types
        if settler.percents(service.name, gpu_type.name)
    }
    carriers = settled.carriers()
    capacities: Capacities = (
        true_capacities if variant.belief.knows_neighbours else _capacities_alone
    )
    return route(
        problem,
        variant.name,
        carriers,
        reasons_short(problem, carriers, able),
        capacities=capacities,
    )


def _capacities_alone(problem: Problem, carrier: Carrier) -> Sequence[float]:
    """What each replica would carry if it had its GPU to itself."""
    found = []
    for seat in carrier.seats:
        service = problem.service(seat.service)
        found.append(
            capacity_rps(
                problem.capacity_law,
                percentile=service.percentile,
                batch=seat.row.batch,
                slo_ms=service.slo_ms,
                execution_ms=seat.row.solo_ms,
            )
        )
    return found


def _queued(problem: Problem, observed: Observed) -> Mapping[str, float]:
    """Requests that wait beyond what the SLO allows, by Little's law: λ · (measured latency − SLO), at most λ · SLO."""
    found = {}
    for service in problem.services:
        reading = observed.reading(service.name)
        if (
            reading is not None
            and reading.latency_ms is not None
            and reading.latency_ms > service.slo_ms
        ):
            late_ms = min(reading.latency_ms - service.slo_ms, service.slo_ms)
            found[service.name] = reading.arrival_rate_rps * late_ms / 1000.0
    return found


@lru_cache(maxsize=4)
def _read(data: bytes) -> Actor | str:
    try:
        return actor_from_bytes(data)
    except BadActor as error:
        return str(error)


def _valid_actor(observed: Observed, problem: Problem) -> tuple[Actor | None, str]:
    """The actor, or why there is none."""
    if observed.actor is None:
        return (
            None,
            "none was trained for this fleet; `plimsoll policy train inss` does",
        )
    found = _read(observed.actor)
    if isinstance(found, str):
        return None, found
    why_not = refusal(found, problem)
    return (None, why_not) if why_not else (found, "")
