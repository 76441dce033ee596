"""Parameters of policies over the API: kept with the version, told in the plan, refused where they are wrong."""

from collections.abc import Iterator, Mapping

import pytest

from app.db.base.engine import make_engine
from app.db.decisions import policies
from app.store.store import PolicySettings
from solvers.types.parameters import Setting
from tests.integration.api_harness import (
    Api,
    Prepared,
    reading,
    run_apart,
    service,
)
from tests.integration.fleet import START

pytestmark = pytest.mark.integration


def policy(**spec: object) -> dict[str, object]:
    return {"kind": "Policy", "metadata": {"name": "default"}, "spec": spec}


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.put("services/chat", service())
        running.clock.advance(2.0)
        answer = running.sync(
            services=[reading()], window_start_s=running.clock.now_s() - 2.0
        )
        assert answer.status_code == 200, answer.text
        yield running


def test_parameters_are_kept_told_and_refused(api: Api) -> None:
    parameters = {
        "hetsev": {"queues": 8},
        "oltunes": {"affinity": "pressure"},
        "power_latency": {"steady_power_share": 0.95},
    }
    api.put("policies/default", policy(policy="hetsev", parameters=parameters))
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
        answer = api.call(
            "PUT", "policies/default", policy(parameters=wrong), If_Match="*"
        )
        assert answer.status_code == 422, answer.text
        assert message in answer.text
    # The same again makes no version.
    version = api.get("policies/default")["status"]["version"]
    api.put("policies/default", policy(policy="hetsev", parameters=parameters))
    assert api.get("policies/default")["status"]["version"] == version


def test_what_another_version_allowed_can_still_be_read_and_corrected(
    api: Api,
) -> None:
    api.put("policies/default", policy(policy="hetsev"))
    stored: dict[str, dict[str, Setting]] = {
        "hetsev": {"gone": 1},
        "no_more": {"queues": 2},
    }
    run_apart(_store(api.url, stored))
    assert api.get("policies/default")["spec"]["parameters"] == stored
    outcome = api.tick()
    messages = api.get(f"plans/{outcome.plan_id}")["document"]["report"]["messages"]
    assert any("parameters ignored" in each for each in messages)
    api.put("policies/default", policy(policy="hetsev", parameters={}))
    assert api.get("policies/default")["spec"]["parameters"] == {}


async def _store(url: str, parameters: Mapping[str, Mapping[str, Setting]]) -> None:
    engine = make_engine(url, pool_size=1)
    try:
        async with engine.begin() as connection:
            settings = PolicySettings(policy="hetsev", parameters=parameters)
            await policies.save(connection, settings, at=START, actor="another version")
    finally:
        await engine.dispose()
