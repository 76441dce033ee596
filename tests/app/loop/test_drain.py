"""Draining: what runs on a node moves away as soon as others have room, and at the deadline whatever it costs."""

from dataclasses import replace

from app.loop.tick import TickOutcome
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan, Unserved
from solvers.types.problem import Problem
from tests.app.fleets import Answering, Fleet, a_fleet, a_node

CHAT = {"chat": 20.0}


def as_far_as_it_goes(problem: Problem) -> Plan:
    """Half of the rate on each of two GPUs; what has no GPU is left out."""
    (service,) = problem.services
    usable = min(2, problem.gpu_types[0].count or 0)
    half_rps = service.arrival_rate_rps / 2.0
    gpu = GpuPlan(
        gpu_type="fast",
        clock_mhz=1000.0,
        replicas=(
            ReplicaPlan(
                service=service.name,
                sm_percent=50.0,
                batch=1,
                arrival_rate_rps=half_rps,
            ),
        ),
    )
    left_rps = service.arrival_rate_rps - usable * half_rps
    unserved = Unserved(service=service.name, rate_rps=left_rps, reason="stock")
    return Plan(
        policy="test",
        gpus=(gpu,) * usable,
        unserved=(unserved,) if left_rps else (),
    )


def drain(fleet: Fleet, name: str, in_s: float) -> None:
    node, gpus = a_node(name)
    fleet.store.put_node(replace(node, cordoned=True, drain_in_s=in_s), gpus)


def after(fleet: Fleet) -> TickOutcome:
    fleet.pass_time(rates_rps=CHAT)
    return fleet.tick()


def nodes_of_target(fleet: Fleet) -> set[str]:
    return {gpu.id.partition("/")[0] for gpu in fleet.store.pushed[-1][1].gpus}


def test_what_runs_on_a_draining_node_moves_to_another_which_a_cordon_does_not_do() -> (
    None
):
    fleet = a_fleet()
    after(fleet)
    (first,) = nodes_of_target(fleet)
    node, gpus = a_node(first)
    fleet.store.put_node(replace(node, cordoned=True), gpus)
    after(fleet)
    assert nodes_of_target(fleet) == {first}
    drain(fleet, first, in_s=600.0)
    after(fleet)
    assert nodes_of_target(fleet) == {"n1", "n2"} - {first}


def test_a_node_is_drained_once_nothing_is_planned_there_and_its_agent_follows() -> (
    None
):
    fleet = a_fleet()
    after(fleet)
    (first,) = nodes_of_target(fleet)
    drain(fleet, first, in_s=600.0)
    after(fleet)
    assert "NodeDrained" not in fleet.kinds()
    for _ in range(3):
        after(fleet)
    assert fleet.kinds().count("NodeDrained") == 1


def test_a_node_that_nobody_can_replace_serves_until_its_deadline() -> None:
    fleet = a_fleet(solver=Answering(plan=as_far_as_it_goes))
    after(fleet)
    drain(fleet, "n1", in_s=600.0)
    waits = after(fleet)
    assert nodes_of_target(fleet) == {"n1", "n2"}
    assert waits.unserved_rps == 0.0
    assert waits.report is not None
    assert "at most until the deadline: n1" in " ".join(waits.report.messages)
    drain(fleet, "n1", in_s=0.0)
    over = after(fleet)
    assert nodes_of_target(fleet) == {"n2"}
    assert over.unserved_rps > 0.0


def test_a_draining_node_does_not_wait_for_a_shortage_that_it_cannot_mend() -> None:
    # Three GPUs' worth of demand is never met; the draining one would carry nothing of it.
    def half_is_missing(problem: Problem) -> Plan:
        plan = as_far_as_it_goes(problem)
        half_rps = problem.services[0].arrival_rate_rps / 2.0
        short = Unserved(service="chat", rate_rps=half_rps, reason="stock")
        return replace(plan, gpus=plan.gpus[:1], unserved=(short,))

    fleet = a_fleet(solver=Answering(plan=half_is_missing))
    after(fleet)
    (first,) = nodes_of_target(fleet)
    drain(fleet, first, in_s=600.0)
    after(fleet)
    assert nodes_of_target(fleet) == {"n1", "n2"} - {first}
