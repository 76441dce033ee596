"""Moving a task's memory: by its program's own hook, or where it has none by `cuda-checkpoint`."""

import asyncio
import logging
from collections.abc import Callable
from typing import Literal

from agents.device import NotSupported
from agents.tasks.cuda_checkpoint import CudaCheckpoint
from agents.tasks.hook import HookClient
from agents.tasks.process import Task

log = logging.getLogger(__name__)


class Mover:
    """Moves the memory of tasks."""

    def __init__(
        self, hook: HookClient, checkpoint: CudaCheckpoint, *, why_no_checkpoint: Callable[[int], str]
    ) -> None:
        """`why_no_checkpoint`: by GPU; empty = it may be tried."""
        self._hook, self._checkpoint, self._why_no_checkpoint = hook, checkpoint, why_no_checkpoint

    async def move(self, each: Task, way: Literal["out", "in"]) -> None:
        """Return when it is there; may be called again for a task that is there, or on its way, already.

        Raises NotSupported where the task runs on untouched and there is no way, another DeviceError where it may be
        broken.
        """
        if each.url:
            while not await self._hook.move(each.url, "offloaded" if way == "out" else "running"):
                log.info("task %s comes to no boundary yet", each.record.id)
            return
        assert each.process is not None
        pids = await asyncio.to_thread(each.process.members)
        if way == "in":
            await self._checkpoint.resume(pids)
        elif not await self._checkpoint.is_away(pids):
            if why := self._why_no_checkpoint(each.record.gpu_index):
                raise NotSupported(why)
            await self._checkpoint.offload(pids)
