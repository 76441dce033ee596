"""One replica: its engine, its queue and its state.

    loading ──▶ ready ──drain()──▶ draining ──▶ drained ──undrain()──▶ ready   (from draining too)
                 │ ▲
       offload() ▼ └─resume()─────────────┐
              offloading ──▶ offloaded ──▶ resuming;   loading, offloading, resuming or a batch ──▶ failed

Requests are taken in `ready` only. Draining and offloading first answer all that were taken.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from agents.serving.batching import Batcher, BatchLimits, InferAnswer, Waiting
from agents.serving.engines.engine import (
    DeviceFacts,
    Engine,
    EngineCalls,
    EngineThread,
    Signature,
)
from agents.serving.engines.errors import BadRequest, NotTaken, WrongState
from agents.serving.engines.sm_count import sm_percent_of
from agents.serving.engines.tensors import Tensors
from agents.serving.metrics import WorkerMetrics

State: TypeAlias = Literal[
    "loading",
    "ready",
    "draining",
    "drained",
    "offloading",
    "offloaded",
    "resuming",
    "failed",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What one worker is started with."""

    service: str
    limits: BatchLimits
    batch_limit: int
    """Most rows of any batch, whatever is asked for later: what the replica's memory was reckoned for."""
    queue_limit: int
    """Most requests that wait."""


class Status(msgspec.Struct, kw_only=True):
    """A worker as it is now; counts are since it started."""

    service: str
    state: State
    pid: int
    device: str
    sm_count: int | None
    """Multiprocessors that the process may use; None: no GPU."""
    sm_percent: float | None
    """The share that it was started with; None: none was asked for."""
    memory_mib: float | None
    """What the engine holds; None: not known."""
    batch: int
    delay_ms: float
    batch_limit: int
    waiting: int
    running: int
    batches_begun: int
    batches: int
    requests: int
    rows: int
    execution_s: float
    """Time of those batches in the engine."""


