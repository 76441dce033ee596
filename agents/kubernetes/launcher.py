"""Replicas and tasks as Pods: the second launcher, next to the one for processes.

    launcher = PodLauncher(KubernetesApi(…), PodSettings(…))
    await launcher.open()        follows the Pods of this node
    launcher.problems            why the API does not answer
    await launcher.close()       the Pods go on

The record is on disk before a Pod is asked for, and its name follows from the record: a later agent finds what an
earlier one has asked for, whether or not that came about. A Pod of this node whose directory is known here, and that no
record stands for, is ended.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from agents.base.backoff import retry_s
from agents.base.device import DeviceError
from agents.base.waits import cancel
from agents.kubernetes.api import ANSWER_S, Away, KubernetesApi, ListedObjects
from agents.kubernetes.manifest import MARK_LABEL, PodSettings, manifest, pod_name
from agents.kubernetes.pod import Pod
from agents.kubernetes.pods import Pods
from agents.kubernetes.running_pod import RunningPod
from agents.processes.launch import Prepared
from agents.processes.launcher import PROCESSES, Running, SaveRecord
from agents.processes.process import Ending, TerminateOnGpu, end_left_over
from agents.processes.records import Recorded

LOG_LOOK_S = 1.0
"""Between two looks for what Pods have written."""
LEAVE_S = 5.0
"""For the deletion of ended Pods when the agent itself ends."""

log = logging.getLogger(__name__)


class PodLauncher:
    """See the module's docstring."""

    listens_on = "0.0.0.0"

    def __init__(self, api: KubernetesApi, settings: PodSettings) -> None:
        self.problems: tuple[str, ...] = ()
        self._api, self._settings = api, settings
        self._pods = Pods(api, settings)
        self._terminate: TerminateOnGpu | None = None
        self._running: dict[str, RunningPod] = {}
        """By the Pod's name, as are the others."""
        self._there: dict[str, Pod] = {}
        self._orphans: dict[str, asyncio.Task[None]] = {}
        self._directories: set[str] = set()
        """Beginnings of the marks of directories whose records have been read."""
        self._recorded: set[str] = set()
        """Marks that are in records that were not asked for yet."""
        self._assumed: set[str] = set()
        """Pods that were adopted while the API was away, and may be gone."""
        self._is_listed = False
        self._has_answered = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Follow the Pods of this node. Without an answer of the API what is known here has to do for now."""
        self._tasks = [
            asyncio.create_task(self._follow()),
            asyncio.create_task(self._copy_logs()),
        ]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._has_answered.wait()

    async def close(self) -> None:
        """The Pods go on, but for those that have been ended."""
        # Their processes have ended, and only the API still has them: nothing else would delete them soon.
        orphans = tuple(self._orphans.values())
        if orphans:
            await asyncio.wait(orphans, timeout=LEAVE_S)
        await cancel(*self._tasks, *self._orphans.values())
        await self._api.close()

    def start(self, prepared: Prepared, record: SaveRecord) -> Running:
        # Whatever happens from here on, the next agent finds it by this.
        record(None)
        running = self._follow_pod(
            prepared.name, prepared.spawn.mark, prepared.spawn.log
        )
        running.begin(partial(self._manifest, prepared))
        return running

    async def _manifest(self, prepared: Prepared) -> dict[str, object]:
        """Raises ApiRefused, ApiAway."""
        if not self._settings.image:
            own = await self._pods.read(self._settings.own_pod)
            image = "" if own is None else own.image
            self._settings = replace(self._settings, image=image)
        settings = self._settings
        if settings.uses_gpu_claim:
            # Another Pod of the daemons has another claim.
            settings = replace(settings, gpu_claim=await self._pods.gpu_claim())
        return manifest(prepared, settings)

    async def adopt(self, record: Recorded, log: Path) -> Running | None:
        name = pod_name(self._settings.node, record.id, record.mark)
        self._recorded.discard(record.mark)
        # While the API is away nothing is better known than the record.
        if self._is_listed and name not in self._there:
            return None
        pod = self._there.get(name)
        running = self._follow_pod(record.id, record.mark, log)
        if pod is not None:
            running.see(pod)
        if not self._is_listed:
            self._assumed.add(name)
        # Of one that is still to be started nothing can be found yet.
        if await running.find() or (pod is None or pod.is_pending):
            running.begin()
            return running
        await asyncio.to_thread(running.copy_log)
        running.abandon()
        self._release(name)
        return None

    async def end_left_over(self, mark: str, ending: Ending) -> bool:
        return await end_left_over(mark, ending)

    async def end_unrecorded(
        self, mark: str, known: Collection[str], terminate: TerminateOnGpu
    ) -> None:
        self._terminate = terminate
        self._directories.add(f"{mark}.")
        self._recorded |= set(known)
        await PROCESSES.end_unrecorded(mark, known, terminate)
        for each in tuple(self._there.values()):
            self._end_if_orphan(each)

    def _follow_pod(self, part: str, mark: str, log_path: Path) -> RunningPod:
        name = pod_name(self._settings.node, part, mark)
        running = RunningPod(
            self._pods, name, mark, log=log_path, release=self._release
        )
        self._running[name] = running
        return running

    def _release(self, name: str) -> None:
        """Nothing of it runs any more: what is left of it in the API goes as well."""
        self._running.pop(name, None)
        if name in self._there:
            self._end_if_orphan(self._there[name])

    async def _follow(self) -> None:
        async for each in self._pods.follow():
            if isinstance(each, Away):
                # Once and not at every attempt, of which there are some each minute.
                if not self.problems:
                    log.warning("%s", each.reason)
                self.problems = (f"Pods cannot be started here: {each.reason}",)
            elif isinstance(each, ListedObjects):
                self._see_all({pod.metadata.name: pod for pod in each.objects})
            elif each.is_gone:
                self._see_gone(each.object.metadata.name)
            else:
                self._see(each.object)
            if not isinstance(each, Away):
                self.problems = ()
            self._has_answered.set()

    def _see_all(self, there: dict[str, Pod]) -> None:
        # A Pod that has just been created may be missing in a list that is older.
        for name in (self._there.keys() | self._assumed) - there.keys():
            self._see_gone(name)
        self._is_listed = True
        self._assumed.clear()
        for pod in there.values():
            self._see(pod)

    def _see(self, pod: Pod) -> None:
        name = pod.metadata.name
        self._there[name] = pod
        if name in self._running:
            self._running[name].see(pod)
        else:
            self._end_if_orphan(pod)

    def _see_gone(self, name: str) -> None:
        self._there.pop(name, None)
        if name in self._running:
            self._running[name].see_gone()

    def _end_if_orphan(self, pod: Pod) -> None:
        """End a Pod that an agent of this node's directories has asked for, and that no record stands for."""
        name, mark = pod.metadata.name, pod.metadata.labels.get(MARK_LABEL, "")
        is_ours = any(mark.startswith(each) for each in self._directories)
        is_known = mark in self._recorded or name in self._running
        # Kubelet keeps what it has been asked to end for some seconds.
        is_begun = name in self._orphans or pod.metadata.deletion_timestamp is not None
        if is_ours and not is_known and not is_begun:
            self._orphans[name] = task = asyncio.create_task(
                self._end_orphan(name, mark)
            )
            task.add_done_callback(lambda _: self._orphans.pop(name, None))

    async def _end_orphan(self, name: str, mark: str) -> None:
        """Until its deletion has begun. Its processes end before, as those of every other Pod."""
        assert self._terminate is not None
        random, failures = Random(), 0
        # Which GPU it was on stood in the record.
        ending = Ending(grace_s=0.0, terminate=partial(self._terminate, -1))
        while name in self._there:
            try:
                is_over = await end_left_over(mark, ending)
                pod = self._there.get(name)
                if is_over and pod is not None:
                    await self._pods.delete(pod)
                    return
            except DeviceError as error:
                log.warning("Pod %s cannot be deleted: %s", name, error)
            failures += 1
            await asyncio.sleep(retry_s(failures, random))

    async def _copy_logs(self) -> None:
        while True:
            await asyncio.sleep(LOG_LOOK_S)
            for each in tuple(self._running.values()):
                await asyncio.to_thread(each.copy_log)
