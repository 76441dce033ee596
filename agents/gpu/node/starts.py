"""One GPU whose start fails is that GPU's matter: the others work, and it is tried again.

    starts = GpuStarts(errors, start)             # start(gpu) -> StartedGpu, or raises DeviceError or OSError
    await starts.begin(gpus)                      # returns when each was tried once
    starts.sharings, starts.capabilities          # by index; filled in when a GPU starts later
    starts.condemned()                            # what `errors` says, and why GPUs have not started

    begin() ──▶ started
       │ fails    ▲
       ▼          │ after 5, 10, 20, 40, 60 … s, jittered
     waiting ─────┘

While a GPU waits it counts as unhealthy, so that nothing is placed on it, and its replicas cannot start.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random

from agents.base.backoff import delay_s, jittered
from agents.base.device import DeviceError, LaunchFailed
from agents.base.protocol import ReplicaCommand, TaskCommand
from agents.gpu.mps.gpu_sharing import Sharing
from agents.gpu.node.devices import GpuErrors
from agents.gpu.nvml.types import GpuCapabilities, GpuIdentity
from agents.replicas.replica import Proof

FIRST_S, MAX_S = 5.0, 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedGpu:
    """What the start of a GPU gives."""

    sharing: Sharing
    capabilities: GpuCapabilities


class NotStarted:
    """The sharing of a GPU that has not started: nothing runs there."""

    problem = ""

    def __init__(self, gpu: GpuIdentity, why: str) -> None:
        """`why`: in words."""
        self._gpu, self._why = gpu, why

    async def environment(
        self, part: ReplicaCommand | TaskCommand
    ) -> Mapping[str, str]:
        name = (
            f"replica {part.id}"
            if isinstance(part, ReplicaCommand)
            else f"task {part.name}"
        )
        raise LaunchFailed(
            f"{name} cannot start: GPU {self._gpu.index} has not started itself: {self._why}"
        )

    async def objection(self, proof: Proof) -> str:  # noqa: ARG002  the same for all
        return f"GPU {self._gpu.index} has not started: {self._why}"

    async def terminate_clients(self, pids: tuple[int, ...]) -> bool:  # noqa: ARG002  none is known to be harmed
        return True

    async def watch(self) -> bool:
        return False

    async def close(self) -> None:
        pass


class GpuStarts:
    """The starts of one node's GPUs. Belongs to the event loop that it is made in."""

    def __init__(
        self,
        errors: GpuErrors,
        start: Callable[[GpuIdentity], Awaitable[StartedGpu]],
        *,
        on_late: Callable[[], None] = lambda: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`on_late`: called when a GPU has started that failed at first. `sleep` takes wall seconds: drivers and
        daemons are real."""
        self.sharings: dict[int, Sharing] = {}
        self.capabilities: dict[int, GpuCapabilities] = {}
        self._errors, self._start, self._sleep = errors, start, sleep
        self._on_late = on_late
        self._waiting: dict[str, str] = {}
        """Why, by UUID."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def problem(self) -> str:
        return self._errors.problem

    def condemned(self) -> dict[str, str]:
        # An error of the GPU outranks a start that failed: it is most likely the reason.
        return {**self._waiting, **self._errors.condemned()}

    def acquit(self, uuid: str) -> None:
        """Forget the errors of a device; one that does not start is tried again all the same."""
        self._errors.acquit(uuid)

    async def begin(self, gpus: tuple[GpuIdentity, ...]) -> None:
        """Start each GPU, or begin to try again."""
        for gpu in gpus:
            if not await self._try(gpu):
                task = asyncio.create_task(
                    self._retry(gpu), name=f"start of GPU {gpu.index}"
                )
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Try no more. Safe from any thread."""
        for task in tuple(self._tasks):
            self._loop.call_soon_threadsafe(task.cancel)
        self._errors.close()

    async def _retry(self, gpu: GpuIdentity) -> None:
        # Seeded by the GPU, so that the GPUs of a node do not try at the same moments.
        failures, random = 1, Random(gpu.uuid)
        while True:
            await self._sleep(
                jittered(delay_s(failures, first_s=FIRST_S, longest_s=MAX_S), random)
            )
            if await self._try(gpu):
                log.info("GPU %d has started after %d failures", gpu.index, failures)
                self._on_late()
                return
            failures += 1

    async def _try(self, gpu: GpuIdentity) -> bool:
        try:
            started = await self._start(gpu)
        except (DeviceError, OSError) as error:
            log.error("GPU %d does not start: %s", gpu.index, error)
            self._waiting[gpu.uuid] = (
                f"it is not used, for it does not start, and is tried again: {error}"
            )
            self.sharings[gpu.index] = NotStarted(gpu, str(error))
            # A list of the GPUs must have an entry for each. What this one lacks is not known, and nothing acts on
            # it: nothing is asked of a GPU that is condemned, and readers of capabilities look them up each time.
            self.capabilities[gpu.index] = GpuCapabilities()
            return False
        self.sharings[gpu.index], self.capabilities[gpu.index] = (
            started.sharing,
            started.capabilities,
        )
        self._waiting.pop(gpu.uuid, None)
        return True
