"""Status: what can be said of a service or a node right now, as conditions with typed reasons. Pure functions."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from app.answers.conditions import (
    Condition,
    ConditionType,
    PlanFacts,
    Truth,
    WaitingPlan,
    plan_conditions,
)
from app.answers.feasible import infeasibility
from app.loop.events import describe_avoided
from app.loop.make_commands import effective_mode
from app.loop.make_problem import PlannedPoints
from app.loop.observe import observe
from app.loop.planning.limits import min_replicas
from app.loop.planning.reschedule import MAX_NODES, failing_everywhere
from app.loop.planning.survival import cheapest_help, describe_gap
from app.solver.process import COMPILING_KERNELS
from app.store.node_book import AgentStatus
from app.store.store import Snapshot
from solvers.check_survival import survival_gaps
from solvers.predict.data.samples import Group
from solvers.tick.survive import make_goal
from solvers.types.plan import BoundPlan, planned_rates_rps
from solvers.types.state import Demand, GpuId, Mode, Service, ServiceObservation
from solvers.types.survival import Survival


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """Everything that is known of a service beyond what was asked for."""

    replicas: tuple[tuple[str, int], ...]
    """(GPU type, replicas in the target), by GPU type."""
    planned_rate_rps: float
    reading: ServiceObservation | None
    conditions: tuple[Condition, ...]


def service_statuses(
    snapshot: Snapshot,
    names: Sequence[str],
    newest_demands: Mapping[str, Demand] = MappingProxyType({}),
) -> dict[str, ServiceStatus]:
    """The status of each named service that the snapshot knows.

    `newest_demands`: what the newest decision was made for, by service, whether or not its plan came into force.
    """
    snapshot = _without_passing(snapshot)
    observed = observe(snapshot)
    services = {service.name: service for service in snapshot.state.services}
    return {
        name: _service_status(
            snapshot, services[name], observed.reading(name), newest_demands.get(name)
        )
        # Services may be gone between the question and the snapshot.
        for name in names
        if name in services
    }


def _without_passing(snapshot: Snapshot) -> Snapshot:
    """The snapshot without a proposal that waits for no person: the tick that made it pushes it a moment later."""
    if snapshot.proposal is None:
        return snapshot
    mode = effective_mode(
        snapshot.settings,
        snapshot.state.services,
        snapshot.target,
        snapshot.proposal.bound,
    )
    return replace(snapshot, proposal=None) if mode is Mode.AUTO else snapshot


def while_compiling(statuses: Mapping[str, ServiceStatus]) -> dict[str, ServiceStatus]:
    """The same while the solver compiles: what is not planned says that it waits for that."""
    return {
        name: replace(
            status,
            conditions=tuple(
                replace(each, message=f"{each.message}; {COMPILING_KERNELS}")
                if each.reason == "NotPlanned"
                else each
                for each in status.conditions
            ),
        )
        for name, status in statuses.items()
    }


def _service_status(
    snapshot: Snapshot,
    service: Service,
    reading: ServiceObservation | None,
    demand: Demand | None,
) -> ServiceStatus:
    kept = "advised" if snapshot.decided_rps.get(service.name) else "planned"
    telemetry = _telemetry(reading, snapshot.settings.stale_after_s, kept=kept)
    slo_met = _slo_met(service, reading, telemetry)
    replicas = _replicas(snapshot.target, service.name)
    holds = _predictions_hold(snapshot, service, replicas)
    facts = _plan_facts(snapshot, service, reading, demand)
    planned = plan_conditions(facts)
    return ServiceStatus(
        replicas=tuple(sorted(replicas.items())),
        planned_rate_rps=facts.planned_rps,
        reading=reading,
        conditions=(
            *(planned.ready, telemetry, planned.feasible, planned.applied),
            *(holds, slo_met),
            *_launches(snapshot, service.name),
            *_survives(snapshot, service, reading),
        ),
    )


def _replicas(target: BoundPlan | None, service: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for gpu in target.gpus if target else ():
        counts[gpu.gpu_type] += sum(
            replica.service == service for replica in gpu.replicas
        )
    # The plus drops the types with no replica.
    return +counts


def _condition(
    kind: ConditionType, status: Truth, reason: str, message: str
) -> Condition:
    return Condition(type=kind, status=status, reason=reason, message=message)


def _telemetry(
    reading: ServiceObservation | None, stale_after_s: float, *, kept: str
) -> Condition:
    if reading is None:
        return _condition(
            "TelemetryAvailable",
            "False",
            "MetricsMissing",
            f"nothing was reported of this service in the last few minutes; what is {kept} stays",
        )
    if reading.age_s > stale_after_s:
        return _condition(
            "TelemetryAvailable",
            "False",
            "MetricsStale",
            f"the newest window is {reading.age_s:.0f} s old (limit {stale_after_s:g}); what is {kept} stays",
        )
    return _condition(
        "TelemetryAvailable",
        "True",
        "MetricsFound",
        f"{reading.arrival_rate_rps:.1f} requests per second arrive",
    )


def slo_objection(snapshot: Snapshot, service: Service) -> str | None:
    """Why no operating point keeps the service's SLO, with the least SLO that is possible; None: one does.

    Of a language model plans alone say it: to find out takes seconds.
    """
    if service.llm is not None:
        return None
    # That SLO is of types that the fleet has, where the service may use any of them.
    present = {gpu.gpu_type for gpu in snapshot.state.gpus}
    points = PlannedPoints().of(snapshot, [service.network])
    return infeasibility(service, snapshot.state.gpu_types, points, present=present)


def _plan_facts(
    snapshot: Snapshot,
    service: Service,
    reading: ServiceObservation | None,
    demand: Demand | None,
) -> PlanFacts:
    """What a service's plans are judged by."""
    facts = PlanFacts(
        objection=slo_objection(snapshot, service),
        is_off=service.mode is Mode.OFF,
        min_replicas=min_replicas(service.scaling),
        wanted_rps=_wanted_rps(snapshot, service.name, reading, demand),
        waiting=_waiting(snapshot, service.name),
    )
    if snapshot.target is None:
        return facts
    facts = _in_force(facts, snapshot.target, service.name)
    return _followed(facts, snapshot, snapshot.target, service)


