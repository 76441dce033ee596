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
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from agents.base.device import DeviceError, NotSupported
from agents.gpu.nvml.types import GpuIdentity, NextXid, XidEvent
from agents.gpu.nvml.xids import (
    NAMES,
    RecoveryAction,
    XidAction,
    action_of,
    name_of,
)

WAIT_MS = 1000
"""The longest call into the driver, for which a restart of NVML or the end of the agent may have to wait."""
PAUSE_S = 5.0
MAX_EVENTS = 256
"""That wait to be taken; older ones are forgotten, what they condemn is not."""
MAX_NAMED = 8
"""Different errors of one GPU that are named."""
RECENT_S = 600.0

log = logging.getLogger(__name__)


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

    def recovery(self, gpu: GpuIdentity) -> RecoveryAction | int | None:
        """What the driver asks for to clear a fault; None where it does not tell."""
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
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._gpus = source, gpus
        self._wait_ms, self._pause_s, self._now_s = wait_ms, pause_s, now_s
        self._lock = threading.Lock()
        self._events: deque[XidEvent] = deque(maxlen=MAX_EVENTS)
        self._condemned: dict[str, list[int]] = {}
        """The errors that condemn, by UUID, the first one first."""
        self._recent: dict[tuple[str, int], float] = {}
        """When each error was told last that leaves its GPU in use, by UUID and number."""
        self._problem = ""
        self.rounds = 0
        """How often a set of events was made."""
        self.seen = 0
        """Events so far."""
        self.is_waiting = False
        """Events are told now."""
        self._stop, self._renewed = threading.Event(), threading.Event()
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
        """Why no errors are told at present, and those of late that leave their GPU in use; empty: neither."""
        with self._lock:
            since_s = self._now_s() - RECENT_S
            self._recent = {
                key: at for key, at in self._recent.items() if at >= since_s
            }
            indices = {gpu.uuid: gpu.index for gpu in self._gpus}
            recent = [
                f"GPU {indices.get(uuid, uuid)} told {_named(xid)}: NVIDIA's catalogue asks to {action_of(xid)}; the "
                "GPU stays in use"
                for uuid, xid in sorted(self._recent)
            ]
            return "; ".join(filter(None, (self._problem, *recent)))

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
            return {uuid: _describe(xids) for uuid, xids in self._condemned.items()}

    def acquit(self, uuid: str) -> None:
        """Forget what was told of this GPU so far."""
        with self._lock:
            self._condemned.pop(uuid, None)
            self._recent = {
                key: at for key, at in self._recent.items() if key[0] != uuid
            }

    def renew(self) -> None:
        """Listen again, also to GPUs that did not answer when the watch began."""
        self._renewed.set()

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
        self._renewed.clear()
        with self._source.watched_xids(self._gpus) as next_xid:
            self.rounds += 1
            try:
                self._take_events(next_xid)
            finally:
                self.is_waiting = False

    def _take_events(self, next_xid: NextXid) -> None:
        while not self._stop.is_set() and not self._renewed.is_set():
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
        touched = self._touched(event)
        action = action_of(event.xid)
        # Before the lock: a question to the driver may take long.
        condemned = [gpu for gpu in touched if self._is_condemned(gpu, action)]
        log.warning(
            "the driver told %s of %s: NVIDIA's catalogue asks to %s",
            _named(event.xid),
            ", ".join(f"GPU {gpu.index} ({gpu.uuid})" for gpu in touched) or "no GPU",
            action,
        )
        with self._lock:
            self.seen += 1
            self._events.append(event)
            for gpu in condemned:
                known = self._condemned.setdefault(gpu.uuid, [])
                if event.xid not in known and len(known) < MAX_NAMED:
                    known.append(event.xid)
            if action is XidAction.RESTART_APP:
                at_s = self._now_s()
                self._recent |= {(gpu.uuid, event.xid): at_s for gpu in touched}

    def _is_condemned(self, gpu: GpuIdentity, action: XidAction) -> bool:
        if action is not XidAction.DECODE:
            return action.condemns
        # A driver that tells recovery actions goes on telling this one, which readings of the GPU show.
        try:
            return self._source.recovery(gpu) is None
        except DeviceError:
            return True

    def _touched(self, event: XidEvent) -> tuple[GpuIdentity, ...]:
        is_any = not event.gpu_uuid
        return tuple(gpu for gpu in self._gpus if is_any or gpu.uuid == event.gpu_uuid)


def _named(xid: int) -> str:
    return f"{name_of(xid)} ({NAMES[xid]})" if xid in NAMES else name_of(xid)


def _describe(xids: Iterable[int]) -> str:
    numbers = tuple(xids)
    meanings = "; ".join(f"Xid {xid}: {NAMES[xid]}" for xid in numbers if xid in NAMES)
    strongest = max(map(action_of, numbers), key=lambda action: action.rank)
    return (
        f"the driver told {' and '.join(map(name_of, numbers))}; NVIDIA's catalogue asks to {strongest}"
        f"{meanings and f' ({meanings})'}; then `plimsoll acquit NODE` lets it be used again, as does a restart of the "
        "agent"
    )
