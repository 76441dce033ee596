"""Draining a node through the API, from the wish to the empty node, with what its agent reports on the way."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.api_harness import Api, Prepared, node, reading, service
from tests.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.put("nodes/n2", node("n2"))
        running.put("services/chat", service())
        yield running


class Agents:
    """What both nodes report: the replicas of the commands that they got."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._sequence = 0
        self.commands: dict[str, Any] = {"n1": {}, "n2": {}}

    def report(self) -> None:
        self._sequence += 1
        self._api.clock.advance(2.0)
        for name, command in self.commands.items():
            answer = self._api.sync(
                name,
                sequence=self._sequence,
                window_start_s=self._api.clock.now().timestamp() - 2.0,
                generation=command.get("generation", 0),
                services=[reading(arrivals=10)],
                replicas=_readings(command),
            ).json()
            self.commands[name] = answer["command"] or command

    def follow(self, generation: int | None) -> None:
        """They report until they have that command, of which the API hears a moment after its push, and once more."""

        def have_it() -> bool:
            self.report()
            held = [command.get("generation") for command in self.commands.values()]
            return held == [generation] * len(held)

        until(have_it)
        self.report()


def _readings(command: dict[str, Any]) -> list[dict[str, object]]:
    return [
        {
            "id": replica["id"],
            "service": replica["service"],
            "gpu_index": gpu["index"],
            "state": "ready",
            "sm_percent": replica["sm_percent"],
            "batch": replica["batch"],
            "memory_mib": replica["memory_mib"],
        }
        for gpu in command.get("gpus", [])
        for replica in gpu["replicas"]
    ]


def test_a_drained_node_is_empty_within_two_plans_and_used_again_after_undrain(
    api: Api,
) -> None:
    agents = Agents(api)
    agents.report()
    agents.follow(api.tick().generation)
    (used,) = (name for name, command in agents.commands.items() if command["gpus"])
    answer = api.call("POST", f"nodes/{used}/drain", {"deadline_s": 60})
    assert answer.status_code == 200
    drain = answer.json()["status"]["drain"]
    assert (drain["replicas_left"], drain["tasks_left"]) == (1, 0)
    agents.follow(api.tick().generation)
    left = api.get(f"nodes/{used}")["status"]["drain"]["replicas_left"]
    assert left == 0
    # Each tick is of another process, as after a change of the leader: the node is drained once all the same.
    for _ in range(3):
        api.tick()
    kinds = [event["kind"] for event in api.get(f"events?subject=node/{used}")["items"]]
    assert (kinds.count("NodeDraining"), kinds.count("NodeDrained")) == (1, 1)
    again = api.call("POST", f"nodes/{used}/undrain").json()
    assert again["status"]["drain"] is None
    assert again["spec"]["cordoned"] is False


def test_uncordon_and_a_manifest_without_a_cordon_end_the_draining(api: Api) -> None:
    for path, body in (("nodes/n2/uncordon", None), ("nodes/n2", node("n2"))):
        assert api.status("POST", "nodes/n2/drain") == 200
        if body is None:
            api.call("POST", path)
        else:
            api.put(path, body)
        assert api.get("nodes/n2")["status"]["drain"] is None


@pytest.mark.parametrize("deadline_s", [-1, 10**9, "soon"])
def test_a_deadline_is_bounded(api: Api, deadline_s: object) -> None:
    answer = api.call("POST", "nodes/n2/drain", {"deadline_s": deadline_s})
    assert answer.status_code == 422
