"""What may be killed, how, and when it counts as back.

    postgresql, api     every node has the answer to an observation that it sent after the kill: that it is durable;
                        nodes whose agent was dead, too, are not waited for
    controller          a new process has decided something
    solver              the controller has decided something with a new one; the first tick after the kill does not
                        count, since it may be the one that lost it. Where the controller was killed, too, that kill's
                        recovery counts, and this one ends
    agent               the node has the answer to an observation that it sent after the kill
    router              HAProxy has answered a request to one of the node's services, whose replica answered it
    worker              the replica has a new process that answers as ready, or the node is told to run it no more

Times are counted from the kill, also where another process died in between; a recovery is undisturbed where nothing
that it needs was dead meanwhile. A replica that fails again within minutes waits for ten seconds and more on purpose
(docs/runtimes.md), so none is killed twice in ten minutes.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeAlias, get_args

import aiohttp

from agents.base.protocol import ReplicaCommand
from agents.processes.launch import Crashes
from agents.processes.process import HOST
from agents.processes.records import Identity
from bench.campaign.deployment.node_files import kill
from bench.campaign.deployment.plane import RunningPlane

OfPlane: TypeAlias = Literal["postgresql", "api", "controller", "solver"]
OfNode: TypeAlias = Literal["agent", "router", "worker"]
Victim: TypeAlias = OfPlane | OfNode
OF_PLANE: tuple[OfPlane, ...] = get_args(OfPlane)
OF_NODE: tuple[OfNode, ...] = get_args(OfNode)

NEEDS: Mapping[Victim, frozenset[Victim]] = {
    "postgresql": frozenset({"api"}),
    "api": frozenset({"postgresql"}),
    "controller": frozenset({"postgresql"}),
    "solver": frozenset({"postgresql", "controller"}),
    "agent": frozenset({"postgresql", "api"}),
    "router": frozenset({"agent"}),
    "worker": frozenset({"agent"}),
}
"""What must be alive for it to count as back; of a node that node's own."""

