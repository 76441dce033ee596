"""A governor that can keep its limits no more: one line in the audit, and services that the policy hears of."""

import asyncio

import msgspec
import pytest

from solvers.types.state import Json
from tests.app.fleets import Answering, Fleet, a_fleet, a_service

RATES = {"chat": 20.0, "photo": 20.0, "tags": 20.0}
SERVICES = tuple(a_service(name) for name in RATES)


def a_running_fleet(solver: Answering) -> Fleet:
    """Two services on one GPU, one on the other."""
    fleet = a_fleet(*SERVICES, solver=solver)
    fleet.pass_time(rates_rps=RATES)
    fleet.tick()
    assert fleet.generation == 1
    return fleet


def report(fleet: Fleet, *asking: int, generation: int = 1) -> None:
    """Both nodes report; n1 says that these of its GPUs ask."""
    fleet.pass_time(
        heard=("n2",), rates_rps={name: rate / 2.0 for name, rate in RATES.items()}
    )
    said = fleet._observation("n1", {name: rate / 2.0 for name, rate in RATES.items()})
    said = msgspec.structs.replace(said, repartition=asking, generation=generation)
    asyncio.run(fleet.store.ingest((said,), fleet.clock.now()))


def asked(solver: Answering) -> tuple[str, ...]:
    return solver.asked[-1].observed.repartition


def test_a_request_is_told_once_and_reaches_the_policy_until_it_is_taken_back() -> None:
    solver = Answering()
    fleet = a_running_fleet(solver)
    assert asked(solver) == ()
    on_n1 = sorted(
        each.service
        for gpu in fleet.store.pushed[0][1].gpus
        if gpu.node == "n1"
        for each in gpu.replicas
    )
    for _ in range(3):
        report(fleet, 0)
        fleet.tick()
        assert list(asked(solver)) == on_n1
    lines: list[tuple[str, Json]] = [
        (event.subject, event.reason)
        for event in fleet.store.events
        if event.kind == "RepartitionAsked"
    ]
    assert [subject for subject, _ in lines] == ["gpu/n1/gpu-0"]
    report(fleet)
    fleet.tick()
    assert asked(solver) == ()
    report(fleet, 0)
    fleet.tick()
    assert fleet.kinds().count("RepartitionAsked") == 2


@pytest.mark.parametrize(("asking", "generation"), [((5,), 1), ((0,), 0)])
def test_a_gpu_that_carries_nothing_and_a_node_of_an_older_generation_ask_in_vain(
    asking: tuple[int, ...], generation: int
) -> None:
    solver = Answering()
    fleet = a_running_fleet(solver)
    report(fleet, *asking, generation=generation)
    fleet.tick()
    assert asked(solver) == ()
    assert "RepartitionAsked" not in fleet.kinds()