def _in_force(facts: PlanFacts, target: BoundPlan, service: str) -> PlanFacts:
    """With what the plan in force has of the service."""
    return replace(
        facts,
        generation=target.generation,
        replicas=_replicas(target, service).total(),
        planned_rps=planned_rates_rps(target)[service],
        unserved=tuple(entry for entry in target.unserved if entry.service == service),
    )


def _followed(
    facts: PlanFacts, snapshot: Snapshot, target: BoundPlan, service: Service
) -> PlanFacts:
    """With how the nodes follow that plan."""
    carrying = {
        gpu.node
        for gpu in target.gpus
        if any(replica.service == service.name for replica in gpu.replicas)
    }
    # Nodes without a replica of it may lag behind: it is served all the same.
    carriers = [status for status in snapshot.statuses if status.node in carrying]
    return replace(
        facts,
        carriers=len(carrying),
        ahead=_names(carriers, lambda has: has > target.generation),
        behind=_names(carriers, lambda has: has < target.generation),
    )


def _wanted_rps(
    snapshot: Snapshot,
    service: str,
    reading: ServiceObservation | None,
    demand: Demand | None,
) -> float | None:
    """What is expected of it; where the plan in force has nothing for it, what arrives, too."""
    # Of a service with replicas the forecast knows better: after a fall the last minute's mean is still high.
    if demand is not None and _carrying(snapshot.target, service):
        return demand.arrival_rate_rps
    known = [each.arrival_rate_rps for each in (demand, reading) if each is not None]
    return max(known, default=None)


def _waiting(snapshot: Snapshot, service: str) -> WaitingPlan | None:
    proposal = snapshot.proposal
    if proposal is None:
        return None
    replicas = _replicas(proposal.bound, service).total()
    return WaitingPlan(id=proposal.plan_id, replicas=replicas)


def node_applied(
    *, held: int, wanted: int, is_renumbered: bool, said: str = "", detail: str = ""
) -> Condition:
    """Whether a node follows the newest command that this control plane made for it, and carries it out.

    `held`: the generation that it has in force; `wanted`: of its newest command; 0 = there is none. `is_renumbered`:
    generations began again after a restore, and no plan was pushed since. `said`: what its agent acknowledged of that
    command, with the reason.
    """
    if held > wanted:
        message = f"it follows generation {held}, but this control plane's newest command for it is {wanted}"
        return _condition("Applied", "False", "NodesAhead", message)
    if not wanted:
        return _condition(
            "Applied", "Unknown", "NoTarget", "no command was made for it yet"
        )
    # What the node has under this number may be another command than this database's.
    if is_renumbered:
        message = f"generations were renumbered after {wanted}, as after a restore; it follows the next plan"
        return _condition("Applied", "False", "Renumbered", message)
    if held < wanted and said == "refused":
        message = f"generation {wanted} is refused: {detail}"
        return _condition("Applied", "False", "CommandRefused", message)
    if held < wanted:
        message = f"generation {wanted} is not yet in force, {held} is"
        return _condition("Applied", "False", "RollingOut", message)
    if said == "failed":
        message = f"generation {wanted} is in force, but not all of it is carried out: {detail}"
        return _condition("Applied", "False", "CarriedOutInPart", message)
    message = f"generation {wanted} is in force"
    return _condition("Applied", "True", "NodesFollow", message)


