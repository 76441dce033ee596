"""What the pages of services are drawn from: each looker's own services, replicas, YAML."""

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from fastapi import FastAPI

from app.web.topics.service_status import load_service_status
from app.web.topics.topic import Look
from tests.integration.api_harness import Api, Prepared, service

pytestmark = pytest.mark.integration


@pytest.fixture
def api(demo_fleet: Prepared) -> Iterator[Api]:
    with demo_fleet.running_api() as api:
        yield api


def first_data(api: Api, path: str, token: str = "viewer") -> Any:
    """What the server wrote into a page, by topic."""
    page = api.call("GET", path, token=token).text
    block = page.split('id="state">')[1].split("</script>")[0]
    return json.loads(block)["first"]


def statuses(api: Api, projects: tuple[str, ...] | None = None) -> Any:
    """What streams tell of the conditions of services."""
    parts, portal = cast(FastAPI, api.client.app).state.parts, api.client.portal
    assert portal is not None
    return portal.call(load_service_status, Look(parts=parts, projects=projects))


def test_a_token_that_is_bound_to_a_project_sees_its_services_only(api: Api) -> None:
    api.add_token("bound", "viewer", projects=("team-b",))
    everybody, bound = (
        first_data(api, "/services"),
        first_data(api, "/services", "bound"),
    )
    assert sorted(statuses(api)) == ["chat", "search", "thumbnails"]
    assert sorted(statuses(api, ("team-b",))) == ["search"]
    for topic in ("services", "budgets"):
        assert sorted(everybody[topic]) == ["chat", "search", "thumbnails"], topic
        assert sorted(bound[topic]) == ["search"], topic
    assert first_data(api, "/services/chat", "bound")["service"] == {}
    assert first_data(api, "/services/nobody")["service"] == {}
    assert (
        first_data(api, "/services/search", "bound")["service"]["now"]["project"]
        == "team-b"
    )


def test_a_service_waits_until_its_plan_is_approved_and_in_force(api: Api) -> None:
    def ready() -> tuple[str, str, str]:
        told = api.get("services/late")["status"]["conditions"][0]
        return told["status"], told["reason"], told["message"]

    late = service("late", project="team-a", scaling={"min_replicas": 1})
    api.put("services/late", late)
    # It is in no plan yet.
    assert ready()[:2] == ("Unknown", "NotPlanned")
    api.put("services/idle", service("idle", project="team-a"))
    api.put_policy(mode="approve")
    plan_id = api.tick().plan_id
    assert ready()[:2] == ("False", "WaitsForApproval")
    assert f"`plimsoll approve {plan_id}`" in ready()[2]
    trouble = statuses(api)["late"]["trouble"]
    assert (trouble["type"], trouble["reason"]) == ("Applied", "WaitsForApproval")
    assert f"plan {plan_id}, with 1 replica of it" in trouble["message"]
    api.post(f"plans/{plan_id}/approve")
    assert api.tick().state == "target"
    assert ready()[1] in ("RollingOut", "Serving")
    idle = api.get("services/idle")["status"]["conditions"][0]
    assert (idle["status"], idle["reason"]) == ("True", "ScaledToZero")


def test_a_service_has_its_replicas_with_what_nodes_say_of_them(api: Api) -> None:
    service = first_data(api, "/services/chat")["service"]
    (replica,) = service["replicas"]
    plan = api.get("plans?state=target&limit=1")["items"][0]
    planned = [
        (gpu["id"], each["id"], each["sm_percent"])
        for gpu in api.get(f"plans/{plan['id']}")["gpus"]
        for each in gpu["replicas"]
        if each["service"] == "chat"
    ]
    assert [(replica["gpu"], replica["replica"], replica["sm_percent"])] == planned
    assert (replica["state"], replica["is_planned"]) == ("ready", True)
    assert service["now"]["cost_usd_per_hour"] == replica["cost_usd_per_hour"]
    assert [version["generation"] for version in service["versions"]] == [1]


def test_text_is_read_for_people_and_not_for_agents(api: Api) -> None:
    def read(text: str, token: str) -> Any:
        headers = {"Authorization": f"Bearer {api.secrets[token]}"}
        return api.client.post("/new-service/yaml", content=text, headers=headers)

    assert read("a: 1", "viewer").json() == {
        "documents": [{"value": {"a": 1}, "lines": {"": 1, "/a": 1}}],
        "complaints": [],
    }
    assert (
        "longer than 64 KiB"
        in read("a" * 70_000, "operator").json()["complaints"][0]["problem"]
    )
    assert (
        "values that JSON does not support"
        in read("~: 3", "operator").json()["complaints"][0]["problem"]
    )
    assert read("a: 1", "agent").status_code == 403
