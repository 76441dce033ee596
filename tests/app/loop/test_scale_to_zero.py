"""Scale to zero: nodes know a service without a replica, its first request starts one, which then stays."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from agents.base.protocol import Observation, ReplicaReading, Route, ServiceReading
from app.loop.forecast import make_demands
from app.loop.waking import WAKING, WAKING_RPS, waking_services
from app.store.launch_book import FAILURES
from app.store.store import ServiceWindow
from app.store.windows import parts_of
from solvers.forecast.choose_technique import TechniqueChoice
from solvers.forecast.techniques import TECHNIQUES
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Demand, Mode, Service, Slo
from tests.app.fleets import Answering, Fleet, a_fleet, a_node, a_service, on_half_gpus
from tests.app.snapshots import a_bound_plan, a_replica, a_snapshot, a_state, windows_of
from tests.waiting import run

CHAT = {"chat": 20.0}


def waiting_for(windows: Sequence[ServiceWindow]) -> tuple[ServiceWindow, ...]:
    """The same where a request has no answer at the end of each."""
    return tuple(replace(each, pending=1) for each in windows)


UNDER_WAY = waiting_for(windows_of("chat", [1], served=0))


def without_quiet(problem: Problem) -> Plan:
    """Half a GPU for each service with demand."""
    busy = tuple(each for each in problem.services if each.arrival_rate_rps > 0.0)
    return on_half_gpus(replace(problem, services=busy))


def a_serving_fleet(*, mode: Mode = Mode.AUTO) -> Fleet:
    """One service has its replica, and the plan is in force."""
    fleet = a_fleet(
        a_service("chat", min_replicas=1), solver=Answering(plan=without_quiet)
    )
    fleet.pass_time(rates_rps=CHAT)
    fleet.tick()
    fleet.change_settings(mode=mode)
    return fleet


def routes(fleet: Fleet, node: str) -> dict[str, Route]:
    command = run(fleet.store.command_for(node, 0))
    assert command is not None
    return {each.service: each for each in command.routes}


def add(fleet: Fleet) -> None:
    fleet.store.put_services([a_service("doze")])


def change_slo(fleet: Fleet) -> None:
    doze = replace(a_service("doze"), slo=Slo(latency_ms=70.0, percentile=0.9))
    fleet.store.put_services([doze])


def rename(fleet: Fleet) -> None:
    fleet.store.delete_service("doze")
    fleet.store.put_services([a_service("nap")])


def join(fleet: Fleet) -> None:
    fleet.store.put_node(*a_node("n3"), at=fleet.clock.now())


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.APPROVE])
def test_nodes_are_told_of_services_at_rest_as_soon_as_these_are_applied(
    mode: Mode,
) -> None:
    fleet = a_serving_fleet(mode=mode)

    def told(change: Callable[[Fleet], None]) -> int:
        """Generations that the change makes in three ticks."""
        before = fleet.generation
        change(fleet)
        for _ in range(3):
            fleet.pass_time(rates_rps=CHAT)
            fleet.tick()
        return fleet.generation - before

    assert told(lambda _: None) == 0
    assert told(add) == 1
    assert {"doze"} < routes(fleet, "n2").keys() | {"-"}
    assert told(add) == 0
    assert told(change_slo) == 1
    assert routes(fleet, "n2")["doze"].slo_ms == 70.0
    assert told(rename) == 1
    assert routes(fleet, "n2").keys() == {"nap"}
    assert told(join) == 1
    assert routes(fleet, "n3").keys() == {"nap"}


MANY = ("n1", "n2", *(f"m{number}" for number in range(10, 30)))
"""More than know of services at rest: the last one of those, by name, is m25."""
BUSY = {**CHAT, "late": 20.0}


def a_proposing_fleet() -> tuple[Fleet, int]:
    """A plan waits for a person who approves it, and a service is at rest; the plan's id."""
    fleet = a_serving_fleet(mode=Mode.APPROVE)
    for name in MANY:
        fleet.store.put_node(*a_node(name), at=fleet.clock.now())
    fleet.store.put_services([a_service("doze"), a_service("late", min_replicas=1)])
    fleet.pass_time(rates_rps=BUSY, heard=MANY)
    outcome = fleet.tick()
    assert (outcome.state, outcome.generation) == ("proposed", 2)
    assert outcome.plan_id is not None
    return fleet, outcome.plan_id


