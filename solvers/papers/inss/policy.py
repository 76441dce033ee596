"""Policy `inss`: batches at once, provisions only when batches do not help, by an actor that was trained for the fleet.

1. A provision says which service holds which SM percent on which GPU. It stays, and with it every replica: when rates
   change, only batches change (`solvers.papers.inss.batch_decision`). This is the paper's case 1.
2. Where some service is not served in full whatever its batch (case 2), provisions are proposed: by the actor
   (`solvers.papers.inss.training.actor`), a trained soft actor-critic, where one is valid for this fleet and these
   services, and where its best has fallen short for a while also by a local search that begins from its proposals
   (`solvers.papers.inss.local_search`). Without an actor, the greedy provisioner and that search propose.
3. What a proposal leaves free on a GPU widens the one with least room there. The best proposal is taken if it serves
   enough more than what runs for the replicas that it moves. New shares start next to the old ones, which go when the
   new ones are ready, where memory allows it (`solvers.tick.transition`: the paper's shadow instances).

Source: "InSS: An Intelligent Scheduling Orchestrator for Multi-GPU Inference with Spatio-Temporal Sharing", sections
5.1 to 5.5. Changed: the objective. The paper maximises Σ h, h = b / t, whatever arrives; here what is served of the
demand comes first, then room for all rates to grow, so that no network gets SMs for requests that never come. What a
replica carries is what the capacity law leaves of its throughput, so that plans keep the promise of a percentile. The
actor's first proposal is not simply taken: the best of some is. Constraint 1e (one GPU for each network) holds only for
the variant `inss_1e`; here the search may give a service a second replica, the greedy provisioner more. The measured
backlog is what a latency beyond the SLO says of it, since agents do not report queues.

Good for loads that swing within what the GPUs carry: it does not restart replicas for that. Limits: it minimises no
cost, uses the whole fleet, knows no clocks but the highest and no price of a move; the actor is valid for one fleet.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.greedy.report import heuristic_report
from solvers.greedy.routing import (
    Capacities,
    Carrier,
    reasons_short,
    route,
    true_capacities,
)
from solvers.laws.colocation import capacity_rps
from solvers.papers.inss.actor_in_force import Proposers, valid_actor
from solvers.papers.inss.greedy_provisioning import provision_greedily, widened
from solvers.papers.inss.last_attempt import (
    InssPast,
    memory_of,
    remembered,
    remembered_past,
    tried_with,
)
from solvers.papers.inss.local_search import (
    EVEN_WEIGHT,
    SearchEffort,
    improve,
    random_starts,
)
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
from solvers.papers.inss.parameters import InssParameters
from solvers.papers.inss.provisioning import (
    BatchDecider,
    ProvisioningRules,
    Settled,
    lawful,
)
from solvers.papers.inss.training.actor import (
    Actor,
    propose,
    setting_of,
)
from solvers.papers.inss.training.world_rows import ActorSetting, Indices
from solvers.types.outcome import Budget, PlanReport, PlanStatus
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed

NAME = "inss"

_PASSES = 6
_MAX_GPUS = 16
"""A larger fleet is not for the local search."""
_TRIFLE, _DIGITS = 1e-9, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class InssVariant:
    """What the paper compares itself with."""

    name: str
    rules: ProvisioningRules


INSS = InssVariant(name=NAME, rules=ProvisioningRules())


def make_plan(
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
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
    """The same under a variant's rules."""
    begun = budget.elapsed()
    decider = BatchDecider(
        problem=problem, rules=variant.rules, queued=_queued(problem, observed)
    )
    found, past = _find(decider, observed, memory, budget)
    plan = _plan(decider, variant, found.settled)
    report = heuristic_report(
        problem,
        plan,
        status=found.status,
        seconds=budget.elapsed() - begun,
        method=variant.name,
        messages=found.messages,
    )
    return plan, report, memory_of(found.settled.provision, past)


