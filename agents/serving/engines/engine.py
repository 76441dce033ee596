"""Engine: what executes a network's batches; and the one thread in which it does.

    Engine.load()          once: read the network, take the device. Raises LaunchFailed.
    Engine.warm_up(batch)  once: run a batch of that many rows, so that the first request is not the slowest.
    Engine.run(inputs)     one batch, already joined; its outputs have as many rows. Raises EngineFailed or EngineLost.
    Engine.offload()       move the device's memory to the host; `resume()` brings it back.

    Engine.facts()         at any time after load, from any thread: it must be quick.

The others block and are called from the EngineThread only, one after the other: HTTP stays responsive meanwhile, and
an offload never meets a running batch.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol, TypeVar

from agents.base.device import LaunchFailed
from agents.serving.engines.tensors import Tensors, TensorType

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """The device as the engine sees it now."""

    device: str
    """E.g. `cuda:0 NVIDIA A100-SXM4-40GB`, or `cpu`."""
    sm_count: int | None = None
    """Multiprocessors that this process may use: under MPS the capped number. None: no GPU."""
    memory_mib: float | None = None
    """What the engine has taken of the device's memory; on a CPU of the host's. None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a network takes and gives; empty: anything, or not known."""

    inputs: tuple[TensorType, ...] = ()
    outputs: tuple[TensorType, ...] = ()


class Engine(Protocol):
    """One loaded network. Implementations: `timed_engine`, `torch_engine`, `onnx_engine`."""

    platform: str
    """The protocol's word for what executes, e.g. `onnxruntime_onnx`."""

    def load(self) -> Signature:
        """Read the network and take the device."""
        ...

    def warm_up(self, batch: int) -> None:
        """Run one batch of that many rows."""
        ...

    def run(self, inputs: Tensors) -> Tensors:
        """The outputs of one batch."""
        ...

    def facts(self) -> DeviceFacts:
        """The device as it is now; quick, from any thread."""
        ...

    def offload(self) -> None:
        """Move what the device holds to the host."""
        ...

    def resume(self) -> None:
        """Bring it back."""
        ...


class EngineCalls(Protocol):
    """Where an engine's calls run, one after the other: an EngineThread, or a fake's event loop."""

    async def call(self, function: Callable[[], T]) -> T:
        """What the function returns or raises."""
        ...

    def close(self) -> None:
        """Take no more calls."""
        ...


@dataclass(slots=True)
class EngineThread:
    """Runs one call after the other in a thread of its own.

    The thread is a daemon: a batch that hangs in a driver must not keep the process from ending.
    """

    _calls: "SimpleQueue[Callable[[], None] | None]" = field(
        default_factory=SimpleQueue
    )

    def __post_init__(self) -> None:
        threading.Thread(target=self._work, name="engine", daemon=True).start()

    async def call(self, function: Callable[[], T]) -> T:
        """What the function returns or raises; a cancelled wait does not stop a call that has begun."""
        done: Future[T] = Future()

        def work() -> None:
            # The caller has gone before the call began: there is no one to run it for.
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(function())
            except BaseException as error:  # It belongs to the caller, whatever it is.
                done.set_exception(error)

        self._calls.put(work)
        return await asyncio.wrap_future(done)

    def close(self) -> None:
        """End the thread after the calls that were made."""
        self._calls.put(None)

    def _work(self) -> None:
        while (work := self._calls.get()) is not None:
            work()


def file_in(directory: Path | None, name: str) -> Path:
    """The file of that name in the directory, links followed. Raises LaunchFailed where it is elsewhere or absent."""
    if directory is None:
        raise LaunchFailed(
            f"{name} is a file; set --network-dir to the directory with the files"
        )
    try:
        allowed = directory.resolve(strict=True)
        # Links are followed first, since one within the directory may point out of it.
        found = (allowed / name).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise LaunchFailed(f"there is no {name!r} in {directory}: {error}") from error
    if not found.is_relative_to(allowed) or not found.is_file():
        raise LaunchFailed(
            f"{name!r} is not a file in {directory}; only those are loaded"
        )
    return found