def test_nodes_are_told_in_the_tick_that_proposes_a_plan_which_can_be_approved() -> (
    None
):
    fleet, plan_id = a_proposing_fleet()
    assert "doze" in routes(fleet, "m25")
    fleet.store.approve(plan_id)
    assert fleet.tick().state == "target"
    assert {"chat", "late"} == {each.service for each in fleet.replicas()}


def test_nodes_are_not_told_at_once_of_a_service_that_a_proposed_plan_starts() -> None:
    fleet = a_serving_fleet(mode=Mode.APPROVE)
    fleet.store.put_services([a_service("late", min_replicas=1)])
    fleet.pass_time(rates_rps=BUSY)
    outcome = fleet.tick()
    assert (outcome.state, outcome.generation) == ("proposed", 1)
    fleet.store.reject(outcome.plan_id or 0)
    fleet.pass_time(rates_rps=BUSY)
    assert fleet.tick().generation == 2
    assert "late" in routes(fleet, "n2")


def test_nodes_that_change_places_are_told_once_a_person_decided_on_the_plan() -> None:
    fleet, plan_id = a_proposing_fleet()
    heard = [name for name in MANY if name != "m25"]
    for _ in range(12):
        fleet.pass_time(rates_rps=BUSY, heard=heard)
        fleet.tick()
    assert fleet.store.plans[plan_id].state == "proposed"
    assert "doze" not in routes(fleet, "m26")
    fleet.store.approve(plan_id)
    assert fleet.tick().plan_id == plan_id
    assert "doze" in routes(fleet, "m26")


def test_a_slo_that_changes_no_plan_reaches_the_replicas_router() -> None:
    fleet = a_serving_fleet()
    chat = a_service("chat", min_replicas=1)
    fleet.store.put_services(
        [replace(chat, slo=Slo(latency_ms=101.0, percentile=0.98))]
    )
    fleet.pass_time(rates_rps=CHAT)
    fleet.tick()
    assert routes(fleet, "n1")["chat"].slo_ms == 101.0


def test_advice_tells_nodes_nothing() -> None:
    fleet = a_serving_fleet(mode=Mode.ADVISE)
    add(fleet)
    fleet.pass_time(rates_rps=CHAT)
    fleet.tick()
    assert fleet.generation == 1


def test_the_first_request_of_a_service_at_rest_wakes_the_loop_and_only_there() -> None:
    fleet = a_serving_fleet()
    fleet.store.put_services([a_service("doze"), a_service("warm", min_replicas=1)])
    fleet.tick()
    woken: list[str] = []
    fleet.store.on_wake = lambda: woken.append("woken")
    fleet.pass_time(rates_rps={**CHAT, "warm": 1.0})
    assert woken == []
    fleet.pass_time(rates_rps={**CHAT, "doze": 1.0})
    assert woken != []
    fleet.tick()
    assert "doze" in {each.service for each in fleet.replicas()}


def demand_of(
    windows: tuple[ServiceWindow, ...],
    *,
    service: Service | None = None,
    technique: str = "last_value",
) -> Demand:
    snapshot = a_snapshot(
        state=a_state(services=(service or a_service("chat", downscale_delay_s=40.0),)),
        windows=windows,
    )
    choices = {"chat": TechniqueChoice(technique=technique)}
    (demand,) = make_demands(replace(snapshot, choices=choices))
    return demand


@pytest.mark.parametrize("technique", sorted(TECHNIQUES))
@pytest.mark.parametrize("age", [0, 1, 4, 19])
def test_a_request_is_demand_for_the_downscale_delay_whatever_the_forecast_says(
    technique: str, age: int
) -> None:
    arrivals = [0] * 100 + [1] + [0] * age
    assert (
        demand_of(windows_of("chat", arrivals), technique=technique).arrival_rate_rps
        >= WAKING_RPS
    )


