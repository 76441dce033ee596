"""The sync endpoint: acknowledged means durable, odd observations are refused alone, commands come at once."""

import asyncio
import json
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import create_engine, pool, text

from app.api.fleet.sync import SKEW_HEADER
from tests.integration.api_harness import (
    NOW,
    Api,
    Prepared,
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


def _stored(url: str) -> list[tuple[str, int]]:
    engine = create_engine(url, poolclass=pool.NullPool)
    with engine.connect() as connection:
        rows = connection.execute(
            text("SELECT node, sequence FROM observation ORDER BY node, sequence")
        ).all()
    engine.dispose()
    return [(row.node, row.sequence) for row in rows]


def _execute(url: str, statement: str) -> None:
    engine = create_engine(url, poolclass=pool.NullPool)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def test_an_acknowledged_observation_is_in_the_database(api: Api) -> None:
    answer = api.sync(sequence=1, services=[reading()])
    assert answer.json() == {
        "boot": "boot-1",
        "acknowledged": 1,
        "server_time_s": NOW.timestamp(),
        "command": None,
        "lease": None,
    }
    assert _stored(api.url) == [("n1", 1)]


def test_an_observation_that_the_database_does_not_take_is_not_acknowledged(
    api: Api,
) -> None:
    _execute(api.url, _FULL_DISK)
    assert api.sync(sequence=1).status_code == 200
    refused = api.sync(sequence=2)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    _execute(api.url, "DROP TRIGGER full_disk ON agent_boot")
    assert api.sync(sequence=2).json()["acknowledged"] == 2


_FULL_DISK = """
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER full_disk BEFORE UPDATE ON agent_boot FOR EACH ROW
WHEN (NEW.last_sequence >= 2) EXECUTE FUNCTION fail();
"""


def test_replayed_and_reordered_observations_count_once(api: Api) -> None:
    acknowledged = [
        api.sync(sequence=number).json()["acknowledged"] for number in (2, 1, 2, 3, 1)
    ]
    assert acknowledged == [2, 2, 2, 3, 3]
    assert _stored(api.url) == [("n1", 1), ("n1", 2), ("n1", 3)]


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
    assert _stored(refusing.url) == []


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_an_observation_with_nan_is_refused_with_the_name_of_its_field(
    refusing: Api, number: str
) -> None:
    body = json.dumps(observation()).replace('"power_w": 12', f'"power_w": {number}', 1)
    answer = refusing.client.post(
        "/api/v1/nodes/n1/sync",
        content=body,
        headers={"Authorization": f"Bearer {refusing.secrets['agent']}"},
    )
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/gpus/0/power_w"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff\xfe", b'{"node": "n1\\u0000"}', b"[" * 5000]
)
def test_what_is_not_an_observation_is_refused(refusing: Api, body: bytes) -> None:
    answer = refusing.client.post(
        "/api/v1/nodes/n1/sync",
        content=body,
        headers={"Authorization": f"Bearer {refusing.secrets['agent']}"},
    )
    assert answer.status_code in (400, 422)


def test_a_text_that_no_database_keeps_does_not_harm_other_nodes(api: Api) -> None:
    assert api.sync(problems=["bad \x00 text"]).status_code == 422
    assert api.sync(sequence=2).status_code == 200


def test_an_unknown_node_registers_itself_with_the_gpus_that_it_reports(
    api: Api,
) -> None:
    assert api.sync("n9").json()["acknowledged"] == 1
    assert [gpu["gpu_type"] for gpu in api.get("nodes/n9")["spec"]["gpus"]] == [
        "T4",
        "T4",
    ]
    assert api.get("events?kind=NodeRegistered")["items"][0]["subject"] == "node/n9"


def test_slices_of_a_gpu_are_registered_by_their_own_indices(api: Api) -> None:
    # GPU 1 is whole, GPU 0 is in MIG mode with slices in its instances 1 and 5.
    first, second = observation()["gpus"]
    gpus = [{**second, "index": 1}, {**first, "index": 1010}, {**first, "index": 1050}]
    answer = api.sync("n9", gpus=gpus)
    assert answer.status_code == 200, answer.text
    assert [gpu["index"] for gpu in api.get("nodes/n9")["spec"]["gpus"]] == [
        1,
        1010,
        1050,
    ]
    twice = api.sync("n8", gpus=[first, first])
    assert twice.status_code == 422 and "indices must differ" in twice.json()["detail"]


def test_an_unknown_node_without_gpus_is_told_what_to_do(api: Api) -> None:
    answer = api.sync("n9", gpus=[])
    assert (
        answer.status_code == 404 and "apply a Node manifest" in answer.json()["detail"]
    )


def test_a_node_with_an_unknown_gpu_type_is_told_which_there_are(api: Api) -> None:
    gpus = [{**gpu, "gpu_type": "T5"} for gpu in observation()["gpus"]]
    answer = api.sync("n9", gpus=gpus)
    assert answer.status_code == 422 and "there are T4" in answer.json()["detail"]


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
        until(lambda: len(_stored(api.url)) == 2)
        assert not waiting.done()
        api.tick()
        assert waiting.result(PATIENCE_S).json()["command"]["generation"] == 1


def test_a_wait_without_news_ends_with_none(api: Api) -> None:
    assert api.sync(query="?wait_s=5").json()["command"] is None
    assert api.sync(sequence=2, query="?wait_s=31").status_code == 422


def test_a_full_queue_asks_to_come_again(
    small_fleet: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is being written waits for its lock until the others were sent away.
    monkeypatch.setattr("app.db.base.engine.LOCK_TIMEOUT_MS", int(PATIENCE_S * 1000))
    with small_fleet.running_api(sync_queue_limit=1) as api:
        for number in range(1, 5):
            api.put(f"nodes/n{number}", node(f"n{number}"))
            api.token_of(f"n{number}")
        answers: queue.Queue[int] = queue.Queue()
        threads = [
            threading.Thread(
                target=lambda number=number: answers.put(
                    api.sync(f"n{number}").status_code
                )
            )
            for number in range(1, 5)
        ]
        blocker = create_engine(api.url, poolclass=pool.NullPool)
        with blocker.begin() as connection:
            connection.execute(text("LOCK TABLE agent_boot IN ACCESS EXCLUSIVE MODE"))
            threads[0].start()
            waiting = text(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = "
                "(SELECT oid FROM pg_database WHERE datname = current_database())"
            )
            until(
                lambda: connection.execute(waiting).scalar_one(),
                "the first observation never reached the database",
            )
            for thread in threads[1:]:
                thread.start()
            # One is being written, one waits, and two are sent away.
            refused = [answers.get(timeout=PATIENCE_S) for _ in range(2)]
            assert refused == [503, 503]
        taken = [answers.get(timeout=PATIENCE_S) for _ in range(2)]
        assert taken == [200, 200]
        for thread in threads:
            thread.join()
        blocker.dispose()
