"""How far tasks have come on this node: one that has to be started again goes on from there, not from its command."""

from dataclasses import dataclass, field, replace

import msgspec

from agents.actions import Action, StartTask
from agents.protocol import NodeCommand, TaskReading


@dataclass(slots=True)
class Progress:
    """Iterations of the commanded tasks as they were last read."""

    _done: dict[str, float] = field(default_factory=dict)

    def note(self, readings: tuple[TaskReading, ...], command: NodeCommand | None) -> None:
        """Keep what was read now, and what was read before of tasks that are still commanded."""
        wanted = {task.name for gpu in (command.gpus if command else ()) for task in gpu.tasks}
        known = self._done | {each.name: each.done_iterations for each in readings}
        self._done = {name: done for name, done in known.items() if name in wanted}

    def resumed(self, action: Action) -> Action:
        """The action; the start of a task from where it was, if that is farther than commanded."""
        if not isinstance(action, StartTask):
            return action
        done = max(action.task.done_iterations, self._done.get(action.task.name, 0.0))
        return replace(action, task=msgspec.structs.replace(action.task, done_iterations=done))
