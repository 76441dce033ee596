"""Policy `gslice`: shares that tune themselves by what was measured, without knowledge of interference.

* A service starts at the knee of its rate over the SM percent, with as many replicas as its rate needs by the profile
  of one alone on a GPU; the batch is always the largest that runs within half the SLO (`half_slo`).
* Each period, by its newest reading: where the measured latency is over the SLO, or less was served than came, every
  replica of the service is widened by a step; where the latency is below SLACK of the SLO, and narrower replicas would
  still carry the rate by their profile, they are narrowed by a step. Beyond the widest share a step is a replica more.
* It learns from misses: a service is for a while not narrowed to where it missed, while its rate is as high as then.
* Readings from before a change of the service's replicas, or too soon after it, are left aside (`gslice_tuning`).

Replicas stay where they are. One that has grown beyond its GPU goes to the fullest other one that holds it, keeps its
size where there is none. GPU types of new replicas: the cheapest for the service first, the next where that is full.

Source: Dhakal, Kulkarni, Ramakrishnan, "GSLICE: Controlled Spatial Sharing of GPUs for a Scalable Inference Platform",
ACM SoCC 2020, and what InSS says of it (sections 6.1 and 6.3); steps and thresholds are not in what we have of it, so
STEP_PERCENT and those of `gslice_tuning` are ours. Changed: GSLICE fills one GPU; several GPUs, types and replicas are
ours.

Good as a baseline that needs no predictions beyond the profile alone. Limits: it finds out by missing SLOs, and only
after the fact; neighbours that come are a surprise; capacities of a plan are those of replicas alone, so that promises
may break; no priority but in who is placed first.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from solvers.backfill.problem import FillProblem
from solvers.baselines.gslice_services import (
    FRESH,
    ServiceSlices,
    ShareLadder,
    knee_usd_per_hour,
    replica_want,
    share_ladder,
)
from solvers.baselines.gslice_tuning import (
    StepRange,
    Tuning,
    tune,
    tuning_from_json,
    tuning_to_json,
)
from solvers.baselines.half_slo import (
    half_slo_rps,
    profiles,
    replicas_for,
)
from solvers.baselines.leftover_fill import fill_left_over, widest
from solvers.greedy.arrange import (
    Key,
    add,
    arrange,
    obeys,
    replica_counts,
    running_carriers,
    without,
)
from solvers.greedy.configure import MAX_REPLICAS
from solvers.greedy.report import heuristic_report
from solvers.greedy.routing import ArrangedReplica, Carrier, reasons_short, route
from solvers.greedy.scaling_rules import remembered_services
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import BoundGpu, Plan
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import Json, Observed, ServiceObservation

NAME = "gslice"
MEMORY_VERSION = 1


def make_plan(
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    """The plan after one step of tuning, its report, and where every service's tuning stands."""
    begun = budget.elapsed()
    running = running_carriers(problem)
    carriers = list(running)
    before = {
        name: tuning_from_json(entry, now_s=observed.at_s)
        for name, entry in remembered_services(memory, MEMORY_VERSION).items()
    }
    tuned = [
        _tune(one, observed, before.get(one.service.name, FRESH))
        for one in _slices(problem, carriers)
    ]
    # Shares first, then removals, then additions: another replica is the last resort, and needs what the others free.
    _resize(problem, tuned, carriers)
    carriers = _without_surplus(problem, tuned, carriers)
    for one in tuned:
        _grow(problem, one, carriers)
    able = {one.service.name for one in tuned if one.ways}
    reasons = reasons_short(problem, carriers, able)
    plan = route(problem, NAME, carriers, reasons, capacities=_capacities)
    report = heuristic_report(
        problem,
        plan,
        seconds=budget.elapsed() - begun,
        method=NAME,
        messages=(
            f"{one.service.name}: step {one.tuning.steps:+d} from the knee"
            for one in tuned
            if one.tuning.steps != before.get(one.service.name, FRESH).steps
        ),
    )
    return plan, report, _remember(tuned, running, carriers, now_s=observed.at_s)


