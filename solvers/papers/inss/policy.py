"""Policy `inss`: batches at once, provisions only when batches do not help, by an actor that was trained for the fleet.

1. A provision says which service holds which SM percent on which GPU. It stays, and with it every replica: when rates
   change, only batches change (`solvers.papers.inss.batch_decision`). This is the paper's case 1.
2. Where some service is not served in full whatever its batch (case 2), provisions are proposed: by the actor
   (`solvers.papers.inss.actor`), a trained soft actor-critic, where one is valid for this fleet and these services, and
   where its best proposal still falls short also by a local search that begins from its proposals
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

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from solvers.greedy.configure import MAX_REPLICAS, planning_clock_mhz
from solvers.greedy.routing import (
    Capacities,
    Carrier,
    reasons_short,
    route,
    true_capacities,
)
from solvers.laws.colocation import capacity_rps
from solvers.laws.cost import cost_usd_per_hour, served_weight
from solvers.papers.inss.actor import (
    Actor,
    BadActor,
    Situation,
    actor_from_bytes,
    propose,
    refusal,
    setting_of,
)
from solvers.papers.inss.last_attempt import (
    Tried,
    tried_from_json,
    tried_to_json,
    tried_with,
)
from solvers.papers.inss.local_search import EVEN_WEIGHT, improve, random_starts
from solvers.papers.inss.options import options_of, provision_of
from solvers.papers.inss.provisioning import (
    BatchDecider,
    Provision,
    Provisioned,
    ProvisioningRules,
    Settled,
    Share,
    lawful,
    provision_greedily,
)
from solvers.papers.inss.world import ActorSetting, Indices, ProvisioningWorld, Reals
from solvers.types.outcome import Budget, PlanReport, PlanStatus
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed

NAME = "inss"
MEMORY_VERSION = 1

_ROUNDS = 64
"""Proposals of the actor."""
_STARTS, _PASSES = 16, 6
"""Of the local search: drawn starts, to which come as many of the actor's best proposals."""
_MAX_GPUS, _MAX_SLOTS = 16, 24
"""Of a fleet that the local search is for."""
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
    remembered = _remembered(problem, memory)
    held = settler.settle(lawful(settler, remembered))
    tried = (
        _tried(memory)
        if set(held.provision) == {gpu for gpu in remembered if gpu.shares}
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
    return plan, report, _remember(found.settled.provision, tried)


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
        world = _world(settler, setting_of(actor, settler.problem))
        starts = propose(
            actor, world, _situation(settler, world, held), rounds=_ROUNDS, seed=seed
        )
        proposal, starts = _best_proposals(settler, world, starts)
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
        found.append(
            _Found(
                provision_greedily(settler),
                "greedy",
                ("the greedy provisioner provisioned",),
            )
        )
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
        or len(services) > _MAX_SLOTS
    ):
        return found
    settings: list[tuple[ActorSetting, Indices | None]] = [(_setting(settler), None)]
    if actor is not None:
        settings.append((setting_of(actor, settler.problem), starts))
    for setting, proposed in settings:
        world = _world(settler, setting)
        rates, queued, weights = _figures(settler, world)
        begin = random_starts(world, rates, count=_STARTS, seed=seed)
        if proposed is not None:
            begin = np.concatenate([proposed, begin])
        for tried in (begin, options_of(world, held.provision)):
            if len(tried):
                chosen, _ = improve(
                    world, tried, rates, queued, weights, passes=_PASSES
                )
                provision = provision_of(world, chosen)
                found.append(
                    _Found(
                        settler.settle(provision),
                        "feasible",
                        ("a local search provisioned",),
                    )
                )
    return found


def _best_proposals(
    settler: BatchDecider, world: ProvisioningWorld, proposals: Indices
) -> tuple[Settled, Indices]:
    """The best proposal by the world's reward, and the best few as starts of a search."""
    rates, queued, _ = _figures(settler, world)
    every = np.broadcast_to(rates, (len(proposals), len(rates)))
    decided = world.decide(proposals, np.broadcast_to(queued, every.shape))
    order = np.argsort(-world.rewards(decided, every), kind="stable")
    return settler.settle(provision_of(world, proposals[order[0]])), proposals[
        order[:_STARTS]
    ]


def _world(settler: BatchDecider, setting: ActorSetting) -> ProvisioningWorld:
    problem = settler.problem
    clocks = [planning_clock_mhz(problem, gpu_type) for gpu_type in problem.gpu_types]
    return ProvisioningWorld(
        problem,
        replace(setting, knows_neighbours=settler.belief.knows_neighbours),
        clocks_mhz=clocks,
    )


