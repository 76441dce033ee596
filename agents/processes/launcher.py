"""How whatever a template describes is run: as processes of this machine, or by another launcher of the same form.

launcher.start(Prepared, record)            -> Running; `record` is called before anything of it may run
await launcher.adopt(record, log)           -> Running of an earlier agent, or None when it is gone
await launcher.end_left_over(mark, Ending)  what is left of one that has ended; whether nothing is
await launcher.end_unrecorded(...)          what an agent left that died while it started something
"""

import logging
import shutil
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

from agents.base.device import LaunchFailed
from agents.processes.launch import Prepared
from agents.processes.process import (
    HOST,
    Ending,
    TerminateOnGpu,
    WorkerProcess,
    end_left_over,
)
from agents.processes.procfs import marks
from agents.processes.records import Identity, Recorded

SaveRecord: TypeAlias = Callable[[Identity | None], None]
"""Makes the record durable; None: it is found by its mark alone."""

log = logging.getLogger(__name__)


class Running(Protocol):
    """All that runs of one replica or task."""

    @property
    def host(self) -> str:
        """Where its ports are, once it is placed."""
        ...

    @property
    def pid(self) -> int | None:
        """Its own process on this machine, which has started all others of it; None until it is placed."""
        ...

    @property
    def pending(self) -> str:
        """What keeps it from running, in words; empty: nothing that is known."""
        ...

    async def placed(self) -> None:
        """Return when it runs at a host."""
        ...

    @property
    def how(self) -> str:
        """How it has ended, in words; empty: it has not."""
        ...

    @property
    def exit_code(self) -> int | None:
        """Negative: the signal that ended it; None = it runs, or how it ended is not known."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether its own process has ended; others that this has started may be left."""
        ...

    async def wait(self) -> str:
        """Return when it has ended: how."""
        ...

    def members(self) -> tuple[int, ...]:
        """All its living processes on this machine."""
        ...

    async def end(self, ending: Ending) -> str:
        """End all of it: what is left, in words; empty: nothing. May be called again, also after a cancelled call."""
        ...

    def abandon(self) -> None:
        """Stop watching; it goes on."""
        ...


class Launcher(Protocol):
    """Starts replicas and tasks, and finds those that an earlier agent has started."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Why it can start nothing now."""
        ...

    async def open(self) -> None:
        """To be called before everything else."""
        ...

    async def close(self) -> None:
        """What runs goes on."""
        ...

    @property
    def listens_on(self) -> str:
        """The address that servers are to listen on."""
        ...

    def start(self, prepared: Prepared, record: SaveRecord) -> Running:
        """Start what is prepared. Raises LaunchFailed, or what `record` raises; then nothing runs."""
        ...

    async def adopt(self, record: Recorded, log: Path) -> Running | None:
        """What was recorded, if it still runs."""
        ...

    async def end_left_over(self, mark: str, ending: Ending) -> bool:
        """End what is left of one that has ended by itself; whether nothing is left."""
        ...

    async def end_unrecorded(
        self, mark: str, known: Collection[str], terminate: TerminateOnGpu
    ) -> None:
        """End what carries this directory's mark and is not known: its agent died while it was being started, or its
        record was damaged."""
        ...


class ProcessLauncher:
    """Processes of this machine."""

    listens_on, problems = HOST, ()

    async def open(self) -> None:
        """Nothing else is asked."""

    async def close(self) -> None:
        """Nothing else is asked."""

    def start(self, prepared: Prepared, record: SaveRecord) -> Running:
        # By the PATH that it will have, which is not the agent's own.
        program, path = (
            prepared.spawn.command[0],
            prepared.spawn.environment.get("PATH"),
        )
        if shutil.which(program, path=path) is None:
            raise LaunchFailed(
                f"template {prepared.template.name} runs {program}, which is not on this node"
            )
        return WorkerProcess.start(prepared.spawn, record)

    async def adopt(self, record: Recorded, log: Path) -> Running | None:  # noqa: ARG002  it writes by itself
        # Another launcher's has none.
        if record.identity is None:
            return None
        return WorkerProcess.adopt(record.identity, record.mark)

    async def end_left_over(self, mark: str, ending: Ending) -> bool:
        return await end_left_over(mark, ending)

    async def end_unrecorded(
        self, mark: str, known: Collection[str], terminate: TerminateOnGpu
    ) -> None:
        for each in sorted(marks(f"{mark}.") - set(known)):
            # Processes of another agent on this machine have another mark.
            log.warning("processes without a record are ended, by their mark %s", each)
            ending = Ending(grace_s=0.0, terminate=partial(terminate, -1))
            await end_left_over(each, ending)


PROCESSES = ProcessLauncher()
