"""Faults of MPS: one client's fatal fault has killed all clients of its GPU; what is left of them is ended.

A look starts programs and takes tenths of a second, so it runs alongside the readings, one at a time.
"""

import asyncio
import logging
import math
from collections.abc import Mapping

from agents.base.clock import Clock
from agents.base.device import DeviceError
from agents.gpu.mps.gpu_sharing import Sharing
from agents.gpu.node.foreign_memory import Holder
from agents.replicas.replicas import Workers
from agents.tasks.tasks import Tasks

log = logging.getLogger(__name__)


class FaultWatch:
    """Looks at the sharing of every GPU that carries something."""

    def __init__(
        self,
        sharings: Mapping[int, Sharing],
        workers: Workers,
        tasks: Tasks,
        clock: Clock,
        *,
        period_s: float,
    ) -> None:
        """`sharings` by GPU index; `period_s` from one look to the next."""
        self._sharings, self._workers, self._tasks = sharings, workers, tasks
        self._clock, self._period_s = clock, period_s
        self._looked_s = -math.inf
        self._looking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin a look where one is due; returns at once."""
        is_busy = self._looking is not None and not self._looking.done()
        if not is_busy and self._clock.now_s() >= self._looked_s + self._period_s:
            # Noted at the start: the period runs from one start to the next, however long a look takes.
            self._looked_s = self._clock.now_s()
            self._looking = asyncio.create_task(
                self._look(), name="plimsoll-mps-faults"
            )

    async def close(self) -> None:
        """Look no more; a look that has begun is finished, for it may be ending replicas."""
        if self._looking is not None:
            await asyncio.wait({self._looking})

    async def _look(self) -> None:
        """A device's fault must not end the agent: the next look may find it well."""
        holders: tuple[Holder, ...] = (
            *self._workers.replicas(),
            *self._tasks.holders(),
        )
        # A GPU without clients has no fault, and each question starts a process.
        busy = {each.gpu_index for each in holders}
        for index in sorted(busy & self._sharings.keys()):
            try:
                if await self._sharings[index].watch():
                    await self._end_all(index)
            except (DeviceError, OSError) as error:
                log.error(
                    "GPU %d: MPS cannot be asked whether it is in a fault: %s",
                    index,
                    error,
                )

    async def _end_all(self, index: int) -> None:
        log.error(
            "MPS on GPU %d is in a fault: all its replicas and tasks are started again",
            index,
        )
        for view in self._workers.replicas():
            if view.gpu_index == index:
                await self._workers.stop(view.id)
        for task in self._tasks.running(index):
            if task.state != "finished":
                await self._tasks.stop(task.name)
