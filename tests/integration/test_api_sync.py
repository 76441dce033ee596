"""The sync endpoint: acknowledged means durable, odd observations are refused alone, commands come at once."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from app.api.fleet.sync import SKEW_HEADER
from app.db.base.listen import conninfo
from tests.integration.api_harness import (
    NOW,
    Api,
    Prepared,
    Rows,
    node,
    observation,
    reading,
    service,
)
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.put("services/chat", service())
        yield running


@pytest.fixture(scope="module")
def refusing(small_fleet: Prepared) -> Iterator[Api]:
    """An API that takes nothing of what tests send it."""
    with small_fleet.running_api() as running:
        running.token_of("n1")
        yield running


def _stored(api: Api) -> Rows:
    return api.execute("SELECT node, sequence FROM observation ORDER BY 1, 2")


def test_an_acknowledged_observation_is_in_the_database(api: Api) -> None:
    answer = api.sync(sequence=1, services=[reading()])
    assert answer.json() == {
        "boot": "boot-1",
        "acknowledged": 1,
        "server_time_s": NOW.timestamp(),
        "command": None,
        "lease": None,
    }
    assert _stored(api) == [("n1", 1)]


def test_an_observation_that_the_database_does_not_take_is_not_acknowledged(
    api: Api,
) -> None:
    api.execute(_FULL_DISK)
    assert api.sync(sequence=1).status_code == 200
    refused = api.sync(sequence=2)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    api.execute("DROP TRIGGER full_disk ON agent_boot")
    assert api.sync(sequence=2).json()["acknowledged"] == 2


_FULL_DISK = """
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER full_disk BEFORE UPDATE ON agent_boot FOR EACH ROW
WHEN (NEW.last_sequence >= 2) EXECUTE FUNCTION fail();
"""


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"window_s": -2.0}, "/window_s"),
        ({"sequence": 0}, "/sequence"),
        ({"sequence": 2**60}, "/sequence"),
        ({"generation": "none"}, "/generation"),
        ({"colour": "red"}, None),
        ({"node": "n2"}, "/node"),
        ({"gpus": [{"index": 0}]}, "/gpus/0"),
        ({"gpus": observation()["gpus"][:1] * 2}, "/gpus"),
        (
            {"services": [{**reading(), "latency_buckets": [[10**9, 1]]}]},
            "/services/0/latency_buckets/0/0",
        ),
        ({"services": [{**reading(), "arrivals": -1}]}, "/services/0/arrivals"),
    ],
)
def test_an_odd_observation_is_refused_with_the_name_of_its_field(
    refusing: Api, fields: dict[str, Any], pointer: str | None
) -> None:
    answer = refusing.call(
        "POST", "nodes/n1/sync", {**observation(), **fields}, token="agent"
    )
    assert answer.status_code == 422
    assert [entry["pointer"] for entry in answer.json().get("errors", [])] == (
        [] if pointer is None else [pointer]
    )
    assert _stored(refusing) == []


NAN = json.dumps(observation()).replace('"power_w": 12', '"power_w": NaN', 1).encode()


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff\xfe", b'{"node": "n1\\u0000"}', b"[" * 5000, NAN]
)
def test_what_is_not_an_observation_is_refused(refusing: Api, body: bytes) -> None:
    headers = {"Authorization": f"Bearer {refusing.secrets['agent']}"}
    path = "/api/v1/nodes/n1/sync"
    answer = refusing.client.post(path, content=body, headers=headers)
    assert answer.status_code in (400, 422)
    if body == NAN:
        assert answer.json()["errors"][0]["pointer"] == "/gpus/0/power_w"


def test_a_text_that_no_database_keeps_does_not_harm_other_nodes(api: Api) -> None:
    assert api.sync(problems=["bad \x00 text"]).status_code == 422
    assert api.sync(sequence=2).status_code == 200


def test_an_unknown_node_registers_itself_with_the_gpus_that_it_reports(
    api: Api,
) -> None:
    reported = observation()["gpus"]
    without = api.sync("n9", gpus=[], problems=["GPU 0 is not used: no memory told"])
    assert without.status_code == 404
    assert (
        "no GPU (GPU 0 is not used: no memory told); apply a Node manifest"
        in without.json()["detail"]
    )
    strange = api.sync("n9", gpus=[{**gpu, "gpu_type": "T5"} for gpu in reported])
    assert strange.status_code == 422 and "there are T4" in strange.json()["detail"]
    assert api.sync("n9").json()["acknowledged"] == 1
    types = [gpu["gpu_type"] for gpu in api.get("nodes/n9")["spec"]["gpus"]]
    assert types == ["T4", "T4"]
    assert api.get("events?kind=NodeRegistered")["items"][0]["subject"] == "node/n9"


def test_a_deleted_node_whose_agent_still_reports_returns_and_says_so(
    api: Api,
) -> None:
    api.sync("n9")
    assert "first time" in api.get("events?kind=NodeRegistered")["items"][0]["reason"]
    assert api.call("DELETE", "nodes/n9", If_Match="*").status_code == 204
    assert api.sync("n9", sequence=2).json()["acknowledged"] == 2
    reason = api.get("events?kind=NodeRegistered")["items"][0]["reason"]
    assert "after the node was deleted; stop the agent before" in reason


def test_slices_of_a_gpu_are_registered_by_their_own_indices(api: Api) -> None:
    # GPU 1 is whole, GPU 0 is in MIG mode with slices in its instances 1 and 5.
    first, second = observation()["gpus"]
    gpus = [{**second, "index": 1}, {**first, "index": 1010}, {**first, "index": 1050}]
    answer = api.sync("n9", gpus=gpus)
    assert answer.status_code == 200, answer.text
    listed = [gpu["index"] for gpu in api.get("nodes/n9")["spec"]["gpus"]]
    assert listed == [1, 1010, 1050]
    twice = api.sync("n8", gpus=[first, first])
    assert twice.status_code == 422 and "indices must differ" in twice.json()["detail"]


def test_a_wrong_clock_is_accepted_told_and_noted_once(api: Api) -> None:
    ahead = NOW.timestamp() + 600.0
    for number in (1, 2):
        answer = api.sync(sequence=number, window_start_s=ahead)
        assert (answer.status_code, float(answer.headers[SKEW_HEADER])) == (200, 602.0)
    events = api.get("events?kind=NodeClockSkewed")["items"]
    assert len(events) == 1 and "602 s after now" in events[0]["reason"]
    assert SKEW_HEADER not in api.sync(sequence=3).headers
    api.sync(sequence=4, window_start_s=ahead - 1200.0)
    assert len(api.get("events?kind=NodeClockSkewed")["items"]) == 2


def test_the_newest_command_comes_with_the_answer_until_the_agent_has_it(
    api: Api,
) -> None:
    api.sync(sequence=1, services=[reading()])
    assert api.tick().generation == 1
    command = api.command(sequence=2, generation=0)
    assert (command["node"], command["generation"]) == ("n1", 1)
    assert command["gpus"][0]["replicas"][0]["service"] == "chat"
    assert api.sync(sequence=3, generation=1).json()["command"] is None


def test_an_agent_that_waits_gets_the_command_as_soon_as_it_is_pushed(
    small_fleet: Prepared,
) -> None:
    with small_fleet.running_api(speed=1.0) as api, ThreadPoolExecutor() as threads:
        api.put("services/chat", service())
        api.sync(sequence=1, services=[reading()])

        async def never(_seconds: float) -> None:
            await asyncio.Event().wait()

        # Its time is never over: only the push ends the wait.
        api.clock.sleep = never  # type: ignore[method-assign]
        waiting = threads.submit(api.sync, sequence=2, query="?wait_s=20")
        until(lambda: len(_stored(api)) == 2)
        assert not waiting.done()
        api.tick()
        assert waiting.result(PATIENCE_S).json()["command"]["generation"] == 1


def test_a_wait_without_news_ends_with_none(api: Api) -> None:
    assert api.sync(query="?wait_s=5").json()["command"] is None
    assert api.sync(sequence=2, query="?wait_s=31").status_code == 422


def test_a_full_queue_asks_to_come_again(
    small_fleet: Prepared,
) -> None:
    names = [f"n{number}" for number in range(1, 5)]
    waiting = (
        b"SELECT FROM pg_locks WHERE NOT granted AND database = "
        b"(SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    with (
        small_fleet.running_api(sync_queue_limit=1) as api,
        ThreadPoolExecutor() as threads,
        psycopg.connect(conninfo(api.url)) as blocker,
    ):
        for name in names:
            api.put(f"nodes/{name}", node(name))
            api.token_of(name)
        blocker.execute("LOCK TABLE agent_boot IN ACCESS EXCLUSIVE MODE")
        answers = [threads.submit(api.sync, names[0])]
        until(lambda: blocker.execute(waiting).rowcount)
        answers += [threads.submit(api.sync, name) for name in names[1:]]
        # One is being written, one waits, and two are sent away.
        until(lambda: sum(each.done() for each in answers) == 2)
        refused = [each.result() for each in answers if each.done()]
        assert [each.status_code for each in refused] == [503, 503]
        blocker.rollback()
        taken = [each.result(PATIENCE_S).status_code for each in answers]
        assert sorted(taken) == [200, 200, 503, 503]