def _capacities(problem: Problem, carrier: Carrier) -> list[float]:
    """What each replica serves alone within half its SLO, whatever its neighbours do to it."""
    # Not `true_capacities`: GSLICE knows no interference but by its readings, and its plans are to show that.
    slos_ms = (problem.service(seat.service).slo_ms for seat in carrier.seats)
    return [
        half_slo_rps(seat.row, seat.row.solo_ms, slo_ms=slo_ms)
        for seat, slo_ms in zip(carrier.seats, slos_ms, strict=True)
    ]


def _slices(problem: Problem, carriers: Sequence[Carrier]) -> list[ServiceSlices]:
    """Every service with its ways, by falling priority."""
    by_type = [profiles(problem, gpu_type) for gpu_type in problem.gpu_types]
    counts = replica_counts(carriers)
    slices = []
    for service in problem.services_by_priority():
        found = [
            share_ladder(able[service.name]) for able in by_type if service.name in able
        ]
        running = {way.gpu_type: counts[service.name, way.gpu_type] for way in found}
        # Where it runs comes first, since a replica on another type would have to start.
        found.sort(
            key=lambda way: (
                -running[way.gpu_type],
                knee_usd_per_hour(service, way),
                way.gpu_type,
            )
        )
        slices.append(
            ServiceSlices(service=service, ways=tuple(found), running=running)
        )
    return slices


def _tune(one: ServiceSlices, observed: Observed, before: Tuning) -> ServiceSlices:
    """The service after its step, if its reading asks for one."""
    if not one.ways:
        return one
    service = one.service
    first = one.ways[0]
    highest = _highest_steps(service, first)
    # Shares may have been profiled again since: remembered steps are brought into the range that there is now.
    steps = min(max(before.steps, -first.knee), highest)
    # Where nothing runs, nothing was measured that a share could have changed.
    reading = observed.reading(service.name) if any(one.running.values()) else None
    lowest = _lowest_steps(one, steps, reading)
    tuning = tune(
        before.at(steps),
        reading,
        StepRange(lowest=lowest, highest=highest),
        slo_ms=service.slo_ms,
        now_s=observed.at_s,
    )
    return replace(one, tuning=tuning)


def _highest_steps(service: ServiceDemand, way: ShareLadder) -> int:
    """How far from the knee tuning may go up: to the widest share, then to more replicas."""
    top = len(way.shares) - 1 - way.knee
    # At most twice the replicas: where that does not help, more of them would not either.
    needed = replicas_for(service.arrival_rate_rps, way.rate_rps(top))
    return top + max(1, needed)


def _lowest_steps(
    one: ServiceSlices, steps: int, reading: ServiceObservation | None
) -> int:
    """One step down, where the replicas would still carry the rate."""
    rate_rps = one.service.arrival_rate_rps
    if reading is not None:
        rate_rps = max(rate_rps, reading.arrival_rate_rps)
    is_enough = _carried_rps(one, steps - 1) >= rate_rps
    return max(-one.ways[0].knee, steps - 1) if is_enough else steps


def _carried_rps(one: ServiceSlices, steps: int) -> float:
    """What the running replicas carry by their profile `steps` from the knee."""
    carried_rps = sum(
        one.running[way.gpu_type] * way.rate_rps(steps) for way in one.ways
    )
    first = one.ways[0]
    # From beyond the widest share, a step down takes a replica away.
    is_beyond = first.knee + steps >= len(first.shares) - 1
    return carried_rps - (first.rate_rps(steps) if is_beyond else 0.0)


def _resize(
    problem: Problem,
    tuned: Sequence[ServiceSlices],
    carriers: list[Carrier],
) -> None:
    """Give the running replicas their shares: on their GPU if it holds them, else on another, else not at all."""
    rows = {
        (one.service.name, way.gpu_type): way.row(one.tuning.steps)
        for one in tuned
        for way in one.ways
    }
    for index, carrier in enumerate(carriers):
        carriers[index] = _resized(problem, carrier, rows)
    for key, row in rows.items():
        # One at a time, since each that moves may leave room for the next one.
        while (moved := _with_one_moved(problem, carriers, key, row)) is not None:
            carriers[:] = moved
    carriers[:] = [carrier for carrier in carriers if carrier.seats]


