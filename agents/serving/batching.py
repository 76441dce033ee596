"""Dynamic batching: requests wait in one bounded queue, a batch goes when it is full or its oldest request waited long.

    arrive ──▶ waiting ──▶ running ──▶ answered
                  ├─ its deadline passes, its client goes, the worker stops ──▶ dropped, never run

A batch holds requests of the same kinds of tensors, in order of arrival, with at most `batch` rows together; a request
with more rows than that (it came before the batch became smaller) runs alone. Limits are read when a batch is formed:
a change holds for every batch that begins after it. All of this runs on the event loop; only `engine.run` does not.
"""

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agents.serving.engines.engine import Engine, EngineCalls
from agents.serving.engines.errors import (
    DeadlinePassed,
    DropReason,
    EngineFailed,
    EngineLost,
    NotTaken,
    ServingError,
)
from agents.serving.engines.tensors import Tensors, join, split


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What an operator or governor may change while the worker runs."""

    batch: int
    """Most rows of a batch."""
    delay_ms: float = 0.0
    """Longest that a request waits for its batch to become full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferAnswer:
    """One request's outputs, and the batch in which it ran."""

    outputs: Tensors
    batch_rows: int
    batch_number: int
    """Batches are numbered from 1."""


@dataclass(slots=True, kw_only=True, eq=False)
class Waiting:
    """One request in the queue."""

    inputs: Tensors
    came_s: float
    deadline_s: float = math.inf
    """By the loop's clock: not run after that."""
    is_gone: Callable[[], bool] = lambda: False
    """Whether the client has disconnected."""
    answered: "asyncio.Future[InferAnswer]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def rows(self) -> int:
        return self.inputs[0].rows


class BatchCounter(Protocol):
    """Who counts; `metrics.WorkerMetrics`."""

    def batch_ended(self, *, rows: int, execution_s: float, is_ok: bool) -> None: ...

    def dropped(self, reason: DropReason) -> None: ...


