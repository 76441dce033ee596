"""Parameters of policies over the API: kept with the version, told in the plan, refused where they are wrong."""

from collections.abc import Iterator

import pytest

from app.db.decisions import policies
from app.store.store import PolicySettings
from solvers.types.parameters import Setting
from tests.integration.api_harness import (
    Api,
    Prepared,
    service,
)
from tests.integration.fleet import START

pytestmark = pytest.mark.integration


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.put("services/chat", service())
        running.observe(1, {"chat": 100})
        yield running


def test_parameters_are_kept_told_and_refused(api: Api) -> None:
    parameters = {
        "hetsev": {"queues": 8},
        "oltunes": {"affinity": "pressure"},
        "power_latency": {"steady_power_share": 0.95},
    }
    api.put_policy(policy="hetsev", parameters=parameters)
    assert api.get("policies/default")["spec"]["parameters"] == parameters
    outcome = api.tick()
    assert outcome.state == "target"
    report = api.get(f"plans/{outcome.plan_id}")["document"]["report"]
    assert "parameters: queues = 8" in report["messages"]
    for wrong, message in (
        ({"hetsev": {"queues": 0}}, "must be a whole number from 1"),
        ({"hetsev": {"queue": 1}}, "unknown parameter; this policy has"),
        ({"joint": {"queues": 1}}, "this policy has none"),
        ({"hetzev": {}}, "no policy is called 'hetzev'"),
        ({"power_latency": {"steady_power_share": 1.5}}, "from 0.5 to 1"),
        ({"hetsev": {"queues": True}}, "parameters"),
    ):
        spec = {"parameters": wrong}
        body = {"kind": "Policy", "metadata": {"name": "default"}, "spec": spec}
        assert message in " ".join(api.wrong("PUT", "policies/default", body))
    # The same again makes no version.
    version = api.get("policies/default")["status"]["version"]
    api.put_policy(policy="hetsev", parameters=parameters)
    assert api.get("policies/default")["status"]["version"] == version


def test_what_another_version_allowed_can_still_be_read_and_corrected(
    api: Api,
) -> None:
    api.put_policy(policy="hetsev")
    stored: dict[str, dict[str, Setting]] = {
        "hetsev": {"gone": 1},
        "no_more": {"queues": 2},
    }
    settings = PolicySettings(policy="hetsev", parameters=stored)
    api.on_connection(
        lambda connection: policies.save(connection, settings, at=START, actor="other")
    )
    assert api.get("policies/default")["spec"]["parameters"] == stored
    outcome = api.tick()
    messages = api.get(f"plans/{outcome.plan_id}")["document"]["report"]["messages"]
    assert any("parameters ignored" in each for each in messages)
    api.put_policy(policy="hetsev", parameters={})
    assert api.get("policies/default")["spec"]["parameters"] == {}
