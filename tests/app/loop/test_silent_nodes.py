"""Nodes that fall silent, come back, and come and go."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import pytest

from app.loop.tick import TickOutcome
from app.store.memory_store import MemoryStore
from solvers.types.plan import Plan, Unserved
from solvers.types.problem import Problem
from solvers.types.state import Mode
from tests.app.fleets import Answering, a_fleet, on_half_gpus, with_rates
from tests.waiting import run

CHAT = {"chat": 20.0}


def test_gpus_of_a_silent_node_are_planned_without_until_it_is_heard() -> None:
    solver = Answering()
    fleet = a_fleet(solver=solver)
    fleet.pass_time(rates_rps=CHAT)
    fleet.tick()
    for _ in range(2):
        fleet.pass_time(10.0, heard=("n2",), rates_rps=CHAT)
        moved = fleet.tick()
    assert [gpu_type.count for gpu_type in solver.asked[-1].problem.gpu_types] == [1]
    assert solver.asked[-1].problem.current == Plan(policy="test")
    assert moved.state == "target"
    assert [gpu.id for gpu in fleet.store.pushed[-1][1].gpus] == ["n2/gpu-0"]
    command = run(fleet.store.command_for("n1", 0))
    assert command is not None and (command.generation, command.gpus) == (2, ())
    fleet.pass_time(rates_rps=CHAT)
    fleet.tick()
    assert [gpu_type.count for gpu_type in solver.asked[-1].problem.gpu_types] == [2]
    assert fleet.kinds() == ["PlanPushed", "NodeSilent", "PlanPushed", "NodeHeard"]


def test_on_a_node_that_comes_and_goes_nothing_starts_for_an_hour() -> None:
    solver = Answering()
    fleet = a_fleet(solver=solver, nodes=("n1", "n2", "n3"))
    names = ("n1", "n2", "n3")

    def stock() -> int | None:
        return solver.asked[-1].problem.gpu_types[0].count

    fleet.pass_time(rates_rps=CHAT)
    fleet.tick()
    for _ in range(3):
        assert stock() == 3
        for _ in range(2):
            fleet.pass_time(10.0, heard=names[1:], rates_rps=CHAT)
            fleet.tick()
        fleet.pass_time(heard=names, rates_rps=CHAT)
        fleet.tick()
    assert stock() == 2
    silences = [each for each in fleet.store.events if each.kind == "NodeSilent"]
    assert ["within an hour" in each.reason for each in silences] == [False] * 2 + [
        True
    ]
    for _ in range(2):
        fleet.pass_time(1800.0, heard=names, rates_rps=CHAT)
        fleet.tick()
    fleet.pass_time(heard=names, rates_rps=CHAT)
    fleet.tick()
    assert stock() == 3


def test_where_gpus_are_short_a_node_that_comes_and_goes_is_started_on_after_all() -> (
    None
):
    """A third of the demand fits on each of three GPUs, and two of them are on nodes that stay."""
    names = ("n1", "n2", "n3")
    demand = dict(CHAT)

    def on_thirds(problem: Problem) -> Plan:
        rate_rps = problem.services[0].arrival_rate_rps
        full = on_half_gpus(problem)
        wanted = 3 if rate_rps > 15.0 else 1
        usable = min(wanted, problem.gpu_types[0].count or 0)
        left_rps = rate_rps * (1.0 - usable / wanted)
        unserved = Unserved(service="chat", rate_rps=left_rps, reason="stock")
        return replace(
            with_rates(full, 1.0 / wanted),
            gpus=with_rates(full, 1.0 / wanted).gpus * usable,
            unserved=(unserved,) if left_rps > 1e-9 else (),
        )

    fleet = a_fleet(solver=Answering(plan=on_thirds), nodes=names)

    def after(heard: Sequence[str] = names) -> TickOutcome:
        fleet.pass_time(10.0 if heard != names else 2.0, heard=heard, rates_rps=demand)
        return fleet.tick()

    after()
    for _ in range(3):
        after(names[1:])
        after(names[1:])
        short = after()
    # The node has just come back for the third time. Without it, a third of the demand would not be served.
    assert short.unserved_rps == 0.0
    assert {gpu.node for gpu in fleet.store.pushed[-1][1].gpus} == set(names)
    assert short.report is not None
    assert "start on unstable nodes, as there is too" in " ".join(short.report.messages)
    # With less to serve nothing is left out without it.
    demand["chat"] = 5.0
    for _ in range(40):
        less = after()
    assert less.report is not None
    assert "come and go" not in " ".join(less.report.messages)


def test_what_went_on_at_a_node_that_falls_silent_ends_once() -> None:
    lost: list[tuple[tuple[str, ...], bool]] = []

    class Watched(MemoryStore):
        __slots__ = ()

        async def lose_sight(self, nodes: Sequence[str], at: datetime) -> None:
            lost.append((tuple(nodes), at == fleet.clock.now()))

    fleet = a_fleet()
    fleet.store.__class__ = Watched
    fleet.pass_time(rates_rps=CHAT)
    fleet.tick()
    for _ in range(4):
        fleet.pass_time(10.0, heard=("n2",), rates_rps=CHAT)
        fleet.tick()
    fleet.pass_time(rates_rps=CHAT)
    fleet.tick()
    assert lost == [(("n1",), True), ((), True)]


@pytest.mark.parametrize("looks", [True, False])
def test_after_an_outage_every_node_has_its_time_to_come_back_before_it_counts_as_lost(
    looks: bool,
) -> None:
    fleet = a_fleet()
    fleet.pass_time(rates_rps=CHAT)
    fleet.tick()
    for _ in range(12):
        fleet.pass_time(5.0, heard=())
        if looks:  # else the loop itself, or its database, was away
            fleet.tick()
    fleet.pass_time(heard=("n2",), rates_rps=CHAT)
    first = fleet.tick()
    assert (first.state, first.generation) == (None, 1)
    assert "telemetry is returning: 1 of 2 nodes have not reported yet" in first.reason
    fleet.pass_time(10.0, heard=("n2",), rates_rps=CHAT)
    assert fleet.tick().state is None
    fleet.pass_time(heard=("n1", "n2"), rates_rps=CHAT)
    assert fleet.tick().state == "kept"
    assert "NodeSilent" not in fleet.kinds()


def test_a_node_that_does_not_come_back_after_an_outage_is_lost_in_the_end() -> None:
    fleet = a_fleet()
    fleet.pass_time(rates_rps=CHAT)
    fleet.tick()
    fleet.pass_time(60.0, heard=())
    fleet.tick()
    outcomes = []
    for _ in range(9):
        fleet.pass_time(heard=("n2",), rates_rps=CHAT)
        outcomes.append(fleet.tick().state)
    # Periods of 2 s from the first report on; no tick waits longer than the 15 s after which silence counts.
    assert outcomes == [None] * 8 + ["target"]
    assert fleet.kinds()[-2:] == ["NodeSilent", "PlanPushed"]


@pytest.mark.parametrize(
    ("silent", "state"),
    [("n1", "withdrawn"), ("n2", "proposed")],
    ids=["its own node", "another node"],
)
def test_a_proposal_waits_on_while_the_nodes_that_it_uses_are_heard(
    silent: str, state: str
) -> None:
    fleet = a_fleet(mode=Mode.APPROVE)
    fleet.pass_time(rates_rps=CHAT)
    waiting = fleet.tick()
    assert waiting.plan_id is not None
    bound = fleet.store.plans[waiting.plan_id].bound
    assert bound is not None and {gpu.node for gpu in bound.gpus} == {"n1"}
    heard = tuple({"n1", "n2"} - {silent})
    for _ in range(2):
        fleet.pass_time(10.0, heard=heard, rates_rps=CHAT)
        fleet.tick()
    assert fleet.store.plans[waiting.plan_id].state == state