@pytest.mark.parametrize("technique", sorted(TECHNIQUES))
def test_what_waits_or_starts_is_demand_however_long_ago_it_came(
    technique: str,
) -> None:
    quiet = windows_of("chat", [0] * 60)
    pending = tuple(replace(each, pending=1) for each in quiet)
    demand = demand_of(pending, technique=technique)
    assert (demand.arrival_rate_rps, demand.method) == (WAKING_RPS, WAKING)
    # Where GPUs are short, who waits is not taken for room for what may come.
    assert demand.headroom_rps == 0.0
    # Once it is answered, or ready, the downscale delay begins.
    for since, is_demand in ((19, True), (22, False)):
        rested = (*pending[:-since], *quiet[-since:])
        assert (
            demand_of(rested, technique=technique).arrival_rate_rps > 0.0
        ) is is_demand


@pytest.mark.parametrize(
    ("windows", "is_planned", "wakes"),
    [
        # The first request to a service without a replica.
        (windows_of("chat", [0] * 30 + [1], served=0), False, True),
        # It waits while the replica starts, and for the downscale delay after that.
        (waiting_for(windows_of("chat", [1] + [0] * 20, served=0)), True, True),
        (
            (
                *waiting_for(windows_of("chat", [1, 0], served=0, last_ended_s=38.0)),
                *windows_of("chat", [0] * 19),
            ),
            True,
            True,
        ),
        # Asked six times a minute and served by its replica: nothing wakes, though a request is under way now and then.
        (windows_of("chat", [1, 0, 0, 0, 0] * 6), True, False),
        (
            (*windows_of("chat", [0] * 9, last_ended_s=2.0), *UNDER_WAY),
            True,
            False,
        ),
        # Too much to be at rest soon, also where older windows are not counted.
        (windows_of("chat", [0] * 29 + [11], served=0), False, False),
        (windows_of("chat", [11] + [0] * 39 + [1], served=0), False, True),
    ],
)
def test_a_service_wakes_for_its_first_requests_alone(
    windows: tuple[ServiceWindow, ...], is_planned: bool, wakes: bool
) -> None:
    service = a_service("chat", downscale_delay_s=40.0)
    target = a_bound_plan([a_replica("chat-1")]) if is_planned else None
    snapshot = a_snapshot(
        state=a_state(services=(service,)), windows=windows, target=target
    )
    assert waking_services(snapshot) == (("chat",) if wakes else ())


def test_a_service_that_never_rests_is_forecast_as_before() -> None:
    pending = tuple(replace(each, pending=1) for each in windows_of("chat", [0] * 60))
    for scaling in ({"min_replicas": 1}, {"buffer_replicas": 1}):
        demand = demand_of(pending, service=a_service("chat", **scaling))
        assert (demand.arrival_rate_rps, demand.method) == (0.0, "last_value")


def test_requests_without_an_answer_and_replicas_that_start_are_pending() -> None:
    def a_reading(service: str, state: str) -> ReplicaReading:
        return ReplicaReading(
            id=f"{service}-1",
            service=service,
            gpu_index=0,
            state=state,  # type: ignore[arg-type]
            sm_percent=50.0,
            batch=1,
            memory_mib=100.0,
        )

    services = [
        ServiceReading(service=name, arrivals=0, served=0, in_slo=0, queued=queued)
        for name, queued in (("waits", 2), ("starts", 0), ("runs", 0), ("fails", 0))
    ]
    again = [
        structs.replace(a_reading(service, "starting"), restarts=restarts)
        for service, restarts in (("starts", FAILURES - 1), ("fails", FAILURES))
    ]
    observation = Observation(
        node="n1",
        boot="b",
        sequence=1,
        window_start_s=0.0,
        window_s=1.0,
        generation=0,
        services=tuple(services),
        replicas=(a_reading("starts", "starting"), a_reading("runs", "ready"), *again),
    )
    parts = parts_of(observation, end_s=1.0, window_s=1.0)
    pending = {service: sums.pending for (service, _), sums in parts}
    assert pending == {"waits": 2, "starts": 2, "runs": 0, "fails": 0}


def test_the_policy_is_told_who_is_awake_for_a_few_requests() -> None:
    fleet = a_serving_fleet()
    fleet.store.put_services([a_service("doze")])
    fleet.tick()
    for rate_rps in (1.0, 0.0, 10.0):
        fleet.pass_time(rates_rps={**CHAT, "doze": rate_rps})
        fleet.tick()
    solver = fleet.loop.solver
    assert isinstance(solver, Answering)
    told = [each.observed.waking for each in solver.asked[-4:]]
    # Once it has its replica, which answers, nothing wakes any more.
    assert told == [(), ("doze",), (), ()]
