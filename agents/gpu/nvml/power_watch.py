"""Peak power of GPUs between two looks, for governors: a thread that samples those that somebody looks at.

    watch = PowerWatch(nvml.power_w)
    watch.peak_w(gpu)     # highest since the last call; the first call of a GPU begins to watch it

Boards since Ampere tell a mean over one second, older ones the moment: between two looks a second apart the first tell
nothing new, the others may hide every peak. A GPU that was not looked at for FORGET_S is no longer sampled.
"""

import contextlib
import threading
import time
from collections.abc import Callable

from agents.base.device import DeviceError
from agents.gpu.nvml.types import GpuIdentity

PERIOD_S = 0.1
FORGET_S = 10.0


class PowerWatch(contextlib.AbstractContextManager["PowerWatch"]):
    """Started when made."""

    def __init__(
        self, power_w: Callable[[GpuIdentity], float], *, period_s: float = PERIOD_S
    ) -> None:
        """`power_w`: of a GPU now; raises DeviceError."""
        self._power_w, self._period_s = power_w, period_s
        self._lock = threading.Lock()
        self._peaks: dict[str, float] = {}
        self._looked: dict[str, tuple[GpuIdentity, float]] = {}
        self._stop = threading.Event()
        self._wanted = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="power-watch", daemon=True
        )
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread; returns when it has ended."""
        self._stop.set()
        self._wanted.set()
        self._thread.join()

    def peak_w(self, gpu: GpuIdentity) -> float:
        """Since the last call for this GPU, the present moment included. Raises DeviceError."""
        # Outside the lock: a call into the driver may take milliseconds, and the thread notes its samples under it.
        now_w = self._power_w(gpu)
        with self._lock:
            self._looked[gpu.uuid] = (gpu, time.monotonic())
            # Taken out, since the peak is that since the last call.
            peak_w = max(now_w, self._peaks.pop(gpu.uuid, now_w))
        self._wanted.set()
        return peak_w

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            # Nothing governs most of the time, and a sample every 0.1 s would keep a CPU core and the driver
            # awake for nothing.
            self._wanted.wait()
            for gpu in self._watched():
                # A GPU that does not answer says so to its reader.
                with contextlib.suppress(DeviceError):
                    self._note(gpu, self._power_w(gpu))

    def _watched(self) -> list[GpuIdentity]:
        """Those that somebody has looked at of late; without any the thread sleeps."""
        with self._lock:
            now_s = time.monotonic()
            self._looked = {
                uuid: each
                for uuid, each in self._looked.items()
                if now_s - each[1] < FORGET_S
            }
            self._peaks = {
                uuid: peak_w
                for uuid, peak_w in self._peaks.items()
                if uuid in self._looked
            }
            if not self._looked and not self._stop.is_set():
                # Under the lock, so that a call of `peak_w` that comes now sets the event after this line.
                self._wanted.clear()
            return [gpu for gpu, _ in self._looked.values()]

    def _note(self, gpu: GpuIdentity, power_w: float) -> None:
        with self._lock:
            self._peaks[gpu.uuid] = max(power_w, self._peaks.get(gpu.uuid, power_w))