def _resized(
    problem: Problem,
    carrier: Carrier,
    rows: Mapping[Key, OperatingPoint],
) -> Carrier:
    """The carrier with the shares that it holds, narrower ones first; without services that it cannot serve."""
    seats = [seat for seat in carrier.seats if (seat.service, carrier.gpu_type) in rows]
    wanted = [
        ArrangedReplica(service=seat.service, row=rows[seat.service, carrier.gpu_type])
        for seat in seats
    ]
    # Those that shrink first, so that those that grow find the room.
    for at in sorted(
        range(len(seats)),
        key=lambda at: wanted[at].row.sm_percent - seats[at].row.sm_percent,
    ):
        trial = Carrier(
            gpu_type=carrier.gpu_type, seats=(*seats[:at], wanted[at], *seats[at + 1 :])
        )
        if obeys(problem, trial):
            seats = list(trial.seats)
    return Carrier(gpu_type=carrier.gpu_type, seats=tuple(seats))


def _with_one_moved(
    problem: Problem,
    carriers: Sequence[Carrier],
    key: Key,
    row: OperatingPoint,
) -> list[Carrier] | None:
    """The carriers with one replica that has another row put where the row fits; None if none has, or none fits."""
    service, gpu_type = key
    for index, carrier in enumerate(carriers):
        if carrier.gpu_type == gpu_type and any(
            one.service == service and one.row != row for one in carrier.seats
        ):
            moved = [
                *carriers[:index],
                without(carrier, service),
                *carriers[index + 1 :],
            ]
            return moved if add(problem, moved, key, row, 1) else None
    return None


def _without_surplus(
    problem: Problem,
    tuned: Sequence[ServiceSlices],
    carriers: Sequence[Carrier],
) -> list[Carrier]:
    counts = replica_counts(carriers)
    wanted = {}
    for one in tuned:
        want = replica_want(one)
        for way in one.ways:
            key = (one.service.name, way.gpu_type)
            wanted[key] = min(counts[key], want.ask(way.rate_rps(one.tuning.steps)))
            want.get(way.rate_rps(one.tuning.steps), wanted[key])
    return arrange(problem, carriers, wanted, {})


def _grow(problem: Problem, one: ServiceSlices, carriers: list[Carrier]) -> None:
    """Add the replicas that the service lacks, as far as there is room."""
    counts = replica_counts(carriers)
    want = replica_want(one)
    steps = one.tuning.steps
    # All that run count before any is added: a preferred type must not get what another one has already.
    for way in one.ways:
        want.get(way.rate_rps(steps), counts[one.service.name, way.gpu_type])
    room = MAX_REPLICAS - counts.total()
    for way in one.ways:
        rate_rps = way.rate_rps(steps)
        key = (one.service.name, way.gpu_type)
        asked = min(want.ask(rate_rps), room)
        if asked > 0:
            placed = add(problem, carriers, key, way.row(steps), asked)
            want.get(rate_rps, placed)
            room -= placed


def _remember(
    tuned: Sequence[ServiceSlices],
    before: Sequence[Carrier],
    after: Sequence[Carrier],
    *,
    now_s: float,
) -> Json:
    """Every service's tuning, with the present as its last change where its replicas have changed."""
    old, new = _rows(before), _rows(after)
    services: dict[str, Json] = {}
    for one in tuned:
        name = one.service.name
        tuning = (
            one.tuning
            # Any change restarts the wait for readings, also one that another service's growth forced on it.
            if old[name] == new[name]
            else replace(one.tuning, changed_at_s=now_s)
        )
        services[name] = tuning_to_json(tuning)
    return {"version": MEMORY_VERSION, "services": services}


def _rows(
    carriers: Sequence[Carrier],
) -> defaultdict[str, Counter[tuple[str, OperatingPoint]]]:
    """By service, its replicas by GPU type and row."""
    # Counted, not listed: which GPU of a type a replica is on, a plan does not say.
    rows: defaultdict[str, Counter[tuple[str, OperatingPoint]]] = defaultdict(Counter)
    for carrier in carriers:
        for seat in carrier.seats:
            rows[seat.service][carrier.gpu_type, seat.row] += 1
    return rows


def fill(wanted: FillProblem) -> tuple[BoundGpu, ...]:
    """The bound plan's GPUs with at most one task each. Raises InvalidInput for a replica without a service or row."""
    return fill_left_over(wanted, widest)
