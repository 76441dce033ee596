"""What tasks are asked, moved, recorded and ended by, once the state directory of a node's tasks is open."""

import logging
from collections.abc import Mapping
from functools import partial

from agents.base.device import DeviceError
from agents.processes.care import end_for_good
from agents.processes.process import Ending
from agents.processes.records import Records
from agents.processes.templates import tool_environment
from agents.tasks.hook import HookClient
from agents.tasks.swap import CudaCheckpoint, Mover
from agents.tasks.task import (
    Phase,
    TaskHooks,
    TaskProcess,
    TaskProcessRecord,
    with_phase,
)
from agents.tasks.watch import TaskWatch

log = logging.getLogger(__name__)


class TaskTools:
    """What works on single tasks of a node."""

    def __init__(
        self,
        records: Records[TaskProcessRecord],
        hooks: TaskHooks,
        *,
        environment: Mapping[str, str],
        ask_s: float,
    ) -> None:
        self.records = records
        self.hook = HookClient()
        self.watch = TaskWatch(hook=self.hook, prove=hooks.sharing.prove, ask_s=ask_s)
        self.mover = Mover(
            self.hook,
            CudaCheckpoint(tool_environment(environment)),
            why_no_checkpoint=hooks.why_no_checkpoint,
        )
        self._hooks = hooks

    async def end(self, each: TaskProcess) -> None:
        """Return when all its processes are gone, and not before: until then they hold memory of the GPU."""
        assert each.process is not None
        await end_for_good(
            each.process,
            self.ending(each),
            partial(log.error, "task %s: %s", each.record.id),
        )

    def ending(self, each: TaskProcess) -> Ending:
        """How its processes are ended."""
        terminate = partial(self._hooks.sharing.terminate, each.record.gpu_index)
        return Ending(grace_s=each.record.template.drain_limit_s, terminate=terminate)

    def keep(self, each: TaskProcess, phase: Phase) -> None:
        """Write down where it is. Raises DeviceError where it cannot be written; nothing has changed then."""
        # A write is synced, which takes milliseconds.
        if each.record.phase != phase:
            record = with_phase(each.record, phase)
            self.records.save(record)
            each.record = record

    def note(self, each: TaskProcess, phase: Phase) -> None:
        """Keep what has happened already. Where that cannot be written a later agent finds it out once more."""
        try:
            self.keep(each, phase)
        except DeviceError as error:
            log.error("task %s is %s, and %s", each.record.id, phase, error)
