"""How far tasks have come on this node: one that has to be started again goes on from there, not from its command.

It is kept next to the command in the state directory (`progress.json`), so that a restarted agent knows it, too.
"""

import contextlib
import logging
from dataclasses import replace
from pathlib import Path

import msgspec

from agents.base.protocol import NodeCommand, TaskReading
from agents.enforce.actions import Action, StartTask

FILE = "progress.json"

log = logging.getLogger(__name__)


class Progress:
    """Iterations of the commanded tasks as they were last read."""

    def __init__(self, directory: Path | None = None) -> None:
        """Load what an earlier start left; `directory` None keeps it in memory only."""
        self._file = None if directory is None else directory / FILE
        self._done: dict[str, float] = {}
        if self._file is not None:
            # A file that is missing or damaged costs progress since the command, and nothing else.
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                self._done = msgspec.json.decode(
                    self._file.read_bytes(), type=dict[str, float]
                )

    def note(
        self, readings: tuple[TaskReading, ...], command: NodeCommand | None
    ) -> None:
        """Keep what was read now, and what was read before of tasks that are still commanded."""
        wanted = {
            task.name for gpu in (command.gpus if command else ()) for task in gpu.tasks
        }
        known = self._done | {each.name: each.done_iterations for each in readings}
        done = {name: done for name, done in known.items() if name in wanted}
        if done != self._done:
            self._done = done
            self._write()

    def resumed(self, action: Action) -> Action:
        """The action; the start of a task from where it was, if that is farther than commanded."""
        if not isinstance(action, StartTask):
            return action
        done = max(action.task.done_iterations, self._done.get(action.task.name, 0.0))
        return replace(
            action, task=msgspec.structs.replace(action.task, done_iterations=done)
        )

    def _write(self) -> None:
        """In one piece, but not synced: after a crash of the machine an older figure does, too."""
        if self._file is None:
            return
        fresh = self._file.with_name(f"{FILE}.new")
        try:
            fresh.write_bytes(msgspec.json.encode(self._done))
            fresh.replace(self._file)
        except OSError as error:
            log.warning("progress of tasks cannot be saved to disk: %s", error)
