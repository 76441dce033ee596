"""The tick: when it holds, what it records, and when it pushes."""

from dataclasses import replace

import pytest

from app.loop.push import PROPOSAL_STAYS
from app.loop.tick import tick
from app.store.plan_states import PlanState
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan, Unserved
from solvers.types.problem import Problem
from solvers.types.state import Mode, Task
from tests.app.fleets import (
    Answering,
    Failing,
    Fleet,
    a_fleet,
    a_node,
    a_service,
    on_half_gpus,
    with_rates,
)
from tests.waiting import run

CHAT = {"chat": 20.0}


def states(fleet: Fleet) -> list[PlanState]:
    return [fleet.store.plans[key].state for key in sorted(fleet.store.plans)]


def two_replicas(problem: Problem) -> Plan:
    """The service's rate halved over two GPUs."""
    half = with_rates(on_half_gpus(problem), 0.5)
    return replace(half, gpus=tuple(replace(gpu, count=2) for gpu in half.gpus))


def too_many_on_one_gpu(problem: Problem) -> Plan:
    plan = on_half_gpus(problem)
    return replace(
        plan, gpus=tuple(replace(gpu, replicas=gpu.replicas * 3) for gpu in plan.gpus)
    )


def nothing_at_all(problem: Problem) -> Plan:
    return Plan(policy="test")


def test_a_plan_is_pushed_in_mode_auto_and_every_node_gets_a_command() -> None:
    fleet = a_fleet()
    fleet.pass_time(rates_rps=CHAT)
    outcome = fleet.tick()
    assert (
        outcome.state,
        outcome.generation,
        outcome.plan_id,
        outcome.cost_usd_per_hour,
    ) == ("target", 1, 1, 2.0)
    assert states(fleet) == ["target"]
    assert fleet.kinds() == ["PlanPushed"]
    commands = [run(fleet.store.command_for(node, 0)) for node in ("n1", "n2")]
    assert [
        command and (command.generation, len(command.gpus)) for command in commands
    ] == [(1, 1), (1, 0)]
    steps = {"snapshot", "forecast", "decide", "record", "push", "total"}
    assert outcome.seconds.keys() == steps


def test_an_approved_plan_is_pushed_by_the_next_tick_without_asking_the_solver() -> (
    None
):
    solver = Answering()
    fleet = a_fleet(mode=Mode.APPROVE, solver=solver)
    fleet.pass_time(rates_rps=CHAT)
    proposed = fleet.tick()
    assert proposed.plan_id is not None
    fleet.store.approve(proposed.plan_id)
    outcome = fleet.tick()
    assert (outcome.state, outcome.generation, outcome.plan_id) == (
        "target",
        1,
        proposed.plan_id,
    )
    assert len(solver.asked) == 1


def a_running_fleet(approve: str) -> Fleet:
    """One replica is in force, and an offline task that fits next to it waits; mode approve."""
    fleet = a_fleet()
    fleet.pass_time(rates_rps=CHAT)
    assert fleet.tick().state == "target"
    fleet.change_settings(mode=Mode.APPROVE, approve=approve)
    task = Task(name="scan", kind="offline", network="net", batch=1, iterations=1000)
    fleet.store.put_tasks([task], at=fleet.clock.now())
    return fleet


def tasks_in_force(fleet: Fleet) -> list[str]:
    _, bound = fleet.store.pushed[-1]
    return [task.name for gpu in bound.gpus for task in gpu.tasks]


@pytest.mark.parametrize(
    ("approve", "state", "tasks"),
    [("services", "target", ["scan"]), ("all", "proposed", [])],
)
def test_a_task_waits_for_a_person_only_where_everything_does(
    approve: str, state: str, tasks: list[str]
) -> None:
    fleet = a_running_fleet(approve)
    fleet.pass_time(rates_rps=CHAT)
    assert (fleet.tick().state, tasks_in_force(fleet)) == (state, tasks)
    assert [replica.service for replica in fleet.replicas()] == ["chat"]


