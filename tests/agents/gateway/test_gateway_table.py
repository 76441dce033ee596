"""What the gateway makes of the control plane's list."""

from pathlib import Path

from agents.gateway.config import GatewaySettings
from agents.gateway.table import (
    CarriedService,
    CarrierNode,
    make_table,
)

SETTINGS = GatewaySettings(folder=Path("unused"), services=2, nodes=2)
A, B, C = (("10.0.0.1", 8000), ("10.0.0.2", 8000), ("10.0.0.3", 8000))


def a_node(
    host: str, rps: float, planned: int = 1, ready: int = 1, scheme: str = "http"
) -> CarrierNode:
    return CarrierNode(
        url=f"{scheme}://{host}:8000",
        weight_rps=rps,
        planned_replicas=planned,
        ready_replicas=ready,
    )


def a_service(*nodes: CarrierNode, name: str = "chat") -> CarriedService:
    return CarriedService(service=name, nodes=nodes)


def test_weights_follow_the_planned_rates_and_requests_wait_where_replicas_are_planned() -> (
    None
):
    leaving = a_node("10.0.0.2", 5.0, planned=0)
    table, problems = make_table(
        [a_service(a_node("10.0.0.1", 20.0), leaving)], SETTINGS
    )
    assert table.weights == {"chat": {A: 256, B: 64}}
    assert table.waiting == {"chat": (A,)}
    assert problems == ()


def test_a_service_without_a_replica_waits_at_the_nodes_that_are_named() -> None:
    idle = a_node("10.0.0.1", 0.0, planned=0, ready=0)
    table, _ = make_table([a_service(idle)], SETTINGS)
    assert (table.weights, table.waiting) == ({"chat": {}}, {"chat": (A,)})


def test_a_node_without_a_rate_may_be_the_only_one_that_is_ready() -> None:
    nodes = (a_node("10.0.0.1", 0.0), a_node("10.0.0.2", 1000.0))
    table, _ = make_table([a_service(*nodes)], SETTINGS)
    assert table.weights["chat"][A] == 1


def test_what_has_no_place_is_left_out_and_said() -> None:
    nodes = [a_node(f"10.0.0.{number}", float(number)) for number in (1, 2, 3)]
    services = [a_service(*nodes), a_service(name="tag"), a_service(name="last")]
    table, problems = make_table(services, SETTINGS)
    assert table.weights["chat"].keys() == {B, C}
    assert "last" not in table.weights
    assert "--services" in problems[0] and "--nodes" in problems[1]


def test_a_node_that_speaks_the_other_scheme_is_not_used() -> None:
    table, problems = make_table(
        [a_service(a_node("10.0.0.1", 1.0, scheme="https"))], SETTINGS
    )
    assert table.weights == {"chat": {}}
    assert "--node-ca" in problems[0]
