"""Where requests go: what agents say of their routers, what the plan has, and what is shown of it."""

from collections.abc import Iterator
from typing import Any

import pytest

from agents.base.protocol import ROUTER_HEADER
from agents.base.version import REPLY_FIELDS, TAKES_HEADER, takes
from tests.app.runner import cli
from tests.integration.api_harness import (
    Api,
    Prepared,
    node,
    observation,
    reading,
    service,
)
from tests.waiting import until

pytestmark = pytest.mark.integration

GATEWAY = "https://inference.example.org"


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.put("nodes/n2", node("n2"))
        running.put("services/chat", service())
        yield running


def report(
    api: Api,
    name: str,
    router: str,
    sequence: int,
    *,
    passes_on: bool = False,
    **fields: object,
) -> Any:
    """What a node's agent is answered that says where its router is, and whether it passes requests on."""
    headers = {ROUTER_HEADER: router}
    if passes_on:
        headers[TAKES_HEADER] = takes(REPLY_FIELDS)
    now_s = api.clock.now().timestamp()
    answer = api.call(
        "POST",
        f"nodes/{name}/sync",
        observation(
            name, sequence=sequence, window_start_s=now_s - 1.0, window_s=1.0, **fields
        ),
        token=api.token_of(name),
        **{each.replace("-", "_"): value for each, value in headers.items()},
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def command_of(
    api: Api, name: str, router: str, sequence: int, **fields: object
) -> Any:
    """The newer command that it is answered."""
    return until(lambda: report(api, name, router, sequence, **fields)["command"])


def replicas_of(command: Any, state: str = "ready") -> list[dict[str, object]]:
    kept = ("id", "service", "sm_percent", "batch", "memory_mib")
    return [
        {
            "gpu_index": gpu["index"],
            "state": state,
            **{key: each[key] for key in kept},
        }
        for gpu in command["gpus"]
        for each in gpu["replicas"]
    ]


def shown(api: Api, *words: str) -> str:
    """What a command line prints."""
    environment = {"PLIMSOLL_TOKEN": api.secrets["viewer"]}
    return cli(*words, api=api.forward, environment=environment).out


def test_the_endpoint_is_a_node_that_serves_and_the_nodes_are_told(api: Api) -> None:
    commands = {}
    load = [reading(arrivals=10)]
    for name, port in (("n1", 8001), ("n2", 8002)):
        report(api, name, f"http://gpu-{name}:{port}", 1, services=load)
    waiting = api.get("services/chat/endpoints", token="viewer")
    # No replica is planned: its requests may wait at any node.
    urls = [each["url"] for each in waiting["nodes"]]
    assert urls == ["http://10.0.0.7:8001", "http://10.0.0.7:8002"]
    api.tick()
    api.clock.advance(1.0)
    for name, port in (("n1", 8001), ("n2", 8002)):
        commands[name] = command_of(api, name, f"http://gpu-{name}:{port}", 2)
    (used,) = (name for name, command in commands.items() if command["gpus"])
    port = {"n1": 8001, "n2": 8002}[used]
    found = api.get("services/chat/endpoints", token="viewer")
    (carrier,) = found["nodes"]
    assert (carrier["node"], carrier["planned_replicas"]) == (used, 1)
    assert carrier["ready_replicas"] == 0
    assert found["url"] == f"http://10.0.0.7:{port}/v2/models/chat/infer"
    assert api.get("services/chat")["status"]["endpoint"] == found["url"]
    assert api.get("endpoints", token="viewer")["items"] == [found]
    for words in (("get", "endpoints"), ("describe", "service", "chat")):
        assert found["url"] in shown(api, *words)

    # What is no longer planned for and still serves is named until its agent says that it does not.
    other = "n2" if used == "n1" else "n1"
    serving = replicas_of(commands[used])
    api.clock.advance(1.0)
    report(api, used, "http://gpu-1:9000", 3, replicas=serving, services=load)
    report(api, other, "http://gpu-2:9000", 3)
    assert api.status("POST", f"nodes/{used}/drain") == 200
    api.tick()
    nodes = {each["node"]: each for each in api.get("services/chat/endpoints")["nodes"]}
    assert (nodes[used]["planned_replicas"], nodes[used]["ready_replicas"]) == (0, 1)
    assert nodes[used]["weight_rps"] == pytest.approx(nodes[other]["weight_rps"])
    api.clock.advance(1.0)
    report(api, used, "http://gpu-1:9000", 4)
    (left,) = api.get("services/chat/endpoints")["nodes"]
    assert left["node"] == other


def test_a_gateway_is_every_services_endpoint(small_fleet: Prepared) -> None:
    settings = {"gateway_url": f"{GATEWAY}/"}
    with small_fleet.running_api(**settings) as api:
        api.put("services/chat", service())
        found = api.get("services/chat/endpoints")
        assert found["gateway"] == GATEWAY
        assert found["url"] == f"{GATEWAY}/v2/models/chat/infer"


def test_what_is_no_routers_address_is_told_to_nobody(api: Api) -> None:
    wrong = ("ftp://gpu-1:8000", "http://169.254.169.254:80", "http://gpu-1", "x")
    for sequence, said in enumerate(wrong, start=1):
        report(api, "n1", said, sequence)
        found = api.get("services/chat/endpoints")
        assert (found["url"], found["nodes"]) == (None, []), said


def test_a_node_is_told_when_the_replicas_that_moved_from_it_are_ready_elsewhere(
    api: Api,
) -> None:
    load = [reading(arrivals=10)]
    for name in ("n1", "n2"):
        report(api, name, "", 1, services=load)
    api.tick()
    api.clock.advance(1.0)
    commands = {name: command_of(api, name, "", 2) for name in ("n1", "n2")}
    (old,) = (name for name, command in commands.items() if command["gpus"])
    (new,) = {"n1", "n2"} - {old}
    serving = replicas_of(commands[old])
    api.clock.advance(1.0)
    report(api, old, "", 3, replicas=serving, services=load)
    report(api, new, "", 3)
    assert api.status("POST", f"nodes/{old}/drain") == 200
    api.tick()
    command = command_of(api, new, "", 4, generation=commands[new]["generation"])

    def is_ready(sequence: int) -> bool:
        """Whether the old node, which has the same plan, is told so."""
        same = {"replicas": serving, "generation": command["generation"]}
        answer = report(api, old, "", sequence, awaited=["chat"], **same)
        return "chat" in answer.get("ready_elsewhere", ())

    api.clock.advance(1.0)
    assert not is_ready(4)
    report(api, new, "", 5, replicas=replicas_of(command, "starting"))
    api.clock.advance(1.0)
    assert not is_ready(5)
    router = "http://10.0.0.7:8000"
    report(api, new, router, 6, replicas=replicas_of(command))
    api.clock.advance(1.0)
    assert is_ready(6)
    # What waits at the old node is passed on; agents that do not know this are not told where to.
    asked = {"awaited": ["chat"], "generation": command["generation"]}
    told = report(api, old, "", 6, passes_on=True, **asked)
    assert told["carriers"] == {"chat": [router]}
    assert "carriers" not in report(api, old, "", 6, **asked)
    api.clock.advance(60.0)
    # A node that has fallen silent may be gone.
    assert not is_ready(7)
    # Of a service that is gone nothing is awaited, although that changes nothing for the old node, which keeps its
    # command.
    assert api.status("DELETE", "services/chat", If_Match="*") == 204
    report(api, new, "", 7)
    api.tick()
    assert is_ready(8)


def test_nodes_know_a_service_without_a_replica_as_soon_as_it_is_applied(
    api: Api,
) -> None:
    for name in ("n1", "n2"):
        report(api, name, "", 1, services=[reading(arrivals=10)])
    api.tick()
    api.clock.advance(1.0)
    before = command_of(api, "n1", "", 2)["generation"]
    api.put("services/doze", service("doze"))
    api.tick()
    for name in ("n1", "n2"):
        command = command_of(api, name, "", 3, generation=before)
        assert "doze" in [each["service"] for each in command["routes"]]
    api.clock.advance(1.0)
    api.tick()
    # A node that is none of those where it waits any more keeps what waits until a replica is ready; of a service that
    # is gone nothing need be kept.
    awaited = {"awaited": ["doze", "gone"], "passes_on": True}
    told = report(api, "n1", "", 4, generation=command["generation"], **awaited)
    assert told["command"] is None
    assert told["carriers"] == {"gone": []}
    # Its first request, which still waits, is a reason to start it.
    waits = [{"service": "doze", "arrivals": 1, "served": 0, "in_slo": 0, "queued": 1}]
    report(api, "n1", "", 5, generation=command["generation"], services=waits)
    api.clock.advance(1.0)
    api.tick()
    newer = [
        command_of(api, name, "", 6, generation=command["generation"])
        for name in ("n1", "n2")
    ]
    assert "doze" in [each["service"] for one in newer for each in replicas_of(one)]