def test_a_change_of_services_waits_while_a_task_starts_beside_what_runs() -> None:
    fleet = a_running_fleet("services")
    fleet.loop.solver = Answering(two_replicas)
    fleet.pass_time(rates_rps=CHAT)
    first, second = fleet.tick(), fleet.tick()
    assert (first.state, second.state) == ("target", "proposed")
    assert tasks_in_force(fleet) == ["scan"]
    assert len(fleet.replicas()) == 1
    # The proposal is made from the target that has the task, so that its approval counts.
    assert second.plan_id is not None
    fleet.store.approve(second.plan_id)
    assert fleet.tick().state == "target"
    assert len(fleet.replicas()) == 2


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.APPROVE])
def test_a_plan_is_only_proposed_in_modes_advise_and_approve_and_not_twice(
    mode: Mode,
) -> None:
    fleet = a_fleet(mode=mode)
    fleet.pass_time(rates_rps=CHAT)
    first = fleet.tick()
    assert (first.state, fleet.generation) == ("proposed", 0)
    fleet.pass_time(rates_rps=CHAT)
    second = fleet.tick()
    assert (second.state, second.reason) == (
        "kept",
        f"plan {first.plan_id} proposed this already",
    )
    assert states(fleet) == ["proposed", "kept"]


def test_a_proposal_stays_for_as_long_as_a_person_needs_to_read_it() -> None:
    fleet = a_fleet(mode=Mode.APPROVE)
    fleet.pass_time(rates_rps=CHAT)
    first = fleet.tick()
    fleet.loop.solver = Answering(two_replicas)

    fleet.pass_time(rates_rps=CHAT)
    soon = fleet.tick()
    fleet.clock.advance(PROPOSAL_STAYS.total_seconds())
    fleet.pass_time(rates_rps=CHAT)
    late = fleet.tick()

    assert (first.state, soon.state, late.state) == ("proposed", "kept", "proposed")
    assert soon.reason.startswith(f"plan {first.plan_id} waits for a person")
    assert states(fleet) == ["withdrawn", "kept", "proposed"]


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.APPROVE])
def test_of_all_plans_that_were_proposed_the_newest_waits_and_its_approval_counts(
    mode: Mode,
) -> None:
    fleet = a_fleet(mode=mode)
    fleet.pass_time(rates_rps=CHAT)
    fleet.tick()
    for _ in range(3):
        fleet.store.put_gpu_types(())  # Another revision of the catalogue.
        again = fleet.tick()
        assert again.state == "proposed"
    assert states(fleet) == ["withdrawn"] * 3 + ["proposed"]
    if mode is Mode.APPROVE:
        assert again.plan_id is not None
        fleet.store.approve(again.plan_id)
        assert fleet.tick().state == "target"


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.APPROVE])
def test_a_plan_that_changes_a_service_in_a_cautious_mode_is_only_proposed(
    mode: Mode,
) -> None:
    fleet = a_fleet()
    fleet.store.put_services([replace(a_service(), mode=mode)])
    fleet.pass_time(rates_rps=CHAT)
    outcome = fleet.tick()
    assert outcome.state == "proposed"
    assert f"mode {mode}" in outcome.reason
    assert fleet.generation == 0


def test_a_cautious_service_does_not_stop_plans_that_leave_it_alone() -> None:
    fleet = a_fleet()
    fleet.pass_time(rates_rps=CHAT)
    assert fleet.tick().state == "target"
    fleet.store.put_services(
        [replace(a_service(), mode=Mode.ADVISE), a_service("photo")]
    )
    fleet.pass_time(rates_rps=CHAT)
    assert fleet.tick().generation == 2


def test_a_service_in_mode_off_gets_no_replicas() -> None:
    solver = Answering()
    fleet = a_fleet(solver=solver)
    fleet.store.put_services([replace(a_service(), mode=Mode.OFF), a_service("photo")])
    fleet.pass_time(rates_rps=CHAT)
    fleet.tick()
    assert [service.name for service in solver.asked[0].problem.services] == ["photo"]


def test_an_approved_plan_loses_when_its_gpu_left_and_the_next_tick_decides_anew() -> (
    None
):
    fleet = a_fleet(mode=Mode.APPROVE)
    fleet.pass_time(rates_rps=CHAT)
    proposed = fleet.tick()
    assert proposed.plan_id is not None
    fleet.store.approve(proposed.plan_id)
    node, _ = a_node("n1")
    fleet.store.put_node(node, ())
    assert fleet.tick().state == "lost"
    assert fleet.generation == 0
    assert fleet.tick().state == "proposed"
    assert states(fleet) == ["lost", "proposed"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"mode": Mode.OFF}, "mode off"), ({"paused": True}, "plimsoll resume")],
)
def test_the_operator_can_hold_the_loop(
    settings: dict[str, object], words: str
) -> None:
    fleet = a_fleet(**settings)
    fleet.pass_time(rates_rps=CHAT)
    outcome = fleet.tick()
    assert outcome.state is None
    assert words in outcome.reason
    assert not fleet.store.plans


