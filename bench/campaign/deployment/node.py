"""One node's agent as a process to be killed: the real loop, ledger and transport, and a device as the row wants it.

    python -m bench.campaign.deployment.node DIRECTORY

The directory holds `node.json` (NodeSpec), the agent's ledger, its journal, which the oracle reads afterwards, and the
state of the device, which keeps books only or starts real replicas and HAProxy (`bench.campaign.deployment.device`).
"""

import asyncio
import hashlib
import logging
import sys
import time
import uuid
from pathlib import Path

import msgspec

from agents.base.clock import ScaledClock
from agents.base.device import Device, GpuState, NodeState
from agents.base.protocol import (
    NodeCommand,
    Observation,
    ReplicaCommand,
    ServiceReading,
    SyncReply,
)
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.sync.ledger import Ledger
from agents.sync.transport import HttpTransport
from bench.campaign.deployment.journal import Journal
from tests.agents.paper_device import BusyPaperDevice

SPEC, JOURNAL, LEDGER = "node.json", "journal", "ledger"
ARRIVALS = 3
"""Of each service in each observation, so that sums in the database tell how often each observation was counted."""
PERIOD_S = 0.25


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Who the agent is."""

    node: str
    url: str
    secret: str
    gpu_type: str
    memory_mib: float
    gpus: int
    services: tuple[str, ...]
    first_port: int = 0
    """The first port for replicas; 0: they are on paper."""
    router_port: int = 0
    """HAProxy's; 0: there is none."""


class JournalingTransport(HttpTransport):
    """HTTP to the control plane; every observation has the same load, and what was acknowledged is noted."""

    def __init__(self, spec: NodeSpec, journal: Journal) -> None:
        clock = ScaledClock(speed=1.0)
        super().__init__(spec.url, spec.secret, now_s=clock.now_s)
        self._journal = journal
        self._load = tuple(
            ServiceReading(
                service=service, arrivals=ARRIVALS, served=ARRIVALS, in_slo=ARRIVALS
            )
            for service in spec.services
        )

    async def exchange(self, observation: Observation, *, wait_s: float) -> SyncReply:
        # Whatever the device has counted: sums in the database must tell how often an observation was.
        observation = msgspec.structs.replace(observation, services=self._load)
        sent_s = time.monotonic()
        reply = await super().exchange(observation, wait_s=wait_s)
        self._journal.write(
            "acknowledged", boot=reply.boot, sequence=reply.acknowledged, sent_s=sent_s
        )
        return reply


class JournalingLedger(Ledger):
    """The ledger on disk; notes every command that is put in force."""

    def __init__(self, directory: Path, journal: Journal) -> None:
        super().__init__(directory)
        self._journal = journal

    def accept(self, command: NodeCommand) -> None:
        before = self.command
        super().accept(command)
        if command != before:
            sha256 = hashlib.sha256(msgspec.json.encode(command)).hexdigest()
            self._journal.write("obeyed", generation=command.generation, sha256=sha256)


class JournalingDevice(BusyPaperDevice):
    """Notes a start of what runs already."""

    def __init__(self, spec: NodeSpec, journal: Journal) -> None:
        gpus = tuple(
            GpuState(index=index, gpu_type=spec.gpu_type, memory_mib=spec.memory_mib)
            for index in range(spec.gpus)
        )
        super().__init__(NodeState(gpus=gpus), passed_s=PERIOD_S)
        self._journal = journal

    async def start_replica(self, gpu_index: int, replica: ReplicaCommand) -> None:
        if any(running.id == replica.id for running in self.replicas()):
            self._journal.write("doubled", detail=replica.id)
        await super().start_replica(gpu_index, replica)


async def _device(spec: NodeSpec, directory: Path, journal: Journal) -> Device:
    if not spec.first_port:
        return JournalingDevice(spec, journal)
    # Imported where it is needed: an agent on paper is back sooner without.
    from bench.campaign.deployment.device import PaperGpus, open_device

    return await open_device(
        directory,
        PaperGpus(spec.node, spec.gpu_type, spec.memory_mib, spec.gpus),
        ScaledClock(speed=1.0),
        ports=(spec.router_port, spec.first_port),
    )


async def run(directory: Path) -> None:
    """The agent, until it is killed."""
    spec = msgspec.json.decode((directory / SPEC).read_bytes(), type=NodeSpec)
    journal = Journal(directory / JOURNAL)
    ledger = JournalingLedger(directory / LEDGER, journal)
    boot = uuid.uuid4().hex
    journal.write("started", boot=boot, generation=ledger.generation)
    agent = NodeAgent(
        AgentSettings(
            node=spec.node, boot=boot, period_s=PERIOD_S, enforce_period_s=PERIOD_S
        ),
        await _device(spec, directory, journal),
        transport=JournalingTransport(spec, journal),
        clock=ScaledClock(speed=1.0),
        ledger=ledger,
    )
    await agent.run(asyncio.Event())


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    asyncio.run(run(Path(sys.argv[1])))
