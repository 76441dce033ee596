"""What services must survive, over the API and in the database."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.decisions import problem_archive
from solvers.tick.survive import with_limits
from solvers.tick.survive_models import with_model_limits
from solvers.types.problem import Problem
from solvers.types.state import ZONE_LABEL
from tests.integration.api_harness import Api, Prepared, node, reading, service
from tests.integration.fleet import on_connection
from tests.solvers.llm.models import make_points, make_service, make_type
from tests.solvers.tick.test_survive import DOMAINS, a_goal, a_problem
from tests.solvers.tick.test_survive_models import a_goal as a_model_goal

pytestmark = pytest.mark.integration


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    """Two zones of one node with two T4 each, and a service that survives the loss of either zone."""
    with small_fleet.running_api() as running:
        for name, zone in (("n1", "east"), ("n2", "west")):
            running.put(f"nodes/{name}", in_zone(name, zone))
        running.put("services/chat", service(survive="zone"))
        yield running


def in_zone(name: str, zone: str) -> dict[str, object]:
    labels = {"labels": {ZONE_LABEL: zone}}
    return {**node(name), "metadata": {"name": name, **labels}}


def observe(api: Api, sequence: int) -> None:
    api.clock.advance(2.0)
    start_s = api.clock.now_s() - 2.0
    for name in ("n1", "n2"):
        services = [reading("chat")] if name == "n1" else []
        answer = api.sync(
            name, sequence=sequence, services=services, window_start_s=start_s
        )
        assert answer.status_code == 200, answer.text


def test_a_service_that_asks_is_spread_over_zones_and_says_so(api: Api) -> None:
    observe(api, 1)
    assert api.tick().state == "target"
    shown = api.get("services/chat")
    assert shown["spec"]["survive"] == "zone"
    assert shown["spec"]["survive_share"] == 1.0
    conditions = {each["type"]: each for each in shown["status"]["conditions"]}
    assert conditions["Survives"]["status"] == "True"

    # Both nodes in one zone: the same plan survives nothing any more.
    api.put("nodes/n2", in_zone("n2", "east"))
    shown = api.get("services/chat")
    conditions = {each["type"]: each for each in shown["status"]["conditions"]}
    assert conditions["Survives"]["reason"] == "LossTakesTooMuch"
    assert "zone east" in conditions["Survives"]["message"]


def test_the_policys_default_is_kept_and_checked(api: Api) -> None:
    for stated, kept in (
        ({"survive": "none"}, ("none", 0.5)),
        ({"survive_share": 0.75}, ("node", 0.75)),
    ):
        api.put_policy(**stated)
        spec = api.get("policies/default")["spec"]
        assert (spec["survive"], spec["survive_share"]) == kept
    spec = {"survive_share": 0}
    body = {"kind": "Policy", "metadata": {"name": "default"}, "spec": spec}
    assert api.wrong("PUT", "policies/default", body)[0] == "/spec/survive_share"


def with_a_model(problem: Problem) -> Problem:
    """The problem with a language model that must survive the loss of a node, too."""
    goal = replace(a_model_goal(), service="writer")
    return with_model_limits(
        replace(
            problem,
            gpu_types=(*problem.gpu_types, make_type()),
            llm_services=(make_service("other"), make_service("writer", 10.0)),
            llm_points=(make_points("writer"),),
            survival=(*problem.survival, goal),
        ),
        {"node": {"H100": {"n1": 8, "n2": 8}}},
    )


@pytest.mark.parametrize("has_models", [False, True])
@on_connection
async def test_a_stored_problem_keeps_its_goals_and_limits(
    connection: AsyncConnection, has_models: bool
) -> None:
    goal = a_goal(rate_rps=3000.0)
    problem = with_limits(a_problem(3000.0, goal), DOMAINS)
    if has_models:
        problem = with_a_model(problem)
        assert problem.llm_services[1].max_replica_rps is not None
    packed = problem_archive.pack(problem, problem_archive.PartCache())
    await problem_archive.save_parts(connection, packed.parts)
    assert await problem_archive.unpack(connection, packed.body) == problem
