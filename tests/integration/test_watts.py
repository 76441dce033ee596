"""Watts over the API and in the database: budgets, nodes' caps, and governors' requests."""

from collections.abc import Iterator

import pytest

from tests.integration.api_harness import Api, Prepared, node, service

pytestmark = pytest.mark.integration


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    """One node with two T4 (10 W idle, at most 70 W) and a service whose replica draws 20 or 40 W more."""
    with small_fleet.running_api() as running:
        running.put("services/chat", service())
        observe(running, 1)
        yield running


def observe(api: Api, sequence: int, **fields: object) -> None:
    """Two seconds with 100 requests."""
    api.observe(sequence, {"chat": 100}, **fields)


def test_a_budget_becomes_caps_on_the_nodes(api: Api) -> None:
    api.put_policy(policy="hetsev", power_budget_w=65)
    assert api.get("policies/default")["spec"]["power_budget_w"] == 65.0
    assert api.tick().state == "target"
    (gpu,) = api.command(sequence=2)["gpus"]
    assert gpu["power_cap_w"] == 65.0


def test_a_budget_that_a_plan_breaks_refuses_it_with_the_remedy(api: Api) -> None:
    api.put_policy(policy="hetsev", power_budget_w=25)
    outcome = api.tick()
    assert outcome.state == "refused"
    (event, *_) = api.get("events?kind=PlanRefused")["items"]
    assert "power_budget_w is 25: raise it, plan with policy joint" in event["reason"]


def test_a_nodes_cap_is_kept_shown_and_taken_away(api: Api) -> None:
    api.put("nodes/n1", node(power_cap_w=60.0))
    assert api.get("nodes/n1")["spec"]["power_cap_w"] == 60.0
    api.put_policy(policy="hetsev")
    assert api.tick().state == "target"
    (gpu,) = api.command(sequence=2)["gpus"]
    assert gpu["power_cap_w"] == 60.0
    api.put("nodes/n1", node())
    assert api.get("nodes/n1")["spec"]["power_cap_w"] is None


def test_a_governors_request_is_in_the_audit(api: Api) -> None:
    api.put_policy(policy="morak", governor="power_latency")
    assert api.tick().state == "target"
    observe(api, 2, generation=1, repartition=[0])
    api.tick()
    (event,) = api.get("events?kind=RepartitionAsked")["items"]
    assert event["subject"] == "gpu/n1/gpu-0"


@pytest.mark.parametrize("watts", [0, -1, "many"])
def test_watts_that_are_none_are_refused_by_name(api: Api, watts: object) -> None:
    spec = {"power_budget_w": watts}
    body = {"kind": "Policy", "metadata": {"name": "default"}, "spec": spec}
    assert api.wrong("PUT", "policies/default", body)[0] == "/spec/power_budget_w"
