"""What becomes of one replica's process: it comes up, is watched, loads again, sleeps, wakes, fails, or is stopped.

Each function is a task of its replica, begun by `agents.replicas.replicas.Workers`; the next one ends the one before.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from agents.base.device import ASLEEP_SHARE, DeviceError
from agents.base.waits import cancel, first
from agents.processes.care import end_for_good
from agents.processes.launch import Crashes
from agents.processes.process import Ending
from agents.processes.records import Record, Records
from agents.replicas.adapters import BatchOutcome
from agents.replicas.readiness import ReplicaWatch
from agents.replicas.replica import Hooks, ReplicaProcess, with_log

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLives:
    """The lives of a node's replicas."""

    replicas: dict[str, ReplicaProcess]
    """By id; what has ended for good is taken out."""
    records: Records[Record]
    watch: ReplicaWatch
    hooks: Hooks
    crashes: Crashes
    notify: Callable[[], None]
    """Called whenever a replica has become ready, failed or gone."""
    sleep_limit_s: float
    """One that is not woken for so long is ended."""
    free_host_mib: Callable[[], float]
    falling_asleep: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def live(self, each: ReplicaProcess) -> None:
        """From the start of its process, or its adoption, to its end."""
        reason = await self.watch.come_up(each)
        if not reason and each.is_adopted:
            # An earlier agent may have put it to sleep, or begun to.
            try:
                if await self.watch.is_asleep(each):
                    await self._rest(each)
                    return
            except DeviceError as error:
                reason = str(error)
        if not reason:
            each.state, each.message = "ready", ""
            self.notify()
            reason = await self.watch.watch(each)
        await self.fail(each, reason)

    async def reload(
        self, each: ReplicaProcess, batch: int, before: "asyncio.Task[None] | None"
    ) -> None:
        """Another batch by loading again; a server that fails at that is as good as dead."""
        await cancel(before)
        try:
            await self.apply_batch(each, batch)
        except DeviceError as error:
            await self.fail(each, f"batch {batch} could not be loaded: {error}")
        else:
            await self.live(each)

    async def fail(self, each: ReplicaProcess, reason: str) -> None:
        """End what is left, then say why it failed."""
        self.leave(each)
        # It may take long to end, and is to get no request meanwhile.
        self.notify()
        await self._end(each)
        each.message = with_log(reason, self.records.log(each.record.id))
        if loop := self.crashes.note(each.record.id):
            each.message = f"{loop}; {each.message}"
        log.error("replica %s failed: %s", each.record.id, each.message)
        each.state = "failed"
        self.notify()

    async def fail_after(
        self, each: ReplicaProcess, reason: str, before: "asyncio.Task[None] | None"
    ) -> None:
        """The same in place of what it was at."""
        await cancel(before)
        await self.fail(each, reason)

    async def stop(
        self,
        each: ReplicaProcess,
        before: "asyncio.Task[None] | None",
        *,
        has_drained: bool,
    ) -> None:
        """End it for good, in place of what it was at; one that has drained is told before, if its template says so."""
        await cancel(before)
        if has_drained and each.record.template.drain == "server":
            await self._refuse_more(each)
        await self._end(each)
        self.forget(each)

    async def sleep(
        self, each: ReplicaProcess, before: "asyncio.Task[None] | None"
    ) -> None:
        """Put it to sleep, in place of what it was at; where that fails it is ended."""
        await cancel(before)
        try:
            # One after the other: what several may take of the host's memory, only one would find free.
            async with self.falling_asleep:
                self._require_host_memory(each.record)
                await self.watch.adapter(each).sleep(each.endpoint(self.records))
        except DeviceError as error:
            log.warning("replica %s ends and does not sleep: %s", each.record.id, error)
            self.leave(each)
            await self._end(each)
            self.forget(each)
        else:
            await self._rest(each)

    async def wake(
        self, each: ReplicaProcess, before: "asyncio.Task[None] | None"
    ) -> None:
        """From its sleep on as from a start."""
        await cancel(before)
        try:
            await self.watch.adapter(each).wake(each.endpoint(self.records))
        except DeviceError as error:
            await self.fail(each, f"it did not wake: {error}")
        else:
            await self.live(each)

    def leave(self, each: ReplicaProcess) -> None:
        """It takes nothing more, and does not come back."""
        each.is_stopping = True
        if each.state != "draining":
            each.state, each.draining_since_s = "draining", self.watch.now_s()

    def ending(self, each: ReplicaProcess) -> Ending:
        """How it is ended, and what is left of it."""
        record = each.record
        return Ending(
            grace_s=record.template.drain_limit_s,
            terminate=partial(self.hooks.terminate, record.gpu_index),
        )

    def forget(self, each: ReplicaProcess) -> None:
        """It is gone for good."""
        self.records.remove(each.record.id)
        del self.replicas[each.record.id]
        self.notify()

    async def apply_batch(self, each: ReplicaProcess, batch: int) -> BatchOutcome:
        """Another largest batch. Raises DeviceError."""
        adapter, endpoint = self.watch.adapter(each), each.endpoint(self.records)
        outcome = await adapter.apply_batch(endpoint, batch)
        # Else it was stopped meanwhile, and has no record any more.
        if self.replicas.get(each.record.id) is each:
            each.record = replace(each.record, batch=batch)
            self.records.save(each.record)
        return outcome

    async def _refuse_more(self, each: ReplicaProcess) -> None:
        """Have the server refuse requests that come by another way than the router, which sends it nothing any more."""
        # Told when the drain began, it would refuse what the router had sent and what had not reached it yet.
        try:
            await self.watch.adapter(each).drain(each.endpoint(self.records))
        except DeviceError as error:
            log.warning(
                "replica %s could not be told to drain: %s", each.record.id, error
            )

    async def _rest(self, each: ReplicaProcess) -> None:
        """Sleep until it is woken or stopped, which cancels this; one that is not woken for long, or dies, is ended."""
        assert each.process is not None
        each.state, each.message, each.is_falling_asleep = "asleep", "", False
        each.held_share = ASLEEP_SHARE
        self.notify()
        reason = await first(each.process.wait(), limit_s=self.sleep_limit_s)
        if reason is not None:
            detail = with_log(reason, self.records.log(each.record.id))
            log.warning("replica %s ended in its sleep: %s", each.record.id, detail)
        self.leave(each)
        await self._end(each)
        self.forget(each)

    def _require_host_memory(self, record: Record) -> None:
        """Raises DeviceError where the host has less than its GPUs gave it, of which the weights are a part."""
        needed_mib = record.memory_mib * max(1, len(record.gpus))
        free_mib = self.free_host_mib()
        if needed_mib > free_mib:
            raise DeviceError(
                f"it may take {needed_mib:.0f} MiB of the host's memory, which has {free_mib:.0f} free"
            )

    async def _end(self, each: ReplicaProcess) -> None:
        """Return when all its processes are gone, and not before: until then they hold memory of the GPU."""
        assert each.process is not None

        def report(problem: str) -> None:
            each.message = problem
            log.error("replica %s: %s", each.record.id, problem)

        await end_for_good(each.process, self.ending(each), report)


def given_up(each: ReplicaProcess) -> "asyncio.Task[None] | None":
    """Its task, cancelled at once: what takes its place may be cancelled before it has begun."""
    if each.task is not None:
        each.task.cancel()
    return each.task