_ASK = aiohttp.ClientTimeout(total=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """One process that was killed."""

    victim: Victim
    at_s: float
    node: str = ""
    replica: str = ""
    identity: Identity | None = None
    """The replica's process."""
    ticks_before: int = 0
    """Of the controller that was killed or has lost its solver."""
    controller_pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One process that was killed and came back."""

    victim: Victim
    node: str = ""
    at_s: float
    back_s: float
    """From the kill on."""

    def disturbs(self, other: "Recovery") -> bool:
        """Whether this one was dead at some moment of the other's recovery, which needs it."""
        return (
            self.victim in NEEDS[other.victim]
            and self.node in ("", other.node)
            and self.at_s < other.at_s + other.back_s
            and other.at_s < self.at_s + self.back_s
        )


def undisturbed(all_of_them: Sequence[Recovery]) -> list[Recovery]:
    """Those of which nothing else that was killed can be the reason."""
    return [
        each
        for each in all_of_them
        if not any(other.disturbs(each) for other in all_of_them)
    ]


@dataclass(slots=True, kw_only=True)
class Victims:
    """The processes of one deployment."""

    plane: RunningPlane
    session: aiohttp.ClientSession
    draw: Random
    _killed_s: dict[str, float] = field(default_factory=dict)
    """The last kill of each replica."""
    _agent_killed_s: dict[str, float] = field(default_factory=dict)
    """The last kill of each node's."""

    async def kill(self, victim: Victim, node: str = "") -> Killed | None:
        """kill -9; None: there is none to be killed now."""
        plane = self.plane
        if victim == "worker":
            return self._kill_worker(node)
        ticks, controller = 0, plane.controller.pid
        if victim == "solver":
            ticks = await plane.ticks(self.session)
            # Without a number from before, any later one would say that it is back.
            is_killed = ticks > 0 and plane.controller.kill_child()
        elif victim == "agent":
            is_killed = plane.agents[node].kill()
            self._agent_killed_s[node] = time.monotonic()
        elif victim == "router":
            is_killed = plane.files[node].kill_router()
        elif victim == "postgresql":
            is_killed = plane.database.kill()
        else:
            is_killed = (plane.api if victim == "api" else plane.controller).kill()
        at_s = time.monotonic()
        killed = Killed(
            victim=victim,
            at_s=at_s,
            node=node,
            ticks_before=ticks,
            controller_pid=controller,
        )
        return killed if is_killed else None

    def _kill_worker(self, node: str) -> Killed | None:
        """Any replica of the node which it is to run, and which was not killed already."""
        since_s = time.monotonic() - Crashes.WINDOW_S
        living = self.plane.files[node].replicas()
        found = [
            each
            for each in sorted(self._wanted(node).keys() & living.keys())
            if self._killed_s.get(each, since_s) <= since_s
        ]
        if not found:
            return None
        replica = self.draw.choice(found)
        identity = living[replica].identity
        if identity is None or not kill(identity):
            return None
        at_s = time.monotonic()
        self._killed_s[replica] = at_s
        return Killed(
            victim="worker",
            at_s=at_s,
            node=node,
            replica=replica,
            identity=living[replica].identity,
        )

    async def back_at_s(self, killed: Killed) -> float | None:
        """When it was back; None: it is not."""
        if killed.victim in ("postgresql", "api"):
            return self._all_answered_s(killed.at_s)
        if killed.victim == "agent":
            journal = self.plane.journals[killed.node]
            return journal.first_answer_s(asked_after_s=killed.at_s)
        if killed.victim == "router":
            is_back = await self._routes(killed.node)
        elif killed.victim == "worker":
            is_back = await self._is_ready(killed)
        else:
            ticks = await self.plane.ticks(self.session)
            # A controller that was killed counts again, and has a solver of its own.
            is_anew = self.plane.controller.pid != killed.controller_pid
            is_back = (
                is_anew or ticks >= killed.ticks_before + 2
                if killed.victim == "solver"
                else is_anew and ticks > 0
            )
        return time.monotonic() if is_back else None

    def _all_answered_s(self, since_s: float) -> float | None:
        """When the last node that was alive then had an answer; None: not yet."""
        journals = self.plane.journals
        # With every agent dead the first that is back must do.
        alive = [each for each in journals if self._was_alive(each, since_s)]
        found = [
            journals[each].first_answer_s(asked_after_s=since_s)
            for each in alive or journals
        ]
        answered = [each for each in found if each is not None]
        if not alive:
            return min(answered, default=None)
        return max(answered) if len(answered) == len(alive) else None

    def _was_alive(self, node: str, at_s: float) -> bool:
        """Whether its agent was back by then from its last kill; one that was killed since then was not."""
        killed_s = self._agent_killed_s.get(node)
        if killed_s is None:
            return True
        back_s = self.plane.journals[node].first_answer_s(asked_after_s=killed_s)
        return back_s is not None and back_s <= at_s

    async def _routes(self, node: str) -> bool:
        base = f"http://{HOST}:{self.plane.router_ports[node]}/v2"
        services = {each.service for each in self._wanted(node).values()}
        for service in sorted(services):
            if await self._is_good("POST", f"{base}/models/{service}/infer"):
                return True
        # A node that is to serve nothing has nothing to route.
        return not services and await self._is_good("GET", f"{base}/health/ready")

    async def _is_ready(self, killed: Killed) -> bool:
        if killed.replica not in self._wanted(killed.node):
            return True
        record = self.plane.files[killed.node].replicas().get(killed.replica)
        if record is None or record.identity == killed.identity:
            return False
        url = f"http://{HOST}:{record.ports[0]}/v2/health/ready"
        return await self._is_good("GET", url)

    async def _is_good(self, method: str, url: str) -> bool:
        try:
            async with self.session.request(method, url, timeout=_ASK) as answer:
                return answer.ok
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    def _wanted(self, node: str) -> dict[str, ReplicaCommand]:
        """Replicas that the node was told to run, by id."""
        command = self.plane.files[node].wanted()
        gpus = command.gpus if command else ()
        return {replica.id: replica for gpu in gpus for replica in gpu.replicas}