class Batcher:
    """The queue and the loop that empties it."""

    def __init__(
        self,
        engine: Engine,
        thread: EngineCalls,
        *,
        limits: BatchLimits,
        queue_limit: int,
        watch: BatchCounter,
    ) -> None:
        """`queue_limit`: most requests that wait."""
        self.limits = limits
        self.begun = 0
        """Number of the newest batch."""
        self.running = 0
        """Requests in the batch that runs."""
        self._engine = engine
        self._thread = thread
        self._queue_limit = queue_limit
        self._watch = watch
        # Ordered by arrival, and a request in the middle leaves without a search.
        self._waiting: OrderedDict[Waiting, None] = OrderedDict()
        self._rows = 0
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_hurried = False

    @property
    def waiting(self) -> int:
        """Waiting requests."""
        return len(self._waiting)

    def check_room(self) -> None:
        """Raises NotTaken when the queue is full."""
        if len(self._waiting) >= self._queue_limit:
            self._watch.dropped("queue_full")
            raise NotTaken(
                f"{self._queue_limit} requests are already waiting", reason="queue_full"
            )

    async def answer(self, request: Waiting) -> InferAnswer:
        """Queue a request and wait for its answer. Raises NotTaken, DeadlinePassed, EngineFailed or EngineLost."""
        self.check_room()
        loop = asyncio.get_running_loop()
        if request.deadline_s <= loop.time():
            raise self._late()
        self._waiting[request] = None
        self._rows += request.rows
        self._idle.clear()
        self._changed.set()
        # One timer per request with a deadline, so that the queue need not be searched.
        expiry = (
            loop.call_at(request.deadline_s, self._expire, request)
            if request.deadline_s < math.inf
            else None
        )
        try:
            return await request.answered
        finally:
            if expiry is not None:
                expiry.cancel()
            self._remove(request)  # Still there only where the caller was cancelled.
            self._settle()

    def change(self, limits: BatchLimits) -> None:
        """Take other limits; they hold for every batch that begins from now on."""
        self.limits = limits
        self._changed.set()

    def hurry(self, *, is_hurried: bool) -> None:
        """Whether batches go without waiting to become full: no other will come."""
        self._is_hurried = is_hurried
        self._changed.set()

    async def idle(self) -> None:
        """Return when nothing waits or runs."""
        while self._waiting or self.running:
            await self._idle.wait()

    async def run(self) -> None:
        """Form and run batches until cancelled, or until the engine is lost: then EngineLost."""
        try:
            while True:
                await self._wait_until_due()
                if batch := self._take():
                    await self._run_batch(batch)
                self._settle()
        finally:
            self.turn_away("the worker has stopped")

    def turn_away(self, detail: str) -> None:
        """Drop all that wait."""
        while self._waiting:
            request = next(iter(self._waiting))
            self._remove(request)
            self._fail(request, NotTaken(detail, reason="stopped"))
        self._settle()

    async def _wait_until_due(self) -> None:
        """Return when the next batch shall go."""
        now_s = asyncio.get_running_loop().time
        while True:
            oldest = next(iter(self._waiting), None)
            wait_s = (
                None
                if oldest is None
                else oldest.came_s + self.limits.delay_ms / 1000.0 - now_s()
            )
            if wait_s is not None and (
                self._is_hurried or self._rows >= self.limits.batch or wait_s <= 0.0
            ):
                return
            # Cleared before the wait: a change from here on ends it.
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    def _take(self) -> list[Waiting]:
        """The next batch, out of the queue; those who left or came too late are dropped on the way."""
        taken: list[Waiting] = []
        rows = 0
        now_s = asyncio.get_running_loop().time()
        while self._waiting:
            request = next(iter(self._waiting))
            # Looked at again, since its timer may be due and not have run yet.
            if request.deadline_s <= now_s:
                self._expire(request)
            elif request.is_gone():
                self._remove(request)
                self._fail(
                    request, NotTaken("the client has disconnected", reason="abandoned")
                )
            # The queue is not searched for a better fit: then a large request could wait for ever.
            elif taken and (
                rows + request.rows > self.limits.batch or not _alike(taken[0], request)
            ):
                break
            else:
                self._remove(request)
                taken.append(request)
                rows += request.rows
        return taken

    async def _run_batch(self, batch: Sequence[Waiting]) -> None:
        self.begun += 1
        self.running = len(batch)
        rows = [each.rows for each in batch]
        try:
            # In the engine's thread, so that requests are accepted and health is answered while a batch runs.
            outputs, execution_s = await self._thread.call(
                lambda: self._execute([each.inputs for each in batch])
            )
            parts = split(outputs, rows)
        # Whatever happens to the batch, each of its callers gets an answer.
        except (EngineFailed, asyncio.CancelledError) as error:
            self._watch.batch_ended(rows=sum(rows), execution_s=0.0, is_ok=False)
            is_failure = isinstance(error, EngineFailed)
            for each in batch:
                self._fail(
                    each,
                    error
                    if is_failure
                    else EngineFailed("the worker was stopped while the batch ran"),
                )
            if isinstance(error, EngineLost) or not is_failure:
                raise
            return
        finally:
            self.running = 0
        self._watch.batch_ended(rows=sum(rows), execution_s=execution_s, is_ok=True)
        for request, part in zip(batch, parts, strict=True):
            if not request.answered.done():
                answer = InferAnswer(
                    outputs=part, batch_rows=sum(rows), batch_number=self.begun
                )
                request.answered.set_result(answer)

    def _execute(self, requests: Sequence[Tensors]) -> tuple[Tensors, float]:
        """Outputs of one batch and the seconds it took; in the engine's thread."""
        # Timed here, so that neither the queue nor the event loop counts as execution.
        start_s = time.perf_counter()
        try:
            outputs = self._engine.run(join(requests))
        except ServingError:
            raise
        except Exception as error:  # A network is foreign code and raises what it likes; the worker goes on.
            raise EngineFailed(
                f"the network raised {type(error).__name__}: {error}"
            ) from error
        return outputs, time.perf_counter() - start_s

    def _expire(self, request: Waiting) -> None:
        """Drop a request whose deadline has passed, unless it is in a batch already."""
        if request in self._waiting:
            self._remove(request)
            self._fail(request, self._late())
            self._settle()

    def _late(self) -> DeadlinePassed:
        self._watch.dropped("deadline")
        return DeadlinePassed("the deadline passed before the request could be run")

    def _remove(self, request: Waiting) -> None:
        if request in self._waiting:
            del self._waiting[request]
            self._rows -= request.rows

    def _fail(self, request: Waiting, error: BaseException) -> None:
        if isinstance(error, NotTaken):
            self._watch.dropped(error.reason)
        if not request.answered.done():
            request.answered.set_exception(error)

    def _settle(self) -> None:
        if not self._waiting and not self.running:
            self._idle.set()


def _alike(one: Waiting, other: Waiting) -> bool:
    """Whether two requests may share a batch."""
    return [each.kind for each in one.inputs] == [each.kind for each in other.inputs]
