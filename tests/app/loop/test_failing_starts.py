"""Scale to zero where starts fail: a node's agent tries again while anybody asks, and for the downscale delay then."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from agents.base.backoff import Restarts
from agents.base.clock import ManualClock
from agents.base.device import DeviceReadings, GpuState, NodeState
from agents.base.protocol import (
    GpuReading,
    Observation,
    ReplicaCommand,
    ReplicaReading,
    ReplicaState,
    ServiceReading,
    SyncReply,
)
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.sync.ledger import Ledger
from agents.sync.transport import DirectTransport
from app.loop.tick import tick
from app.store.launch_book import FAILURES
from solvers.types.plan import Plan, Unserved
from solvers.types.problem import Problem
from tests.agents.paper_device import PaperDevice
from tests.app.fleets import Answering, a_fleet, a_service
from tests.app.loop.test_scale_to_zero import without_quiet
from tests.waiting import in_loop

STEP_S = 10.0
MEMORY_MIB = 16_000.0
GPU = GpuReading(
    index=0,
    gpu_type="fast",
    memory_mib=MEMORY_MIB,
    memory_used_mib=0.0,
    power_w=50.0,
    energy_j=100.0,
    clock_mhz=1000.0,
    busy_percent=0.0,
)
FAILS: dict[float, ReplicaState] = {20.0: "failed"}
"""What becomes of a replica, by seconds after its start."""
CRASHES: dict[float, ReplicaState] = {20.0: "ready", 50.0: "failed"}
COMES_UP: dict[float, ReplicaState] = {75.0: "ready"}


def on_what_is_there(problem: Problem) -> Plan:
    """Half a GPU for the service where it has demand; where it avoids the only GPU, it says that it needs it."""
    plan = without_quiet(problem)
    if not plan.gpus or problem.gpu_types[0].count:
        return plan
    wanted = (Unserved(service="chat", rate_rps=0.1, reason="stock"),)
    return replace(plan, gpus=(), unserved=wanted)


class MortalDevice(PaperDevice):
    """Replicas become by themselves what `life` says."""

    def __init__(self, life: Mapping[float, ReplicaState], clock: ManualClock) -> None:
        gpu = GpuState(index=0, gpu_type="fast", memory_mib=MEMORY_MIB)
        super().__init__(NodeState(gpus=(gpu,)))
        self.life = life
        self._clock = clock
        self._started_s: dict[str, float] = {}

    async def start_replica(self, gpu_index: int, replica: ReplicaCommand) -> None:
        await super().start_replica(gpu_index, replica)
        self._started_s[replica.id] = self._clock.now_s()

    def age(self, *, arrivals: int, waiting: int) -> None:
        """Time has passed, in which requests came and at whose end some wait."""
        for each in self.replicas():
            age_s = self._clock.now_s() - self._started_s[each.id]
            reached = [
                state for since_s, state in self.life.items() if age_s >= since_s
            ]
            if reached and each.state != "draining":
                self.put(each.id, state=reached[-1])
        asked = ServiceReading(
            service="chat", arrivals=arrivals, served=0, in_slo=0, queued=waiting
        )
        replicas = tuple(
            ReplicaReading(
                id=each.id,
                service=each.service,
                gpu_index=0,
                state=each.state,
                sm_percent=each.sm_percent,
                batch=each.batch,
                memory_mib=each.memory_mib,
            )
            for each in self.replicas()
        )
        self.readings = DeviceReadings(
            gpus=(GPU,), services=(asked,), replicas=replicas
        )

    def starts(self) -> int:
        return sum(line.startswith("start ") for line in self.log)


class Node:
    """A fleet of one node, whose agent reports to the loop's own store."""

    def __init__(self, life: Mapping[float, ReplicaState], *, delay_s: float) -> None:
        service = a_service(downscale_delay_s=delay_s)
        self._fleet = a_fleet(
            service,
            solver=Answering(plan=on_what_is_there),
            nodes=("n1",),
            period_s=STEP_S,
            window_s=STEP_S,
        )
        self._clock = ManualClock(self._fleet.clock.now().timestamp())
        self.device = MortalDevice(life, self._clock)
        self._agent = NodeAgent(
            AgentSettings(node="n1", boot="b", period_s=STEP_S),
            self.device,
            transport=DirectTransport(self._exchange),
            clock=self._clock,
            ledger=Ledger(None),
        )

    async def pass_time(
        self, seconds: float, *, arrivals: int = 0, waiting: int = 0
    ) -> None:
        """`arrivals`: in the first period; `waiting`: at the end of each."""
        for number in range(round(seconds / STEP_S)):
            self._fleet.clock.advance(STEP_S)
            self._clock.advance(STEP_S)
            self.device.age(arrivals=0 if number else arrivals, waiting=waiting)
            await self._agent.step()
            await tick(self._fleet.loop)

    @property
    def is_planned(self) -> bool:
        return bool(self._fleet.replicas())

    async def _exchange(self, observation: Observation, wait_s: float) -> SyncReply:
        now = self._fleet.clock.now()
        await self._fleet.store.ingest((observation,), now)
        command = await self._fleet.store.command_for("n1", observation.generation)
        return SyncReply(
            boot=observation.boot,
            acknowledged=observation.sequence,
            server_time_s=now.timestamp(),
            command=command,
        )


@pytest.mark.parametrize("life", [FAILS, CRASHES], ids=["fails", "crashes"])
@in_loop
async def test_what_fails_again_and_again_is_given_up_when_none_waits(
    life: Mapping[float, ReplicaState],
) -> None:
    # As long as agents wait at most before they start again what fails.
    node = Node(life, delay_s=Restarts.MAX_S)
    await node.pass_time(60.0)
    # As long as a request waits, it is tried again, however often it has failed.
    await node.pass_time(600.0, arrivals=1, waiting=1)
    assert node.is_planned and node.device.starts() >= 4
    await node.pass_time(Restarts.MAX_S + 60.0)
    assert not node.is_planned
    before = node.device.starts()
    await node.pass_time(900.0)
    assert node.device.starts() == before
    # Who asks again has it tried again.
    await node.pass_time(60.0, arrivals=1)
    assert node.device.starts() > before


@in_loop
async def test_a_start_that_fails_once_or_twice_is_still_for_who_asked() -> None:
    node = Node(FAILS, delay_s=30.0)
    # The client leaves at once, the first two launches fail, and the third takes longer than the delay.
    await node.pass_time(10.0, arrivals=1)
    for _ in range(20):
        if node.device.starts() == FAILURES:
            break
        await node.pass_time(STEP_S)
    node.device.life = COMES_UP
    await node.pass_time(80.0)
    assert node.is_planned
    assert [each.state for each in node.device.replicas()] == ["ready"]
    await node.pass_time(600.0)
    assert not node.is_planned
