"""A control plane on paper, for tests of the agent's loop."""

from agents.base.clock import Clock
from agents.base.device import Device
from agents.base.protocol import LeaseTerms, NodeCommand, Observation, SyncReply
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.sync.ledger import Ledger
from agents.sync.transport import DirectTransport, TransportError


class PaperControlPlane:
    """Keeps every observation once, acknowledges what it keeps, and hands its newest command out."""

    def __init__(self, clock: Clock, command: NodeCommand | None = None) -> None:
        self.clock = clock
        self.command = command
        self.error: TransportError | None = None
        """Raised instead of an answer."""
        self.is_durable = True
        self.forced: list[NodeCommand] = []
        """Commands that are sent next, whatever the agent has in force."""
        self.lease: LeaseTerms | None = None
        self.ready_elsewhere: tuple[str, ...] = ()
        self.received: list[Observation] = []
        self.waits_s: list[float] = []

    async def answer(self, observation: Observation, wait_s: float) -> SyncReply:
        self.waits_s.append(wait_s)
        if self.error is not None:
            raise self.error
        self.received.append(observation)
        command = self.command
        if self.forced:
            command = self.forced.pop(0)
        elif command is not None and command.generation <= observation.generation:
            command = None
        return SyncReply(
            boot=observation.boot,
            acknowledged=observation.sequence if self.is_durable else 0,
            server_time_s=self.clock.now_s(),
            command=command,
            lease=self.lease,
            ready_elsewhere=self.ready_elsewhere,
        )


def an_agent(
    device: Device,
    plane: PaperControlPlane,
    clock: Clock,
    *,
    ledger: Ledger | None = None,
    boot: str = "boot-1",
) -> NodeAgent:
    return NodeAgent(
        AgentSettings(node="n1", boot=boot),
        device,
        transport=DirectTransport(plane.answer),
        clock=clock,
        ledger=ledger or Ledger(None),
    )
