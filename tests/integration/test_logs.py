"""Logs from a node to the caller: through the API, PostgreSQL and a node's agent, with all that may be missing."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response

from agents.base.protocol import LogAnswer, LogRequest
from app.api.workloads import logs
from tests.integration.api_harness import Api, Prepared, node, service
from tests.integration.fault_harness import rows
from tests.integration.logging_node import NEW_AGENT, LoggingNode
from tests.waiting import until

pytestmark = pytest.mark.integration

SERVICE = service(scaling={"min_replicas": 1})


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.put("services/chat", SERVICE)
        yield running


@pytest.fixture
def n1(api: Api, tmp_path: Path) -> LoggingNode:
    return LoggingNode(api, "n1", tmp_path)


def planned(api: Api) -> str:
    """The replica that the plan has for the service."""
    api.tick()
    ((replica,),) = rows(api.url, "SELECT replica FROM plan_replica")
    return str(replica)


def ask(
    api: Api, n1: LoggingNode, path: str, **headers: str
) -> tuple[Any, list[LogRequest]]:
    """The answer to somebody who asks while the node syncs, and what the node was asked for."""
    with ThreadPoolExecutor(1) as thread:
        waiting: Future[Response] = thread.submit(api.call, "GET", path, token="viewer")
        asked: dict[str, LogRequest] = {}

        def is_answered() -> bool:
            for request in n1.sync(**(headers or NEW_AGENT)):
                # A request is repeated until the API has seen its answer.
                asked[request.id] = request
                assert n1.answer(request).status_code == 204
            return waiting.done()

        until(is_answered)
        return waiting.result(), list(asked.values())


def test_the_end_of_a_log_comes_from_the_node_and_then_what_follows(
    api: Api, n1: LoggingNode
) -> None:
    replica = planned(api)
    n1.write(replica, b"loading\x1b[31m\xff\nout of memory")
    answer, asked = ask(api, n1, "services/chat/logs?tail=5")
    assert answer.json() == {
        "node": "n1",
        "replica": replica,
        "replicas": [
            {"replica": replica, "node": "n1", "state": None, "is_planned": True}
        ],
        "text": "loading\x1b[31m�\nout of memory",
        "start": 0,
        "end": 27,
        "problem": None,
    }
    assert [each.lines for each in asked] == [5]
    n1.write(replica, b"\n")
    path = f"services/chat/logs?replica={replica}&after=27"
    assert ask(api, n1, path)[0].json()["text"] == "\n"
    assert rows(api.url, "SELECT 1 FROM log_request") == []


def test_since_goes_to_the_node_as_an_age(api: Api, n1: LoggingNode) -> None:
    replica = planned(api)
    n1.write(replica, b"lately\n")
    since = (api.clock.now() - timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    answer, asked = ask(api, n1, f"services/chat/logs?since={since}")
    assert answer.json()["text"] == "lately\n"
    assert [each.age_s for each in asked] == [300.0]


def test_the_log_of_a_replica_that_is_no_longer_planned_is_still_there(
    api: Api, n1: LoggingNode
) -> None:
    replica = planned(api)
    n1.write(replica, b"CUDA error\n")
    api.put("services/chat", service(scaling={"min_replicas": 0}))
    api.clock.advance(600.0)
    n1.sync()
    api.tick()
    assert (
        rows(
            api.url,
            "SELECT 1 FROM plan p JOIN plan_replica r ON r.plan_id = p.id WHERE p.state = 'target'",
        )
        == []
    )
    answer, _ = ask(api, n1, f"services/chat/logs?replica={replica}")
    assert answer.json()["text"] == "CUDA error\n"


def test_a_node_without_that_log_says_so_and_an_older_agent_is_not_asked(
    api: Api, n1: LoggingNode
) -> None:
    planned(api)
    answer, _ = ask(api, n1, "services/chat/logs")
    assert "was not started there" in answer.json()["problem"]
    answer, asked = ask(api, n1, "services/chat/logs", X_Nothing="")
    assert asked == []
    assert "is older than logs: upgrade it" in answer.json()["problem"]


def test_a_node_that_is_away_is_named_and_nothing_is_left_over(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(api)
    monkeypatch.setattr(logs, "ANSWER_S", 0.2)
    answer = api.get("services/chat/logs")
    assert "node 'n1' has not answered" in answer["problem"]
    assert rows(api.url, "SELECT 1 FROM log_request") == []


def test_no_agent_answers_for_another_ones_replica(
    api: Api, n1: LoggingNode, tmp_path: Path
) -> None:
    replica = planned(api)
    api.put("nodes/n2", node("n2"))
    n2 = LoggingNode(api, "n2", tmp_path)
    n1.write(replica, b"true\n")
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(api.call, "GET", "services/chat/logs")
        asked: list[LogRequest] = []
        until(lambda: bool(asked.extend(n1.sync(**NEW_AGENT)) or asked))
        forged = LogAnswer(text="forged", start=0, end=6)
        assert n2.send(asked[0].id, forged).status_code == 204
        assert n1.answer(asked[0]).status_code == 204
        assert waiting.result().json()["text"] == "true\n"
        # Answered twice, the second one is for no one.
        assert n1.send(asked[0].id, forged).status_code == 204
    assert rows(api.url, "SELECT 1 FROM log_request") == []


def test_without_a_replica_the_answer_says_where_to_look(api: Api) -> None:
    answer = api.call("GET", "services/chat/logs")
    assert answer.status_code == 404 and "its conditions say why" in answer.text
    answer = api.call("GET", "services/chat/logs?replica=chat-g1-1")
    assert answer.status_code == 404 and "'chat-g1-1'" in answer.text


def test_of_a_service_that_came_back_under_its_name_no_earlier_log_is_shown(
    api: Api, n1: LoggingNode
) -> None:
    replica = planned(api)
    n1.write(replica, b"secret of the first\n")
    api.call("DELETE", "services/chat", If_Match="*")
    api.clock.advance(5.0)
    api.put("services/chat", SERVICE)
    for path in ("services/chat/logs", f"services/chat/logs?replica={replica}"):
        assert api.call("GET", path).status_code == 404


def test_what_a_node_sends_beyond_the_limits_is_refused(
    api: Api, n1: LoggingNode
) -> None:
    refused = n1.send("7f", LogAnswer(text="x" * 65_537))
    assert refused.status_code == 422 and "/text" in refused.text
    refused = n1.send("7f", LogAnswer(text="x" * 600_000))
    assert refused.status_code == 413
    assert n1.send("7f", LogAnswer(text="\x00" * 65_536)).status_code == 204
