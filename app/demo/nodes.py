"""The demo's simulated nodes: real agents, which reach the control plane over HTTP like any other."""

import asyncio
from collections.abc import Callable
from importlib.metadata import version

from agents.base.protocol import Observation, SyncReply
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.sim.cluster import SimulatedCluster
from agents.sim.device import SimulatedDevice
from agents.sync.ledger import Ledger
from agents.sync.transport import HttpTransport
from app.base.clock import ControlClock
from app.simulate.run.closed_loop import ClusterPlan

Watch = Callable[[Observation], None]


class WatchedTransport(HttpTransport):
    """HTTP to the control plane; the demo's view sees each observation."""

    def __init__(self, url: str, token: str, *, speed: float, watch: Watch) -> None:
        super().__init__(url, token, speed=speed)
        self._watch = watch

    async def exchange(self, observation: Observation, *, wait_s: float) -> SyncReply:
        """Send one observation, and show it to the view."""
        # Before it is sent: the view stays alive where the control plane does not answer.
        self._watch(observation)
        return await super().exchange(observation, wait_s=wait_s)


class DemoNodes:
    """All agents of the demo, each a task of its own."""

    def __init__(
        self,
        plan: ClusterPlan,
        cluster: SimulatedCluster,
        clock: ControlClock,
        *,
        transport: Callable[[str], HttpTransport],
    ) -> None:
        self._stop = asyncio.Event()
        self._transports = [transport(node.name) for node in plan.nodes]
        self.agents = [
            NodeAgent(
                AgentSettings(
                    node=node.name,
                    boot=f"demo-{clock.now_s():.0f}",
                    version=version("plimsoll"),
                    period_s=plan.agent_period_s,
                    handover_s=plan.handover_s,
                ),
                SimulatedDevice(cluster, node.name),
                transport=reach,
                clock=clock,
                # Nothing to remember: simulated replicas end with this process.
                ledger=Ledger(None),
            )
            for node, reach in zip(plan.nodes, self._transports, strict=True)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def have_a_plan(self) -> bool:
        """Whether every node has a command in force."""
        return all(agent.command is not None for agent in self.agents)

    def start(self) -> None:
        """Run every agent."""
        self._tasks = [
            asyncio.create_task(agent.run(self._stop), name="plimsoll-agent")
            for agent in self.agents
        ]

    async def stop(self) -> None:
        """Let every agent send its last observation, then end it."""
        # All at once, then each is waited for: one by one a period each would pass.
        self._stop.set()
        await asyncio.gather(*self._tasks)
        for transport in self._transports:
            await transport.close()
