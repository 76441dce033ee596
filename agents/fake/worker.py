"""A fake model server on the CPU: the real worker's protocol, queue and batches, with execution times as told.

It answers each row with its sum, so that a caller can tell that it got its own answer. Everything else is
`agents.serving`, but for the engine's thread: a batch lets the clock's time pass on the event loop, so that one process
holds as many fakes as a node has replicas, at any speed of the clock.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from aiohttp import web

from agents.base.clock import Clock
from agents.base.waits import cancel
from agents.serving.batching import BatchLimits
from agents.serving.engines.engine import DeviceFacts, Signature
from agents.serving.engines.tensors import Tensors
from agents.serving.engines.timed_engine import row_sums
from agents.serving.metrics import WorkerMetrics
from agents.serving.replica import ServedReplica, WorkerSettings
from agents.serving.server import make_app

QUEUE_LIMIT = 1024
BATCH_LIMIT = 4096

T = TypeVar("T")


class FakeEngine:
    """Sums rows; engine and engine thread in one, so that a batch's time passes where its outputs are made."""

    platform = "plimsoll_fake"

    def __init__(self, execution_s: Callable[[int], float], clock: Clock) -> None:
        """`execution_s`: time of a batch of that many rows, in seconds of the clock."""
        self.batches: Counter[int] = Counter()
        """How many batches of each size ran."""
        self.busy_s = 0.0
        """Seconds of the clock in which a batch ran."""
        self._execution_s = execution_s
        self._clock = clock
        self._rows = 0
        """Rows of the batch whose time has yet to pass."""

    def load(self) -> Signature:
        """It takes anything."""
        return Signature()

    def warm_up(self, batch: int) -> None:
        """Nothing is cold."""

    def run(self, inputs: Tensors) -> Tensors:
        """The sum of each row."""
        self._rows = inputs[0].rows
        return tuple(map(row_sums, inputs))

    def facts(self) -> DeviceFacts:
        """No device."""
        return DeviceFacts(device="fake")

    def offload(self) -> None:
        """There is no memory to move."""

    def resume(self) -> None:
        """There is no memory to move back."""

    async def call(self, function: Callable[[], T]) -> T:
        """What the function returns or raises, after the time of the batch that it ran."""
        answer = function()
        rows, self._rows = self._rows, 0
        if rows:
            execution_s = self._execution_s(rows)
            await self._clock.sleep(execution_s)
            self.batches[rows] += 1
            # The time that was asked for: how much longer the event loop sleeps is not the worker's execution.
            self.busy_s += execution_s
        return answer

    def close(self) -> None:
        """There is no thread to end."""


class FakeWorker:
    """One replica and HTTP around it."""

    def __init__(
        self,
        name: str,
        *,
        batch: int,
        execution_s: Callable[[int], float],
        clock: Clock,
    ) -> None:
        """`execution_s`: time of a batch of that many rows, in seconds of the clock."""
        self._engine = FakeEngine(execution_s, clock)
        self._replica = ServedReplica(
            WorkerSettings(
                service=name,
                limits=BatchLimits(batch=batch),
                batch_limit=BATCH_LIMIT,
                queue_limit=QUEUE_LIMIT,
            ),
            self._engine,
            metrics=WorkerMetrics(),
            environment={},
            thread=self._engine,
        )

    @property
    def batch(self) -> int:
        """Maximum number of rows in a batch now."""
        return self._replica.status().batch

    @property
    def batches(self) -> Counter[int]:
        """How many batches of each size ran."""
        return self._engine.batches

    @property
    def busy_s(self) -> float:
        """Seconds of the clock in which a batch ran."""
        return self._engine.busy_s

    @property
    def requests(self) -> int:
        """Requests that were answered with a result."""
        return self._replica.metrics.requests

    def make_app(self) -> web.Application:
        """The HTTP server; its batches run as long as it does."""
        app = make_app(self._replica)
        app.cleanup_ctx.append(self._serving)
        return app

    async def _serving(self, _: web.Application) -> AsyncIterator[None]:
        running = asyncio.create_task(self._replica.run())
        yield
        # A caller that waits is told at once, and does not run into its own timeout.
        await cancel(running)