def _find(
    decider: BatchDecider,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple["_Found", InssPast]:
    """The provision and its batches, and what is remembered of how they came about."""
    before = remembered(decider.problem, memory)
    held = decider.settle(lawful(decider, before))
    # Answers about a provision that lost a GPU or a share since say nothing of what is left of it.
    is_same = set(held.provision) == {gpu for gpu in before if gpu.shares}
    past = remembered_past(memory) if is_same else InssPast()
    if not decider.short(held):
        message = "batches: what is provisioned serves all rates"
        return _kept(held, message), replace(past, short_since_s=None)
    began_s = past.shortage_began_s(observed.at_s)
    parameters = budget.parameters_as(InssParameters)
    actor, why_not = valid_actor(observed, decider.problem, parameters)
    # Where nothing is held nothing is moved either, and without an actor nothing else would propose.
    is_due = (
        not held.provision
        or actor is None
        or observed.at_s - began_s >= parameters.search_after_s
    )
    proposers = Proposers(actor, why_not, may_search=is_due)
    asked = tried_with(
        decider.problem,
        (decider.rules, parameters),
        actor=observed.actor,
        seed=budget.seed,
        may_search=is_due,
    )
    now = InssPast(tried=asked, short_since_s=began_s)
    # The same question has the same answer: another search would cost seconds and find nothing new.
    if past.tried is not None and asked.is_like(past.tried):
        message = "no provision served clearly more when rates were last like these"
        return _kept(held, message), replace(now, tried=past.tried)
    found = _provision(decider, held, proposers, budget)
    # What serves all ends the shortage at once: the next one is another.
    is_over = not decider.short(found.settled)
    return found, replace(now, short_since_s=None) if is_over else now


@dataclass(frozen=True, slots=True)
class _Found:
    settled: Settled
    status: PlanStatus
    messages: tuple[str, ...]


def _kept(held: Settled, *messages: str) -> _Found:
    return _Found(held, "kept", messages)


def _provision(
    decider: BatchDecider,
    held: Settled,
    proposers: Proposers,
    budget: Budget,
) -> _Found:
    """Case 2: the best proposal, or what is held where none is clearly better."""
    short = ", ".join(service.name for service in decider.short(held))
    messages = [f"batches do not suffice for {short}"]
    parameters = budget.parameters_as(InssParameters)
    if proposers.actor is None:
        messages.append(f"no actor: {proposers.why_not}")
        proposals = _without_actor(decider, held, budget)
    else:
        may_search = proposers.may_search and parameters.proposals != "actor"
        proposals = _with_actor(
            decider, proposers.actor, held, budget, may_search=may_search
        )
    # An SM that is not held serves no request when rates rise, and widening it then would move a replica.
    proposals = [
        replace(each, settled=decider.settle(widened(decider, each.settled.provision)))
        for each in proposals
    ]
    merits = [
        _merit(decider, each.settled, held, parameters.price_of_moves)
        for each in proposals
    ]
    # Of equals the first: the actor's before the search's.
    (gained, _), best = max(
        zip(merits, proposals, strict=True), key=lambda each: each[0]
    )
    if gained <= _worth(decider, held) + _TRIFLE:
        message = "no provision serves clearly more than the present one"
        return _kept(held, *messages, message)
    return replace(best, messages=(*messages, *best.messages))


def _without_actor(
    decider: BatchDecider,
    held: Settled,
    budget: Budget,
) -> list[_Found]:
    """What the greedy provisioner and the local search propose."""
    message = "the greedy provisioner provisioned"
    greedy = _Found(provision_greedily(decider), "greedy", (message,))
    setting = setting_without_actor(decider)
    search = _Search(decider, held, SearchEffort(budget), budget.seed)
    return [greedy, *search.found(setting, None)]


def _with_actor(
    decider: BatchDecider,
    actor: Actor,
    held: Settled,
    budget: Budget,
    *,
    may_search: bool,
) -> list[_Found]:
    """What the actor proposes, first, and where that still falls short what the local search does, if it may."""
    parameters = budget.parameters_as(InssParameters)
    proposal, starts = _ask_actor(
        decider, actor, held, rounds=parameters.drawn, seed=budget.seed
    )
    # The search is ours: it is run only where the paper's actor does not serve all.
    if not may_search or not decider.short(proposal.settled):
        return [proposal]
    own = setting_without_actor(decider)
    trained = setting_of(actor, decider.problem)
    search = _Search(decider, held, SearchEffort(budget), budget.seed)
    return [proposal, *search.found(trained, starts), *search.found(own, None)]


def _ask_actor(
    decider: BatchDecider,
    actor: Actor,
    held: Settled,
    *,
    rounds: int,
    seed: int,
) -> tuple[_Found, Indices]:
    """The best of the actor's proposals, and the best few as starts of a search."""
    world = world_of(decider, setting_of(actor, decider.problem))
    situation = situation_of(decider, world, held)
    options = propose(actor, world, situation, rounds=rounds, seed=seed)
    proposal, starts = best_proposals(decider, world, options)
    message = f"the actor provisioned ({actor.notes or 'without notes'})"
    return _Found(proposal, "feasible", (message,)), starts


@dataclass(frozen=True, slots=True)
class _Search:
    """The local search within one plan."""

    decider: BatchDecider
    held: Settled
    effort: SearchEffort
    seed: int

    def found(
        self, setting: ActorSetting, proposed: Indices | None
    ) -> Iterator[_Found]:
        """What it finds from proposals and drawn starts, and from what is held alone, which moves little."""
        if not _is_searchable(self.decider.problem) or self.effort.is_spent:
            return
        world = world_of(self.decider, setting)
        figures = figures_of(self.decider, world)
        begin = random_starts(world, figures.rates_rps, count=STARTS, seed=self.seed)
        if proposed is not None:
            begin = np.concatenate([proposed, begin])
        # What is held is a search of its own: among the others a start that moves more would win.
        for tried in (options_of(world, self.held.provision), begin):
            if len(tried):
                chosen, _ = improve(
                    world, tried, figures, passes=_PASSES, effort=self.effort
                )
                settled = self.decider.settle(provision_of(world, chosen))
                ended = " until its budget ended" if self.effort.is_spent else ""
                message = f"a local search provisioned{ended}"
                yield _Found(settled, "feasible", (message,))


def _is_searchable(problem: Problem) -> bool:
    """Whether the fleet and the services are few enough for the local search, whose passes grow with their product."""
    counts = [gpu_type.count for gpu_type in problem.gpu_types]
    services = sum(service.max_replicas != 0 for service in problem.services)
    has_stock = None not in counts
    gpus = sum(count or 0 for count in counts)
    return has_stock and 0 < gpus <= _MAX_GPUS and 0 < services <= MAX_SLOTS


def _merit(
    decider: BatchDecider, one: Settled, held: Settled, price_of_moves: float
) -> tuple[float, float]:
    """What a provision is worth less what it moves; where that is equal, the room that it has."""
    # A replica that moves serves nothing until it has started: GPUs are too full for most shadow instances.
    price = price_of_moves * moved_share(held, one)
    return round(_worth(decider, one) - price, _DIGITS), decider.headroom(one)


def moved_share(held: Settled, one: Settled) -> float:
    """The part of the held replicas that a provision does not have."""
    before, after = (
        Counter(
            (gpu.gpu_type, share) for gpu in settled.provision for share in gpu.shares
        )
        for settled in (held, one)
    )
    return (before - after).total() / before.total() if before else 0.0


def _worth(decider: BatchDecider, settled: Settled) -> float:
    """What is served, as a share of the weighted demand, and how evenly: as the local search has it."""
    services = decider.problem.services
    demand = sum(service.priority * service.arrival_rate_rps for service in services)
    # More than all is worth nothing: it would be bought with replicas that move.
    even = EVEN_WEIGHT * min(decider.headroom(settled), 1.0)
    return even - decider.unserved(settled) / (demand or 1.0)


def _plan(decider: BatchDecider, variant: InssVariant, settled: Settled) -> Plan:
    problem = decider.problem
    able = {
        service.name
        for service in problem.services
        for gpu_type in problem.gpu_types
        if decider.percents(service.name, gpu_type.name)
    }
    carriers = settled.carriers()
    # InSS-ni routes as it believes, so that its plans break promises as those of the paper's variant do.
    capacities: Capacities = (
        true_capacities if variant.rules.knows_neighbours else _capacities_alone
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
    services = [problem.service(seat.service) for seat in carrier.seats]
    return [
        capacity_rps(
            problem.capacity_law,
            percentile=service.percentile,
            batch=seat.row.batch,
            slo_ms=service.slo_ms,
            execution_ms=seat.row.solo_ms,
        )
        for service, seat in zip(services, carrier.seats, strict=True)
    ]


def _queued(problem: Problem, observed: Observed) -> Mapping[str, float]:
    """Requests that wait beyond what the SLO allows, by Little's law: λ · (measured latency − SLO), at most λ · SLO."""
    found = {}
    for service in problem.services:
        reading = observed.reading(service.name)
        if reading is None or reading.latency_ms is None:
            continue
        # At most one SLO's worth: what waits for longer is lost, and no batch can be chosen for it.
        late_ms = min(reading.latency_ms - service.slo_ms, service.slo_ms)
        if late_ms > 0.0:
            found[service.name] = reading.arrival_rate_rps * late_ms / 1000.0
    return found
