"""One Pod as the agent keeps it: from the request that creates it to the end of its last process.

Two sides see it: the API tells of the Pod, and this machine of its processes, which the agent finds by their mark as it
finds all others. What runs is followed as a process, so that nothing of it depends on the API: that it crashed is known
at once, and it is ended by the same steps before its Pod is deleted.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from random import Random
from typing import TypeAlias

from agents.base.backoff import retry_s
from agents.base.device import DeviceError
from agents.kubernetes.api import ApiAway, ApiRefused, in_url
from agents.kubernetes.manifest import ENDED_BEFORE_S, HOST
from agents.kubernetes.pod import Pod
from agents.kubernetes.pod_log import PodLog
from agents.kubernetes.pods import Pods
from agents.processes.process import (
    Ending,
    WorkerProcess,
    end_left_over,
    exit_reason,
    unkillable,
)
from agents.processes.procfs import find_leader, members, variable_of

FIND_S = 0.05
"""Between two searches for the processes of a Pod that runs."""
REPORTED_S = 3.0
"""For kubelet to say how a process ended whose end was seen here."""
DELETED_S = 10.0
"""For the deletion of a Pod without processes, before it is begun again."""
_REMOVED = "its Pod was removed"
MakeManifest: TypeAlias = Callable[[], Awaitable[Mapping[str, object]]]
"""The manifest. Raises ApiRefused, ApiAway."""


class RunningPod:
    """See the module's docstring."""

    def __init__(
        self,
        pods: Pods,
        name: str,
        mark: str,
        *,
        log: Path,
        release: Callable[[str], None],
    ) -> None:
        """`log`: where what it writes is copied. `release` is called with its name when nothing of it runs any more."""
        self.name = name
        self.how = ""
        self._pods, self._mark, self._release = pods, mark, release
        self._log_path = log
        self._log: PodLog | None = None
        self._pod: Pod | None = None
        self._process: WorkerProcess | None = None
        self._host = self._refusal = ""
        self._is_gone = self._is_ending = False
        # A Pod has one of these two ends: by us, or by somebody else within its grace.
        self._killed_at_s = math.inf
        """By kubelet, where somebody else has deleted the Pod."""
        self._creation: asyncio.Task[None] | None = None
        self._life: asyncio.Task[None] | None = None
        self._placed, self._over, self._seen = (asyncio.Event() for _ in range(3))

    @property
    def host(self) -> str:
        return in_url(self._host)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        return None if self._pod is None else self._pod.exit_code

    @property
    def has_ended(self) -> bool:
        if self._process is not None:
            return self._process.has_ended
        return self._over.is_set() and self._killed_at_s == math.inf

    @property
    def pending(self) -> str:
        return self._refusal or ("" if self._pod is None else self._pod.pending)

    async def placed(self) -> None:
        await self._placed.wait()

    async def wait(self) -> str:
        await self._over.wait()
        return self.how

    def members(self) -> tuple[int, ...]:
        return members(self._mark) if self._process is None else self._process.members()

    async def end(self, ending: Ending) -> str:
        self._is_ending = True
        if self._creation is not None:
            # A request that is under way may succeed, and then there is something to delete.
            await asyncio.wait([self._creation])
        if self._process is None:
            await self.find()
        if self._process is not None:
            # Kubelet has asked it to stop, and will kill it; the agent does so before, in the order that MPS needs.
            own_s = self._killed_at_s - ENDED_BEFORE_S - time.monotonic()
            if own_s < math.inf:
                await _let_end(self._process, max(0.0, own_s))
            left = await self._process.end(ending)
        elif not await end_left_over(self._mark, ending):
            left = unkillable(self.members())
        else:
            left = await self._delete()
        if not left:
            await asyncio.to_thread(self.copy_log)
            self.abandon()
            self._release(self.name)
        return left

    def abandon(self) -> None:
        for each in (self._creation, self._life):
            if each is not None:
                each.cancel()
        if self._process is not None:
            self._process.abandon()
        if self._log is not None:
            self._log.close()

    def begin(self, manifest: MakeManifest | None = None) -> None:
        """Create it, or with no manifest find what there is of it; from now on it is followed."""
        if manifest is not None:
            self._creation = asyncio.create_task(self._create(manifest))
        self._life = asyncio.create_task(self._live())

    def see(self, pod: Pod) -> None:
        """The Pod as the API has it now."""
        self._pod, self._refusal = pod, ""
        if self._log is None:
            self._log = PodLog(self._pods.log_folder(pod), self._log_path)
        deletion_s = pod.metadata.deletion_grace_period_seconds
        if deletion_s is not None and not self._is_ending and not pod.is_over:
            self._killed_at_s = min(self._killed_at_s, time.monotonic() + deletion_s)
            self._note_over(
                "somebody else deletes its Pod, as `kubectl drain` and evictions do"
            )
        self._wake()

    def see_gone(self) -> None:
        """The API has no such Pod any more."""
        self._is_gone = True
        if not self._is_ending:
            # Kubelet kills what is left of a Pod that was removed by force.
            self._note_over(_REMOVED)
        self._wake()

    def copy_log(self) -> None:
        """Append what it wrote to its log; to be called every second or so, in a thread."""
        if self._log is not None:
            self._log.copy()

    async def _create(self, manifest: MakeManifest) -> None:
        random, failures = Random(), 0
        # An agent whose API server is away goes on trying: there is nothing wrong with the Pod.
        while not self._is_ending:
            try:
                self.see(await self._pods.create(await manifest()))
                return
            except ApiAway as error:
                self._refusal, failures = str(error), failures + 1
                await asyncio.sleep(retry_s(failures, random))
            except DeviceError as error:
                self._is_gone = True
                self._note_over(str(error))
                return

    async def _live(self) -> None:
        """Until it is over."""
        while not self._is_over_in_api():
            seen = self._seen
            # Also without an answer of the API: an agent that starts while that is away finds what runs.
            if self._pod is None or self._pod.is_running:
                await self.find()
            if self._process is not None:
                await self._process.wait()
                await self._until_reported()
                break
            with contextlib.suppress(TimeoutError):
                runs = self._pod is not None and self._pod.is_running
                async with asyncio.timeout(FIND_S if runs else None):
                    await seen.wait()
        await asyncio.to_thread(self.copy_log)
        self._note_over(self._how())

    def _is_over_in_api(self) -> bool:
        return self._is_gone or (self._pod is not None and self._pod.is_over)

    async def _until_reported(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPORTED_S):
                while not self._is_over_in_api():
                    await self._seen.wait()

    def _how(self) -> str:
        if self._pod is not None and self._pod.why_over:
            return self._pod.why_over
        if self.exit_code is not None:
            return exit_reason(self.exit_code)
        if self._is_gone:
            return _REMOVED
        return "it ended, and kubelet has not told how"

    async def _delete(self) -> str:
        """What is left of a Pod without processes; empty: it will never have any."""
        try:
            if self._pod is None and not self._is_gone:
                found = await self._pods.read(self.name)
                self._pod, self._is_gone = found, found is None
            if self._is_over_in_api():
                return ""
            assert self._pod is not None
            if not await self._pods.delete(self._pod):
                return ""
        except (ApiAway, ApiRefused) as error:
            return f"its Pod cannot be deleted: {error}"
        # Kubelet may be starting it at this moment; the next call of `end` finds the processes then.
        end_s = time.monotonic() + DELETED_S
        while time.monotonic() < end_s and not self._is_over_in_api():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIND_S):
                    await self._seen.wait()
        return "" if self._is_over_in_api() else "its Pod is being deleted"

    async def find(self) -> bool:
        """Whether its processes have been found on this machine."""
        leader = await asyncio.to_thread(find_leader, self._mark)
        # Another search may have found them meanwhile.
        if leader is not None and self._process is None:
            self._process = WorkerProcess.adopt(leader, self._mark)
            self._host = variable_of(leader.pid, HOST)
            self._placed.set()
        return self._process is not None

    def _note_over(self, how: str) -> None:
        # The first is the cause; what is seen later follows from it.
        if not self._over.is_set():
            self.how = how
            self._over.set()

    def _wake(self) -> None:
        self._seen.set()
        self._seen = asyncio.Event()


async def _let_end(process: WorkerProcess, within_s: float) -> None:
    """Return when it has ended, or after so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await process.wait()
