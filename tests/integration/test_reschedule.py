"""Real agents of which one cannot start a service or task: it is placed elsewhere, and every process knows why."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from agents.base.clock import ManualClock
from agents.base.device import DeviceReadings, LaunchFailed, NodeState
from agents.base.protocol import (
    GpuReading,
    Observation,
    ReplicaCommand,
    ServiceReading,
    SyncReply,
    TaskCommand,
)
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.sync.ledger import Ledger
from agents.sync.transport import DirectTransport
from app.db.fleet.launches import load_launch_s
from app.db.predictions.forecasts import PostgresForecasts
from app.store.launch_book import FIRST
from tests.agents.factories import (
    an_empty_gpu,
)
from tests.agents.factories import run as finish
from tests.agents.paper_device import PaperDevice
from tests.integration.api_harness import (
    Api,
    Prepared,
    node,
    service,
)
from tests.integration.test_api_tasks import task

pytestmark = pytest.mark.integration
STEP_S = 2.0


class Device(PaperDevice):
    """A T4 under load, on which replicas and tasks are up at once, or cannot be started."""

    def __init__(self) -> None:
        super().__init__(an_empty_node_of_t4())
        self.why_not = ""
        """Why nothing starts; empty: it does."""

    async def start_replica(self, gpu_index: int, replica: ReplicaCommand) -> None:
        if self.why_not:
            raise LaunchFailed(f"{replica.id}: {self.why_not}")
        await super().start_replica(gpu_index, replica)

    async def start_task(self, gpu_index: int, task: TaskCommand) -> None:
        if self.why_not:
            raise LaunchFailed(f"{task.name}: {self.why_not}")
        await super().start_task(gpu_index, task)

    async def read(self) -> DeviceReadings:
        self.make_ready()
        count = 10
        return DeviceReadings(
            gpus=(
                GpuReading(
                    index=0,
                    gpu_type="T4",
                    memory_mib=16384.0,
                    memory_used_mib=0.0,
                    power_w=12.0,
                    energy_j=24.0,
                    clock_mhz=1590.0,
                    busy_percent=0.0,
                ),
            ),
            services=(
                ServiceReading(
                    service="chat", arrivals=count, served=count, in_slo=count
                ),
            ),
        )


class Fleet:
    """Two nodes' agents, which sync over HTTP, and the loop."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.clock = ManualClock(api.clock.now().timestamp())
        self.devices = {name: Device() for name in ("n1", "n2")}
        self.agents = {
            name: NodeAgent(
                AgentSettings(node=name, boot="boot-1"),
                device,
                transport=DirectTransport(self._exchange),
                clock=self.clock,
                ledger=Ledger(None),
            )
            for name, device in self.devices.items()
        }

    def step(self, count: int = 1, *, seconds: float = STEP_S) -> None:
        """Time passes, both agents act, and the loop decides; each time by a process that never did before."""
        for _ in range(count):
            self.clock.advance(seconds)
            self.api.clock.advance(seconds)
            for agent in self.agents.values():
                finish(agent.step())
            self.api.tick()

    def places(self, kind: str = "replicas") -> set[str]:
        """Nodes whose command has a replica, or a task."""
        return {
            name
            for name, agent in self.agents.items()
            if agent.command and any(getattr(gpu, kind) for gpu in agent.command.gpus)
        }

    def lie(self, sequence: int, **said: object) -> None:
        """What the node without the service claims of it."""
        (used,) = self.places()
        (other,) = self.devices.keys() - {used}
        start_s = self.api.clock.now_s() - STEP_S
        answer = self.api.sync(
            other,
            sequence=sequence,
            boot="liar",
            window_start_s=start_s,
            gpus=[],
            **said,
        )
        assert answer.status_code == 200

    def failures(self, subject: str) -> list[str]:
        """Why launches failed, by the audit."""
        found = self.events(subject)
        return [line["reason"] for line in found if line["kind"] == "LaunchesFail"]

    def conditions(self) -> dict[str, dict[str, Any]]:
        """Of `chat`, by type."""
        found = self.api.get("services/chat")["status"]["conditions"]
        return {each["type"]: each for each in found}

    def messages(self) -> list[str]:
        """Of the newest plan."""
        newest = self.api.get("plans")["items"][0]["id"]
        found: list[str] = self.api.get(f"plans/{newest}/explain")["messages"]
        return found

    def running(self) -> set[str]:
        return {name for name, device in self.devices.items() if device.replicas()}

    def events(self, subject: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api.get(f"events?subject={subject}")["items"]
        return found

    async def _exchange(self, observation: Observation, wait_s: float) -> SyncReply:
        name = observation.node
        body = msgspec.json.decode(msgspec.json.encode(observation))
        answer = self.api.call(
            "POST", f"nodes/{name}/sync", body, token=self.api.token_of(name)
        )
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=SyncReply)


