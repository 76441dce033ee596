"""What the files of a node with real processes tell from outside: its replicas, its HAProxy, what it was told to run.

Nothing is asked of the agent, which may be dead; it reads the same files when it starts.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agents.base.protocol import NodeCommand
from agents.processes.procfs import is_alive, marks, members
from agents.processes.records import Identity, Record
from agents.sync import ledger
from bench.campaign.deployment.device import STATE
from bench.campaign.deployment.node import LEDGER


class _RouterRecord(msgspec.Struct):
    """The part of `haproxy.json` that tells which process it is."""

    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFiles:
    """One node's, in the directory that its agent was started with."""

    directory: Path

    def replicas(self) -> dict[str, Record]:
        """By id, those that have a process, living or not."""
        return {each.id: each for each in self._records()}

    def wanted(self) -> NodeCommand | None:
        """The newest command that the agent has accepted."""
        for name in (ledger.CURRENT, ledger.PREVIOUS):
            # The agent renames these two while they are read.
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                content = (self.directory / LEDGER / name).read_bytes()
                return msgspec.json.decode(
                    content.partition(b"\n")[2], type=NodeCommand
                )
        return None

    def kill_router(self) -> bool:
        """kill -9 of HAProxy; False: there is none now."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            path = self.directory / STATE / "haproxy" / "haproxy.json"
            record = msgspec.json.decode(path.read_bytes(), type=_RouterRecord)
            return kill(record.identity)
        return False

    def strays(self) -> list[str]:
        """Marks of living replicas of which no record tells: each is orphaned or doubled."""
        recorded = {each.mark for each in self._records()}
        return sorted(self._marks() - recorded)

    def end_all(self) -> None:
        """kill -9 of every replica and of HAProxy, once no agent lives that would start them again."""
        self.kill_router()
        for mark in self._marks():
            for pid in members(mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _records(self) -> Iterator[Record]:
        for path in self._workers().glob("records/*.json"):
            # Gone meanwhile.
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                yield msgspec.json.decode(path.read_bytes(), type=Record)

    def _marks(self) -> frozenset[str]:
        with contextlib.suppress(FileNotFoundError):
            return marks((self._workers() / "mark").read_text(encoding="ascii"))
        return frozenset()

    def _workers(self) -> Path:
        return self.directory / STATE / "workers"


def kill(identity: Identity) -> bool:
    """kill -9 of that very process; False: it was dead already."""
    with contextlib.suppress(ProcessLookupError):
        if is_alive(identity):
            os.kill(identity.pid, signal.SIGKILL)
            return True
    return False