def _setting(settler: BatchDecider) -> ActorSetting:
    """Of a problem for which there is no actor."""
    problem = settler.problem
    gpus = sorted(
        name
        for gpu_type in problem.gpu_types
        for name in [gpu_type.name] * (gpu_type.count or 0)
    )
    services = sorted(
        service.name for service in problem.services if service.max_replicas != 0
    )
    percents = {
        percent
        for service in services
        for gpu_type in problem.gpu_types
        for percent in settler.percents(service, gpu_type.name)
    }
    may_repeat = all(
        settler.max_replicas(problem.service(name)) >= 2 for name in services
    )
    is_few = 2 * len(services) <= _MAX_SLOTS
    return ActorSetting(
        gpus=tuple(gpus),
        services=tuple(services),
        slots=2 if may_repeat and is_few else 1,
        sm_percents=tuple(sorted(percents)) or (100.0,),
    )


def _situation(
    settler: BatchDecider, world: ProvisioningWorld, held: Settled
) -> Situation:
    rates, queued, _ = _figures(settler, world)
    used = np.zeros(len(world.setting.gpus))
    free = list(range(len(used)))
    for gpu, batches in zip(held.provision, held.batches, strict=True):
        at = next((at for at in free if world.setting.gpus[at] == gpu.gpu_type), None)
        if at is not None:
            free.remove(at)
            used[at] = sum(batch.row.memory_mib for batch in batches)
    return Situation(rates_rps=rates, queued=queued, used_mib=used)


def _figures(
    settler: BatchDecider, world: ProvisioningWorld
) -> tuple[Reals, Reals, Reals]:
    """Rates, queued requests and weights (S,) in the world's order; 0 for services that the Problem lacks.

    A service of which replicas must run although nothing is asked of it counts with a trifle.
    """
    services = {
        service.name: service
        for service in settler.problem.services
        if service.max_replicas != 0
    }
    names = world.setting.services
    rates = np.array(
        [services[name].arrival_rate_rps if name in services else 0.0 for name in names]
    )
    least = np.array(
        [
            1e-6 if name in services and services[name].min_replicas > 0 else 0.0
            for name in names
        ]
    )
    queued = np.array(
        [settler.queued.get(name, 0.0) if name in services else 0.0 for name in names]
    )
    weights = np.array(
        [services[name].priority if name in services else 0.0 for name in names]
    )
    return np.maximum(rates, least * world.max_rps), queued, weights


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


def _remembered(problem: Problem, memory: Json) -> Provision:
    """The provision that was remembered, else that of what runs; empty where neither can be read."""
    if isinstance(memory, Mapping) and memory.get("version") == MEMORY_VERSION:
        gpus = memory.get("gpus")
        if isinstance(gpus, list | tuple):
            return tuple(
                found for entry in gpus if (found := _provisioned(entry)) is not None
            )
    current = problem.current.gpus if problem.current is not None else ()
    return tuple(
        Provisioned(
            gpu.gpu_type,
            tuple(
                Share(replica.service, replica.sm_percent) for replica in gpu.replicas
            ),
        )
        for gpu in current
        for _ in range(min(gpu.count, MAX_REPLICAS))
    )


def _provisioned(entry: Json) -> Provisioned | None:
    """A remembered GPU; None for what is none."""
    if not (isinstance(entry, list | tuple) and len(entry) == 2):
        return None
    name, shares = entry
    if not isinstance(name, str) or not isinstance(shares, list | tuple):
        return None
    found = []
    for share in shares:
        if not (isinstance(share, list | tuple) and len(share) == 2):
            return None
        service, percent = share
        if (
            not isinstance(service, str)
            or isinstance(percent, bool)
            or not isinstance(percent, int | float)
        ):
            return None
        if not math.isfinite(percent):
            return None
        found.append(Share(service, float(percent)))
    return Provisioned(name, tuple(found))


def _tried(memory: Json) -> Tried | None:
    return tried_from_json(memory.get("tried")) if isinstance(memory, Mapping) else None


def _remember(provision: Provision, tried: Tried | None) -> Json:
    gpus: list[Json] = [
        [gpu.gpu_type, [[share.service, share.sm_percent] for share in gpu.shares]]
        for gpu in provision
        if gpu.shares
    ]
    return {"version": MEMORY_VERSION, "gpus": gpus, "tried": tried_to_json(tried)}