def _launches(snapshot: Snapshot, service: str) -> Iterator[Condition]:
    """Where its launches fail; nothing where they do not."""
    failing = [each for each in snapshot.avoided if each.service == service]
    if not failing:
        return
    stays = _carrying(snapshot.target, service) & {each.gpu for each in failing}
    message = "; ".join(map(describe_avoided, failing))
    if service in failing_everywhere(snapshot):
        message += (
            f"; it fails on {MAX_NODES} nodes, most likely through its own fault, and is not moved again: "
            "see its replicas' logs"
        )
    elif stays:
        message += f"; it is still planned on {', '.join(sorted(stays))}: the plan's messages say why"
    yield _condition("Launches", "False", "LaunchesFail", message)


def _survives(
    snapshot: Snapshot, service: Service, reading: ServiceObservation | None
) -> Iterator[Condition]:
    """Whether enough of it is left after a loss; nothing where its team asks for nothing, or nothing arrives."""
    target = snapshot.target
    # Judged by what arrives now: the forecast that the target was made for is not kept with it.
    goal = make_goal(
        service.name,
        reading.arrival_rate_rps if reading is not None else 0.0,
        survival=service.survival,
        # The policy's default asks for no replica more, so that no user is told what it could not do.
        default=Survival(loss="none"),
    )
    if goal is None or target is None:
        return
    gaps = survival_gaps(target, snapshot.state.nodes, (goal,))
    if not gaps:
        message = f"after the loss of any {goal.loss}, {100 * goal.share:g} % of the load is planned elsewhere"
        yield _condition("Survives", "True", "Spread", message)
        return
    (gap,) = gaps
    message = describe_gap(gap, target, snapshot.state)
    message += cheapest_help(gap, target, snapshot.state, snapshot.points)
    yield _condition("Survives", "False", "LossTakesTooMuch", message)


def _carrying(target: BoundPlan | None, service: str) -> set[GpuId]:
    """The GPUs on which the target has a replica of it."""
    return {
        gpu.id
        for gpu in (target.gpus if target else ())
        if any(replica.service == service for replica in gpu.replicas)
    }


def _names(statuses: Sequence[AgentStatus], matches: Callable[[int], bool]) -> str:
    """The nodes whose generation matches, in one line."""
    return ", ".join(
        sorted(status.node for status in statuses if matches(status.generation))
    )


def _predictions_hold(
    snapshot: Snapshot, service: Service, replicas: Mapping[str, int]
) -> Condition:
    healths = {
        correction.group: correction.health for correction in snapshot.corrections
    }
    of_types = {
        gpu_type: healths.get(Group(service.network, gpu_type))
        for gpu_type in sorted(replicas)
    }
    # A correction may be older than the replicas: without readings it says nothing of those that run.
    served = {
        gpu_type: health
        for gpu_type, health in of_types.items()
        if health is not None and health.readings
    }
    drifted = [
        f"{gpu_type}: {100 * health.error:.0f} % off"
        for gpu_type, health in served.items()
        if health.is_alarmed
    ]
    if drifted:
        return _condition(
            "PredictionsHold",
            "False",
            "FitDrifted",
            f"execution times left their band; plans keep more headroom until they are learned ({', '.join(drifted)})",
        )
    if not served:
        return _condition(
            "PredictionsHold",
            "Unknown",
            "NotServedYet",
            "no served batch has been compared with the predictions yet",
        )
    return _condition(
        "PredictionsHold",
        "True",
        "WithinBand",
        f"execution times are as predicted on {', '.join(served)}",
    )


def _slo_met(
    service: Service, reading: ServiceObservation | None, telemetry: Condition
) -> Condition:
    # Old figures would show an SLO as met that is not watched.
    if reading is None or telemetry.status != "True":
        return _condition("SLOMet", "Unknown", telemetry.reason, telemetry.message)
    if reading.attainment is None:
        return _condition(
            "SLOMet", "Unknown", "NoTraffic", "no request finished in the last minute"
        )
    figures = (
        f"{100 * reading.attainment:.2f} % of the last minute's requests met {service.slo.latency_ms:g} ms "
        f"(wanted {100 * service.slo.percentile:g} %)"
    )
    if reading.attainment >= service.slo.percentile:
        return _condition("SLOMet", "True", "AttainmentKept", figures)
    return _condition("SLOMet", "False", "AttainmentMissed", figures)