def test_a_held_loop_says_so_once_and_again_after_it_worked() -> None:
    fleet = a_fleet()
    for _ in range(2):
        fleet.pass_time(30.0, heard=())
        assert "telemetry is stale" in fleet.tick().reason
    assert fleet.kinds() == ["LoopHeld"]
    fleet.pass_time(rates_rps=CHAT)
    assert fleet.tick().state == "target"
    fleet.pass_time(30.0, heard=())
    held = fleet.tick()
    assert (held.state, held.generation) == (None, 1)
    assert fleet.kinds() == ["LoopHeld", "PlanPushed", "LoopHeld"]


def test_a_fleet_without_gpus_holds() -> None:
    fleet = a_fleet(nodes=())
    assert "no GPU is registered" in fleet.tick().reason


def test_a_lost_gpu_counts_neither_as_stock_nor_as_running() -> None:
    solver = Answering()
    fleet = a_fleet(solver=solver)
    fleet.pass_time(rates_rps=CHAT)
    fleet.tick()
    fleet.report_lost_gpu("n1")
    assert fleet.tick().state == "target"
    assert [gpu_type.count for gpu_type in solver.asked[-1].problem.gpu_types] == [1]
    assert solver.asked[-1].problem.current == Plan(policy="test")
    assert [gpu.id for gpu in fleet.store.pushed[-1][1].gpus] == ["n2/gpu-0"]


def test_without_a_solver_the_target_stays_and_the_record_says_why() -> None:
    fleet = a_fleet(a_service("chat"), a_service("photo"))
    rates_rps = {"chat": 20.0, "photo": 10.0}
    fleet.pass_time(rates_rps=rates_rps)
    fleet.tick()
    fleet.loop.solver = Failing()
    fleet.pass_time(rates_rps=rates_rps)
    outcome = fleet.tick()
    assert (outcome.state, outcome.generation) == ("kept", 1)
    record = fleet.store.plans[2]
    assert (record.state, record.report.status, record.report.method) == (
        "kept",
        "kept",
        "keep",
    )
    assert "killed" in record.reason
    assert len(fleet.store.pushed) == 1
    # Also after one that runs was deleted.
    fleet.store.delete_service("photo")
    outcome = fleet.tick()
    # The plan stays, and its nodes are told that they need not run it any more.
    assert (outcome.state, outcome.cost_usd_per_hour) == ("target", 2.0)
    assert "killed" in outcome.reason
    assert fleet.tick().state == "kept"


def test_a_plan_that_breaks_a_physical_rule_is_recorded_and_never_pushed() -> None:
    fleet = a_fleet(solver=Answering(plan=too_many_on_one_gpu))
    fleet.loop.promises_may_break = True
    fleet.pass_time(rates_rps=CHAT)
    outcome = fleet.tick()
    assert (outcome.state, outcome.generation) == ("refused", 0)
    record = fleet.store.plans[1]
    assert record.bound is None
    assert {violation.rule for violation in record.violations} >= {
        "anti_affinity",
        "sm",
    }
    assert fleet.kinds() == ["PlanRefused"]


@pytest.mark.parametrize(("may_break", "state"), [(False, "refused"), (True, "target")])
def test_a_broken_promise_is_let_through_only_where_that_is_allowed(
    may_break: bool, state: PlanState
) -> None:
    fleet = a_fleet(solver=Answering(plan=nothing_at_all))
    fleet.loop.promises_may_break = may_break
    fleet.pass_time(rates_rps=CHAT)
    assert fleet.tick().state == state
    assert {violation.rule for violation in fleet.store.plans[1].violations} == {
        "demand"
    }


def test_a_plan_loses_when_the_catalogue_changed_while_it_was_made() -> None:
    solver = Answering()
    fleet = a_fleet(solver=solver)
    fleet.pass_time(rates_rps=CHAT)

    async def apply_a_service() -> None:
        fleet.store.put_services([a_service("photo")])

    solver.meanwhile = apply_a_service
    lost = fleet.tick()
    assert (lost.state, lost.generation) == ("lost", 0)
    assert "next tick" in lost.reason
    fleet.loop.solver = Answering()
    assert fleet.tick().state == "target"
    assert states(fleet) == ["lost", "target"]