class ServedReplica:
    """Drives one engine. All methods belong to the event loop that it was made in."""

    def __init__(
        self,
        settings: WorkerSettings,
        engine: Engine,
        *,
        metrics: WorkerMetrics,
        environment: Mapping[str, str],
        thread: EngineCalls | None = None,
    ) -> None:
        """`thread`: where the engine runs; None: a thread of its own. Raises LaunchFailed where the share is none."""
        self.settings = settings
        self.platform = engine.platform
        self.state: State = "loading"
        self.signature = Signature()
        self.metrics = metrics
        self._engine = engine
        self._thread = thread or EngineThread()
        self._is_loaded = False
        self._sm_percent = sm_percent_of(environment)
        self._batcher = Batcher(
            engine,
            self._thread,
            limits=settings.limits,
            queue_limit=settings.queue_limit,
            watch=metrics,
        )
        self._draining: asyncio.Task[None] | None = None
        self._observe()

    async def run(self) -> None:
        """Load, warm up, then serve until cancelled. Raises LaunchFailed, EngineFailed at warm-up, or EngineLost."""
        try:
            self.signature = await self._thread.call(self._engine.load)
            await self._thread.call(
                lambda: self._engine.warm_up(self._batcher.limits.batch)
            )
            self._is_loaded = True
            # A drain may have been asked for while it loaded; then the state must stay.
            self.state = "ready" if self.state == "loading" else self.state
            await self._batcher.run()
        except asyncio.CancelledError:
            raise
        except BaseException:
            self.state = "failed"
            raise
        finally:
            self._thread.close()

    def check_taking(self) -> None:
        """Raises NotTaken unless a request may be taken now."""
        if self.state != "ready":
            self.metrics.dropped("not_ready")
            raise NotTaken(
                f"the worker of {self.settings.service} is {self.state}",
                reason="not_ready",
            )
        self._batcher.check_room()

    async def answer(
        self,
        inputs: Tensors,
        *,
        came_s: float,
        deadline_s: float,
        is_gone: Callable[[], bool],
    ) -> InferAnswer:
        """The outputs for some inputs. Raises BadRequest, NotTaken, DeadlinePassed or EngineFailed."""
        # Checked before anything is queued: a request that does not fit would fail the batch of others.
        fitting = self._fitting(inputs)
        self.check_taking()
        return await self._batcher.answer(
            Waiting(
                inputs=fitting, came_s=came_s, deadline_s=deadline_s, is_gone=is_gone
            )
        )

    def change_limits(self, *, batch: int | None, delay_ms: float | None) -> Status:
        """Take another largest batch or delay, for every batch that begins from now on. Raises BadRequest."""
        now = self._batcher.limits
        if batch is not None and batch > self.settings.batch_limit:
            raise BadRequest(
                f"batch {batch} is above {self.settings.batch_limit}, what this worker was started for"
            )
        # No restart and no reload: the next batch that is formed has the new limits.
        self._batcher.change(
            BatchLimits(
                batch=now.batch if batch is None else batch,
                delay_ms=now.delay_ms if delay_ms is None else delay_ms,
            )
        )
        return self.status()

    def drain(self) -> Status:
        """Take nothing more and finish what was taken; the state becomes drained. Raises WrongState."""
        if self.state == "ready":
            self.state = "draining"
            self._batcher.hurry(is_hurried=True)
            self._draining = asyncio.create_task(self._finish_draining())
        elif self.state not in ("draining", "drained"):
            raise WrongState(
                f"the worker is {self.state}; only a ready one can be drained"
            )
        return self.status()

    def undrain(self) -> Status:
        """Take requests again. Raises WrongState."""
        if self.state in ("draining", "drained"):
            self.state = "ready"
            self._batcher.hurry(is_hurried=False)
        elif self.state != "ready":
            raise WrongState(f"the worker is {self.state}, not drained")
        return self.status()

    async def offload(self) -> Status:
        """Answer what was taken, then move the device's memory to the host. Raises WrongState or EngineFailed."""
        if self.state != "offloaded":
            if self.state not in ("ready", "drained"):
                raise WrongState(
                    f"the worker is {self.state}; only a ready or drained one can be offloaded"
                )
            async with self._moving("offloading", "offloaded"):
                await self._batcher.idle()
                await self._thread.call(self._engine.offload)
        return self.status()

    async def resume(self) -> Status:
        """Bring the memory back and take requests again. Raises WrongState or EngineFailed."""
        if self.state != "ready":
            if self.state != "offloaded":
                raise WrongState(f"the worker is {self.state}, not offloaded")
            async with self._moving("resuming", "ready"):
                await self._thread.call(self._engine.resume)
        return self.status()

    async def idle(self) -> None:
        """Return when all that was taken is answered."""
        await self._batcher.idle()

    def status(self) -> Status:
        """The worker as it is now."""
        limits = self._batcher.limits
        facts = self._facts()
        metrics = self.metrics
        return Status(
            service=self.settings.service,
            state=self.state,
            pid=os.getpid(),
            device=facts.device,
            sm_count=facts.sm_count,
            sm_percent=self._sm_percent,
            memory_mib=facts.memory_mib,
            batch=limits.batch,
            delay_ms=limits.delay_ms,
            batch_limit=self.settings.batch_limit,
            waiting=self._batcher.waiting,
            running=self._batcher.running,
            batches_begun=self._batcher.begun,
            batches=metrics.batches,
            requests=metrics.requests,
            rows=metrics.rows,
            execution_s=metrics.execution_s,
        )

    @asynccontextmanager
    async def _moving(self, meanwhile: State, then: State) -> AsyncIterator[None]:
        """Change the state for as long as the engine moves its memory; a move that fails ends in `failed`."""
        self.state = meanwhile
        self._batcher.hurry(is_hurried=True)
        try:
            yield
        except BaseException:
            self.state = "failed"
            raise
        self.state = then
        self._batcher.hurry(is_hurried=False)

    async def _finish_draining(self) -> None:
        await self._batcher.idle()
        # An undrain may have come while the last requests were answered.
        if self.state == "draining":
            self.state = "drained"

    def _facts(self) -> DeviceFacts:
        # An engine knows its device only when it has loaded.
        return self._engine.facts() if self._is_loaded else DeviceFacts(device="")

    def _fitting(self, inputs: Tensors) -> Tensors:
        """The inputs in the network's order. Raises BadRequest where it cannot take them."""
        rows = inputs[0].rows
        wanted = self.signature.inputs
        if rows > self.settings.batch_limit:
            raise BadRequest(
                f"the request has {rows} rows; a batch may have at most {self.settings.batch_limit}"
            )
        # An engine that says nothing of its inputs takes whatever comes.
        if not wanted:
            return inputs
        given = {each.name: each for each in inputs}
        if given.keys() != {each.name for each in wanted}:
            raise BadRequest(
                f"the inputs are {', '.join(given)}; the network takes {', '.join(map(str, wanted))}"
            )
        for each in wanted:
            if not each.takes(given[each.name].kind):
                raise BadRequest(
                    f"input {given[each.name].kind} does not match the network: {each}"
                )
        # In the network's order, by which batches are joined, whatever the order of the request was.
        return tuple(given[each.name] for each in wanted)

    def _observe(self) -> None:
        batcher, observe = self._batcher, self.metrics.observe
        observe("queue_length", lambda: batcher.waiting)
        observe("batch_limit_rows", lambda: batcher.limits.batch)
        observe("delay_limit_seconds", lambda: batcher.limits.delay_ms / 1000.0)
        observe("ready", lambda: float(self.state == "ready"))
        observe("sm_count", lambda: self._facts().sm_count or 0)
