"""A thread that waits for GPUs' critical errors (Xids) and remembers which GPUs they condemn.

    with XidWatch(nvml, nvml.gpus()) as watch:
        watch.condemned()    # {uuid: why} of GPUs that must not be used until an operator has looked at them
        watch.take()         # events since the last call, of programs' faults, too: what MPS recovery waits for

Errors that a program causes (`APPLICATION_XIDS`) condemn nothing; under MPS they mean that a client faulted. An event
that no longer says its GPU condemns all that are watched. What is condemned stays so until the agent starts again.

    waiting ──event──▶ waiting
       │ NVML was started again, an error of the driver: the set of events is void
       ▼
    pausing ──▶ waiting with a new set;   no GPU tells its errors ──▶ ended, said in `problem`
"""

import contextlib
import threading
from collections import deque
from contextlib import AbstractContextManager
from typing import Protocol

from agents.base.device import DeviceError, NotSupported
from agents.gpu.nvml.types import GpuIdentity, NextXid, XidEvent

WAIT_MS = 1000
"""The longest call into the driver, for which a restart of NVML or the end of the agent may have to wait."""
PAUSE_S = 5.0
MAX_EVENTS = 256
"""That wait to be taken; older ones are forgotten, what they condemn is not."""


class XidSource(Protocol):
    """The part of `agents.gpu.nvml.session.Nvml` that is needed."""

    def driver_version(self) -> str:
        """Starts the library again where the driver went away."""
        ...

    def watched_xids(
        self, gpus: tuple[GpuIdentity, ...]
    ) -> AbstractContextManager[NextXid]:
        """A way to wait for events."""
        ...


class XidWatch(contextlib.AbstractContextManager["XidWatch"]):
    """Started when made."""

    def __init__(
        self,
        source: XidSource,
        gpus: tuple[GpuIdentity, ...],
        *,
        wait_ms: int = WAIT_MS,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._source, self._gpus = source, gpus
        self._wait_ms, self._pause_s = wait_ms, pause_s
        self._lock = threading.Lock()
        self._events: deque[XidEvent] = deque(maxlen=MAX_EVENTS)
        self._condemned: dict[str, str] = {}
        self._problem = ""
        self.rounds = 0
        """How often a set of events was made."""
        self.seen = 0
        """Events so far."""
        self.is_waiting = False
        """Events are told now."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xid-watch", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread; returns when it has ended."""
        self._stop.set()
        self._thread.join()

    @property
    def problem(self) -> str:
        """Why no errors are told at present; empty while they are."""
        with self._lock:
            return self._problem

    @property
    def is_running(self) -> bool:
        """Whether errors are told, or will be again."""
        return self._thread.is_alive()

    def take(self) -> tuple[XidEvent, ...]:
        """The events since the last call, oldest first."""
        with self._lock:
            taken = tuple(self._events)
            self._events.clear()
            return taken

    def condemned(self) -> dict[str, str]:
        """Why each condemned GPU must not be used, by UUID."""
        with self._lock:
            return dict(self._condemned)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._watch()
            except NotSupported as error:
                self._say(str(error))
                return
            except DeviceError as error:
                self._say(str(error))
                self._stop.wait(self._pause_s)

    def _watch(self) -> None:
        """Until told to stop; raises DeviceError when the set of events is void."""
        # This call starts the library again where the driver went away; waiting for events does not.
        self._source.driver_version()
        with self._source.watched_xids(self._gpus) as next_xid:
            self.rounds += 1
            try:
                self._take_events(next_xid)
            finally:
                self.is_waiting = False

    def _take_events(self, next_xid: NextXid) -> None:
        while not self._stop.is_set():
            event = next_xid(self._wait_ms)
            # Only a call that came back shows that the set of events is valid.
            self._say("")
            if event:
                self._note(event)

    def _say(self, problem: str) -> None:
        with self._lock:
            self._problem = problem
            self.is_waiting = not problem

    def _note(self, event: XidEvent) -> None:
        with self._lock:
            self.seen += 1
            self._events.append(event)
            if event.condemns:
                for uuid in self._touched(event):
                    # The first error is kept: later ones are often its consequences.
                    self._condemned.setdefault(uuid, _describe(event))

    def _touched(self, event: XidEvent) -> tuple[str, ...]:
        return (
            (event.gpu_uuid,)
            if event.gpu_uuid
            else tuple(gpu.uuid for gpu in self._gpus)
        )


def _describe(event: XidEvent) -> str:
    what = (
        f"Xid {event.xid}"
        if event.xid
        else "an error of memory that could not be corrected"
    )
    return f"the driver told {what}; look it up in NVIDIA's list of Xids, reset the GPU, then restart the agent"