def an_empty_node_of_t4() -> NodeState:
    gpu = replace(an_empty_gpu(memory_mib=16384.0), gpu_type="T4")
    return NodeState(gpus=(gpu,))


@pytest.fixture
def fleet(small_fleet: Prepared) -> Iterator[Fleet]:
    with small_fleet.running_api() as api:
        for name in ("n1", "n2"):
            api.put(f"nodes/{name}", node(name, gpus=1))
        api.put("services/chat", service(scaling={"max_replicas": 1}))
        yield Fleet(api)


def test_a_service_that_cannot_start_on_one_node_is_placed_on_the_other_and_says_why(
    fleet: Fleet,
) -> None:
    for device in fleet.devices.values():
        device.why_not = "model weights are missing"
    fleet.step(3)
    (bad,) = fleet.places()
    (good,) = fleet.devices.keys() - {bad}
    fleet.devices[good].why_not = ""
    # After 0, 5 and 15 s the agent has tried thrice.
    fleet.step(12)
    assert (fleet.places(), fleet.running()) == ({good}, {good})
    (reason,) = fleet.failures("service/chat")
    assert f"GPU {bad}/gpu-0" in reason
    assert "model weights are missing" in reason
    said = fleet.conditions()["Launches"]
    assert (said["status"], said["reason"]) == ("False", "LaunchesFail")
    assert "model weights are missing" in said["message"]
    assert f"chat: its launches fail; it avoids {bad}/gpu-0" in fleet.messages()
    # The time over, nothing is said any more, and what is well stays.
    fleet.step(seconds=FIRST.total_seconds())
    fleet.step(2)
    assert fleet.places() == {good}
    assert "Launches" not in fleet.conditions()


@pytest.mark.thorough
def test_a_task_that_cannot_start_on_one_node_is_started_on_the_other_and_says_why(
    fleet: Fleet,
) -> None:
    # The service leaves SMs over where a task waits as it starts; it need not start again for the next one.
    fleet.api.put("tasks/first", task("first", iterations=10**9))
    fleet.step(3)
    (bad,) = fleet.places()
    (good,) = fleet.devices.keys() - {bad}
    assert fleet.places("tasks") == {bad}
    fleet.api.call("DELETE", "tasks/first", If_Match="*")
    fleet.step(2)
    fleet.devices[bad].why_not = "no data set"
    fleet.api.put("tasks/nightly", task(iterations=10**9))
    fleet.step(2)
    assert fleet.places("tasks") == {bad}
    # After 0, 5 and 15 s the agent has tried thrice. The other GPU is paid for when it has waited for ten minutes.
    fleet.step(10)
    assert fleet.places("tasks") == set()
    fleet.step(seconds=578.0)
    fleet.step(2)
    assert fleet.places("tasks") == {good}
    assert [each.name for each in fleet.devices[good].tasks()] == ["nightly"]
    (reason,) = fleet.failures("task/nightly")
    assert f"GPU {bad}/gpu-0: nightly: no data set" in reason
    assert "it starts on other GPUs" in reason
    told = f"task nightly: its launches fail; it avoids {bad}/gpu-0"
    assert told in fleet.messages()


def test_a_node_that_reports_launches_of_what_it_never_ran_is_not_believed(
    fleet: Fleet,
) -> None:
    fleet.step(4)
    chat = {"replica": "chat-g1-1", "service": "chat", "gpu_index": 0}
    nightly = {"replica": "nightly", "gpu_index": 0}
    fleet.lie(1, failures=[{**chat, "detail": "no"}] * 3)
    assert fleet.failures("service/chat") == []
    fleet.lie(2, failures=[{**nightly, "detail": "no"}] * 3)
    assert not fleet.events("task/nightly")
    # How long a launch took is known to those who judge the service, and to policies: the device is ready when it is
    # read a step later, and the agent sees that in the step after.
    assert launch_s(fleet) == 2.0 * STEP_S
    assert launch_s_by_type(fleet) == {"T4": 2.0 * STEP_S}
    fleet.lie(3, launches=[{**chat, "seconds": 500.0}] * 9)
    assert launch_s(fleet) == 2.0 * STEP_S


def launch_s_by_type(fleet: Fleet) -> dict[str, float]:
    """What policies are told."""
    return fleet.api.on_connection(load_launch_s)


def launch_s(fleet: Fleet) -> float:
    """What the judgement of `chat` reckons with."""
    now = fleet.api.clock.now()
    load_cases = PostgresForecasts(fleet.api.engine).load_cases
    (case,) = fleet.api.on_engine(lambda _: load_cases(now, 1))
    return float(case.load.launch_s)
