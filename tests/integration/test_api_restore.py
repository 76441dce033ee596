"""Roll back over the API: an earlier plan in force again, by ticks on a real database."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.base.listen import conninfo
from app.db.postgres_store import PostgresStore
from app.postgres import server as postgres
from tests.integration.api_harness import (
    Api,
    Prepared,
    fill,
    node,
    prepared,
    service,
)
from tests.integration.fleet import make_record
from tests.integration.test_api_tasks import task
from tests.waiting import until

pytestmark = pytest.mark.integration

WAITING = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture(scope="module")
def planned(
    postgres_server: postgres.Server, migrated_template: str
) -> Iterator[Prepared]:
    with prepared(postgres_server, migrated_template, _plan_twice) as found:
        yield found


@pytest.fixture
def api(planned: Prepared) -> Iterator[Api]:
    """Plan 1 was made for 100 requests of each service in two seconds; plan 2, in force, for six times as many."""
    with planned.running_api() as running:
        yield running


def _plan_twice(api: Api) -> None:
    fill(api)
    api.put("services/chat", service())
    api.put("services/search", service("search", project="team-a"))
    _observe(api, 1)
    assert api.tick().state == "target"
    _observe(api, 2, arrivals=1200, generation=1)
    assert api.tick().state == "target"


def _observe(
    api: Api, sequence: int, *, arrivals: int = 100, generation: int = 0
) -> None:
    """Two seconds with as many requests for chat, and half as many for search."""
    load = {"chat": arrivals, "search": arrivals // 2}
    api.observe(sequence, load, generation=generation)


def _carried(api: Api, plan_id: int) -> list[tuple[str, str, float, int]]:
    """What each GPU carries, under whatever id."""
    return [
        (gpu["id"], replica["service"], replica["sm_percent"], replica["batch"])
        for gpu in api.get(f"plans/{plan_id}")["gpus"]
        for replica in gpu["replicas"]
    ]


def _restore(api: Api, plan_id: int = 1, **headers: str) -> Any:
    return api.post(f"plans/{plan_id}/restore", **headers)


def _refusal(api: Api, plan_id: int = 1, token: str = "operator") -> str:
    answer = api.call("POST", f"plans/{plan_id}/restore", token=token)
    assert answer.status_code == 409, answer.text
    assert [plan["id"] for plan in api.get("plans?state=approved")["items"]] == []
    return str(answer.json()["detail"])


def test_an_earlier_plan_comes_back_by_the_next_tick_and_stays(api: Api) -> None:
    assert _carried(api, 1) != _carried(api, 2)
    told = _restore(api)
    plan = told["plan"]
    assert (plan["state"], plan["parent"]) == ("approved", 2)
    assert plan["method"] == "restore"
    assert (told["mode_before"], told["mode"]) == ("auto", "approve")
    # 50 rps were planned for chat; 300 rps come now.
    assert any(words.startswith("service chat: ") for words in told["warnings"])
    broken = api.get(f"plans/{plan['id']}")["violations"]
    assert {entry["severity"] for entry in broken} == {"promise"}
    lines = {each["kind"]: each for each in api.get("events?limit=10")["items"]}
    line = lines["PlanRestored"]
    assert (line["subject"], line["actor"]) == ("plan/1", "token/operator")
    assert line["after"] == {"plan_id": plan["id"]}
    assert lines["PolicyChanged"]["after"]["mode"] == "approve"
    outcome = api.tick()
    assert (outcome.state, outcome.plan_id) == ("target", plan["id"])
    assert outcome.generation == 3
    assert _carried(api, plan["id"]) == _carried(api, 1)
    _observe(api, 3, arrivals=1200, generation=3)
    assert api.tick().state == "proposed"
    assert api.get("plans?state=target")["items"][0]["id"] == plan["id"]
    # There, and back again.
    back = _restore(api, 2)
    assert back["mode_before"] == "approve"
    assert api.tick().state == "target"
    assert _carried(api, back["plan"]["id"]) == _carried(api, 2)


def test_in_mode_approve_the_policy_stays_as_it_is(api: Api) -> None:
    api.put_policy(mode="approve")
    version = api.get("policies/default")["status"]["version"]
    assert _restore(api)["mode_before"] == "approve"
    assert api.get("policies/default")["status"]["version"] == version


def test_a_repeated_request_restores_once(api: Api) -> None:
    first, second = (_restore(api, Idempotency_Key="one") for _ in range(2))
    assert first == second
    assert len(api.get("plans?state=approved")["items"]) == 1


def test_tasks_of_now_run_on_what_it_leaves_over(small_fleet: Prepared) -> None:
    with small_fleet.running_api() as api:
        api.put("services/chat", service(scaling={"min_replicas": 1}))
        # Under `joint` the service would have all of its GPU.
        api.put_policy(policy="hetsev")
        assert api.tick().state == "target"
        assert _carried(api, 1) == [("n1/gpu-0", "chat", 50.0, 1)]
        api.observe(1, {"chat": 900})
        assert api.tick().state == "target"
        api.put(
            "tasks/nightly", task(project="team-a", iterations=None, inputs=40_000_000)
        )
        _restore(api, 1)
        assert api.tick().state == "target"
        assert api.get("tasks/nightly")["status"]["gpu"] == "n1/gpu-0"


def test_a_plan_of_a_service_that_is_gone_is_refused(api: Api) -> None:
    api.call("DELETE", "services/search", token="admin", If_Match="*")
    assert _refusal(api) == (
        "plan 1 cannot run on the present fleet: no service is called 'search', so no row describes it"
    )


def test_a_plan_without_gpus_for_it_is_refused(api: Api) -> None:
    _restore(api, 1)
    assert api.tick().state == "target"
    api.put("nodes/n1", node(gpus=1))
    assert "2 GPUs are used; there are 1" in _refusal(api, 2)


def test_what_is_in_force_or_never_was_is_not_restored(api: Api) -> None:
    assert _refusal(api, 2) == "plan 2 is in force"
    api.clock.advance(0.5)
    kept = api.tick()
    assert kept.state == "kept" and kept.plan_id is not None
    assert "never was in force" in _refusal(api, kept.plan_id)
    assert api.status("POST", "plans/99/restore", token="operator") == 404
    assert api.status("POST", "plans/1/restore", token="viewer") == 403


def test_while_the_loop_is_paused_nothing_is_restored(api: Api) -> None:
    api.call("POST", "policies/default/pause", token="admin")
    assert "the control loop is paused" in _refusal(api)


def test_a_plan_that_was_being_made_meanwhile_gives_way(api: Api) -> None:
    async def while_planning(engine: AsyncEngine) -> bool:
        store = PostgresStore(engine)
        snapshot = await store.load_snapshot(api.clock.now())
        target = snapshot.target
        assert target is not None
        bound = replace(target, parent=target.generation, generation=99)
        revision = snapshot.state.catalogue_revision
        plan_id = await store.record_plan(make_record(snapshot.at, bound, revision))
        await asyncio.to_thread(_restore, api)
        return await store.push_target(plan_id, bound, (), snapshot.at)

    wanted = _carried(api, 1)
    assert api.on_engine(while_planning) is False
    outcome = api.tick()
    assert outcome.state == "target" and outcome.plan_id is not None
    assert _carried(api, outcome.plan_id) == wanted


def test_where_the_fleet_changes_while_a_plan_is_bound_it_is_bound_again(
    api: Api,
) -> None:
    with ThreadPoolExecutor() as pool, psycopg.connect(conninfo(api.url)) as changing:
        changing.execute(
            "UPDATE cluster SET catalogue_revision = catalogue_revision + 1"
        )
        restoring = pool.submit(_restore, api)
        with psycopg.connect(conninfo(api.url), autocommit=True) as watching:
            until(lambda: watching.execute(WAITING).rowcount > 0)
        changing.commit()
        restoring.result()
    assert api.tick().state == "target"
