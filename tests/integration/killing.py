"""Killing a node's agent at moments that a seed chose, and what must be so after each death and each restart.

    killing = Killing(node=node, plane=plane, draw=Random(7))
    await killing.once()        # a start, a moment, SIGKILL; what was wrong is added to killing.violations
    await killing.end()         # a last start to which the same applies, and which comes to rest

After a death every knob that is not as the driver has it by default stands in the journal. After a restart every
worker that lives has a record, of which there is one for each replica: none is orphaned, none doubled.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from signal import SIGKILL

from agents.gpu.knobs.journal import KnobJournal
from agents.processes.procfs import members
from bench.campaign.deployment.node_files import NodeFiles
from tests.agents.factories import a_replica
from tests.integration.test_gpu_agent import (
    ControlPlane,
    Machine,
    a_command,
    locked_mhz,
)
from tests.waiting import PATIENCE_S
from tests.waiting import eventually as until

DEFAULT_LIMIT_MW = 700_000
EARLY = 0.4
"""Part of the kills that come while the agent starts, looks at what is there, or has its first command."""
EARLY_S, LATE_S = 1.2, 1.5
"""The latest moment: of an early kill after the process's start, of another one after the agent's newest command."""


@dataclass(slots=True, kw_only=True)
class Killing:
    """One node whose agent is killed again and again."""

    node: Machine
    plane: ControlPlane
    draw: Random
    kills: int = 0
    early: int = 0
    """Kills before the agent had said a word."""
    patience_s: float = PATIENCE_S
    violations: list[str] = field(default_factory=list)

    async def once(self) -> None:
        """One life of an agent that wants another replica than the one before."""
        is_early, before = self.draw.random() < EARLY, self.plane.boot
        if is_early:
            self._command()
        await asyncio.to_thread(self.node.start)
        if is_early:
            await asyncio.sleep(
                self.draw.uniform(0.0, EARLY_S)
            )  # the moment that the seed chose
        else:
            await self._came_back(before)
            self._command()
            await asyncio.sleep(self.draw.uniform(0.0, LATE_S))  # as above
        await asyncio.to_thread(self.node.end, SIGKILL)
        self.kills, self.early = (
            self.kills + 1,
            self.early + (self.plane.boot == before),
        )
        self.look_at_knobs()

    async def end(self) -> None:
        """The last agent comes to rest with the newest command's replica alone; then it is killed as well."""
        before = self.plane.boot
        await asyncio.to_thread(self.node.start)
        await self._came_back(before)
        await until(
            lambda: self.plane.has_applied(self.kills, before),
            f"generation {self.kills} is not applied",
        )
        if (there := [each.id for each in self.plane.told[-1].replicas]) != [
            f"r{self.kills}"
        ]:
            self._note(f"at the end there is {there}")
        await self._wait(
            lambda: self.node.workers() == 1,
            lambda: f"{self.node.workers()} workers live at the end",
        )
        await asyncio.to_thread(self.node.end, SIGKILL)
        self.look_at_knobs()

    def _command(self) -> None:
        generation = self.kills + 1
        share = self.draw.choice((20.0, 40.0, 60.0))
        clock_mhz = self.draw.choice((900.0, 1200.0))
        self.plane.command = a_command(
            generation,
            a_replica(f"r{generation}", sm_percent=share),
            clock_mhz=clock_mhz,
        )

    async def _came_back(self, before: str) -> None:
        del self.plane.told[:-1]  # a thousand lives say a lot
        await until(lambda: self.plane.boot != before, "the agent never spoke")
        there = [each.id for each in self.plane.told[-1].replicas]
        if len(set(there)) < len(there):
            self._note(f"doubled in what the agent tells: {there}")
        await self.look_at_workers()

    async def look_at_workers(self) -> None:
        """Every worker that lives is known to its node; to be asked while an agent lives."""
        # A child whose agent died before its record was complete leaves by itself, so it may need a moment.
        await self._wait(
            lambda: not self._strays(),
            lambda: f"without a record live {self._strays()}",
        )

    def _strays(self) -> list[str]:
        """Workers that live and of which no record tells; with one for each replica, a doubled one is among them."""
        files = NodeFiles(directory=self.node.directory)
        return [each for each in files.strays() if members(each)]

    def look_at_knobs(self) -> None:
        """While no agent lives: what is turned stands in the journal."""
        clock_mhz, limit_mw = (
            locked_mhz(self.node.gpus),
            self.node.gpus.gpu(0).power_limit,
        )
        journal = KnobJournal(self.node.state)
        try:
            held = {each.last.knob: each.settings for each in journal.held()}
        finally:
            journal.close()
        if clock_mhz and (clock_mhz, clock_mhz) not in held.get("clock_mhz", ()):
            self._note(
                f"the clock is locked at {clock_mhz} MHz and the journal does not say so"
            )
        if limit_mw != DEFAULT_LIMIT_MW and (limit_mw / 1000.0,) not in held.get(
            "power_limit_w", ()
        ):
            self._note(
                f"the power limit is {limit_mw} mW and the journal does not say so"
            )

    async def _wait(self, holds: Callable[[], bool], wrong: Callable[[], str]) -> None:
        end_s = time.monotonic() + self.patience_s
        while not holds():
            if time.monotonic() > end_s:
                self._note(wrong())
                return
            await asyncio.sleep(0.05)

    def _note(self, words: str) -> None:
        self.violations.append(f"after kill {self.kills}: {words}")