def test_of_two_loops_on_one_store_only_one_pushes() -> None:
    fleet = a_fleet()
    fleet.pass_time(rates_rps=CHAT)
    rival = replace(fleet.loop, solver=Answering())
    fleet.loop.solver = Answering(meanwhile=lambda: tick(rival))
    outcome = fleet.tick()
    assert (outcome.state, outcome.generation) == ("lost", 0)
    assert sorted(states(fleet)) == ["lost", "target"]
    assert [bound.generation for _, bound in fleet.store.pushed] == [1]


def test_a_plan_that_changes_nothing_is_kept_and_not_pushed() -> None:
    fleet = a_fleet()
    fleet.pass_time(rates_rps=CHAT)
    fleet.tick()
    fleet.pass_time(10.0, rates_rps={"chat": 22.0})
    outcome = fleet.tick()
    assert (outcome.state, outcome.reason, outcome.generation) == (
        "kept",
        "nothing would change",
        1,
    )
    assert fleet.store.plans[2].problem is None


def test_a_changed_routing_weight_alone_is_pushed() -> None:
    solver = Answering(plan=two_replicas)
    fleet = a_fleet(solver=solver)
    fleet.pass_time(rates_rps=CHAT)
    fleet.tick()
    ids = [
        replica.id for gpu in fleet.store.pushed[-1][1].gpus for replica in gpu.replicas
    ]

    def uneven(problem: Problem) -> Plan:
        plan = two_replicas(problem)
        lighter, heavier = (
            with_rates(replace(plan, gpus=(replace(plan.gpus[0], count=1),)), f)
            for f in (0.8, 1.2)
        )
        return replace(plan, gpus=(*lighter.gpus, *heavier.gpus))

    solver.plan = uneven
    assert fleet.tick().state == "target"
    assert [
        replica.id for gpu in fleet.store.pushed[-1][1].gpus for replica in gpu.replicas
    ] == ids
    assert fleet.store.events[-1].reason == "only routing weights change"


def test_a_shortage_that_moves_with_the_demand_pushes_nothing() -> None:
    def short(problem: Problem) -> Plan:
        rate_rps = problem.services[0].arrival_rate_rps
        replica = ReplicaPlan(
            service="chat", sm_percent=50.0, batch=1, arrival_rate_rps=10.0
        )
        return Plan(
            policy="test",
            gpus=(GpuPlan(gpu_type="fast", clock_mhz=1000.0, replicas=(replica,)),),
            unserved=(
                Unserved(service="chat", rate_rps=rate_rps - 10.0, reason="stock"),
            ),
        )

    fleet = a_fleet(solver=Answering(plan=short))
    fleet.pass_time(rates_rps=CHAT)
    fleet.tick()
    fleet.pass_time(10.0, rates_rps={"chat": 40.0})
    assert fleet.tick().state == "kept"


def test_a_plan_that_needs_a_cordoned_gpu_is_refused() -> None:
    fleet = a_fleet(solver=Answering(plan=two_replicas))
    node, gpus = a_node("n2")
    fleet.store.put_node(replace(node, cordoned=True), gpus)
    fleet.pass_time(rates_rps=CHAT)
    outcome = fleet.tick()
    assert outcome.state == "refused"
    assert "stock" in outcome.reason


def test_generations_grow_by_one_and_parents_follow() -> None:
    solver = Answering()
    fleet = a_fleet(solver=solver)
    for plan in (on_half_gpus, two_replicas, on_half_gpus, two_replicas):
        solver.plan = plan
        fleet.pass_time(rates_rps=CHAT)
        assert fleet.tick().state == "target"
    assert [(bound.generation, bound.parent) for _, bound in fleet.store.pushed] == [
        (1, 0),
        (2, 1),
        (3, 2),
        (4, 3),
    ]
    assert states(fleet) == ["superseded"] * 3 + ["target"]


def test_what_the_policy_remembers_comes_back_unless_its_plan_was_refused() -> None:
    solver = Answering()
    fleet = a_fleet(solver=solver)
    fleet.pass_time(rates_rps=CHAT)
    for plan in (on_half_gpus, too_many_on_one_gpu, on_half_gpus):
        solver.plan = plan
        fleet.tick()
    assert [request.memory for request in solver.asked] == [
        None,
        {"calls": 1},
        {"calls": 1},
    ]
