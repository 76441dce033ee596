"""What a kubelet does with the Pods of one node, with processes of this machine in place of containers."""

import asyncio
import contextlib
import os
import signal
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from agents.base.waits import cancel
from agents.kubernetes.api import (
    ApiAddress,
    ApiAway,
    ApiRefused,
    Away,
    ChangedObject,
    KubernetesApi,
    ListedObjects,
)
from tests.waiting import eventually

Object = dict[str, Any]
PIECE_BYTES = 16384
"""Longer lines are cut."""


class AnyPod(msgspec.Struct):
    """A Pod, all of it."""

    metadata: "AnyMetadata"
    spec: Object
    status: Object


class AnyMetadata(msgspec.Struct, rename="camel"):
    """Of a Pod."""

    name: str
    namespace: str
    uid: str
    resource_version: str = ""
    deletion_grace_period_seconds: int | None = None


class Kubelet:
    """Starts, watches and ends what is bound to its node."""

    def __init__(self, address: ApiAddress, node: str, logs: Path) -> None:
        self.killed: list[str] = []
        """Pods that had to be killed at the end of their grace."""
        self.pulls = True
        """False: no image can be pulled."""
        self.pre_stop: threading.Event | None = None
        """Where there is one, a deleted Pod gets its SIGTERM after its hook, which ends when this is set."""
        self._address, self._node, self._logs = address, node, logs
        self._api = KubernetesApi(address)
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[str] = set()
        self._begun: set[str] = set()

    async def run(self) -> None:
        query = {"fieldSelector": f"spec.nodeName={self._node}"}
        async for each in self._api.follow("/api/v1/pods", AnyPod, **query):
            if isinstance(each, Away):
                continue
            found = each.objects if isinstance(each, ListedObjects) else (each.object,)
            if isinstance(each, ChangedObject) and each.is_gone:
                await self._kill(each.object.metadata.uid)
                continue
            for pod in found:
                self._see(pod)

    async def close(self) -> None:
        for uid in tuple(self._processes):
            await self._kill(uid)
        # They say what has ended; a request that is cut off leaves its connection open.
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5.0)
        await cancel(*self._tasks)
        await self._api.close()

    def _see(self, pod: AnyPod) -> None:
        uid = pod.metadata.uid
        if pod.metadata.deletion_grace_period_seconds is not None:
            if uid not in self._ending:
                self._ending.add(uid)
                self._spawn(self._end(pod))
        elif uid not in self._begun:
            self._begun.add(uid)
            self._spawn(self._start(pod))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, pod: AnyPod) -> None:
        container = pod.spec["containers"][0]
        if not self.pulls:
            waiting = {"reason": "ErrImagePull", "message": "no such image"}
            await self._tell(pod, "Pending", {"waiting": waiting})
            return
        folder = self._logs / (
            f"{pod.metadata.namespace}_{pod.metadata.name}_{pod.metadata.uid}/{container['name']}"
        )
        folder.mkdir(parents=True, exist_ok=True)
        environment = {
            each["name"]: each.get("value", "127.0.0.1") for each in container["env"]
        }
        process = await asyncio.create_subprocess_exec(
            *(word.replace("$$(", "$(") for word in container["command"]),
            env={"PATH": os.environ["PATH"], **environment},
            cwd=container["workingDir"],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self._processes[pod.metadata.uid] = process
        self._spawn(write_log(process, folder / "0.log"))
        await self._tell(pod, "Running", {"running": {"startedAt": now()}})
        if "readinessProbe" in container:
            self._spawn(self._probe(pod, process))
        code = await process.wait()
        ended = {
            "exitCode": code if code >= 0 else 128 - code,
            "reason": "Error" if code else "Completed",
            "startedAt": now(),
            "finishedAt": now(),
        }
        await self._tell(pod, "Failed" if code else "Succeeded", {"terminated": ended})

    async def _probe(self, pod: AnyPod, process: asyncio.subprocess.Process) -> None:
        """Say that it is ready once its server listens."""
        probe = pod.spec["containers"][0]["readinessProbe"]
        while process.returncode is None:
            try:
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", probe["tcpSocket"]["port"]
                )
            except OSError:
                await asyncio.sleep(0.1)
                continue
            writer.close()
            running = {"running": {"startedAt": now()}}
            await self._tell(pod, "Running", running, ready=True)
            return

    async def _end(self, pod: AnyPod) -> None:
        process = self._processes.get(pod.metadata.uid)
        if process is not None and process.returncode is None:
            grace_s = pod.metadata.deletion_grace_period_seconds or 0
            if self.pre_stop is not None:
                await self._pre_stop(pod, process, self.pre_stop)
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(grace_s):
                    await process.wait()
            except TimeoutError:
                self.killed.append(pod.metadata.name)
                await self._kill(pod.metadata.uid)
        metadata = pod.metadata
        await self._ask(
            "DELETE",
            f"/api/v1/namespaces/{metadata.namespace}/pods/{metadata.name}",
            {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata.uid}},
        )

    async def _pre_stop(
        self,
        pod: AnyPod,
        process: asyncio.subprocess.Process,
        is_over: threading.Event,
    ) -> None:
        """Wait as the container asks for before SIGTERM, unless it ends meanwhile."""
        hook = pod.spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert hook[0] == "sleep"
        await eventually(lambda: is_over.is_set() or process.returncode is not None)

    async def _kill(self, uid: str) -> None:
        process = self._processes.pop(uid, None)
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def _tell(
        self, pod: AnyPod, phase: str, state: Object, *, ready: bool = False
    ) -> None:
        container = pod.spec["containers"][0]
        is_running = "running" in state
        status = {
            "phase": phase,
            "podIP": "127.0.0.1",
            "startTime": now(),
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": "",
                    "ready": is_running,
                    "restartCount": 0,
                    "state": state,
                }
            ],
        }
        metadata = pod.metadata
        path = f"/api/v1/namespaces/{metadata.namespace}/pods/{metadata.name}/status"
        await self._ask("PATCH", path, {"status": status})

    async def _ask(self, method: str, path: str, body: Object) -> None:
        """Until it is answered, as kubelet does."""
        kind = "merge-patch+json" if method == "PATCH" else "json"
        while True:
            try:
                await self._api.ask(
                    method, path, body, content_type=f"application/{kind}"
                )
                return
            except ApiRefused:
                return
            except ApiAway:
                await asyncio.sleep(0.2)


async def write_log(process: asyncio.subprocess.Process, path: Path) -> None:
    """As container runtimes write it."""
    assert process.stdout is not None
    with path.open("ab", buffering=0) as file:
        while content := await process.stdout.read(PIECE_BYTES):
            moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
            for piece in content.splitlines(keepends=True):
                tag = "F" if piece.endswith(b"\n") else "P"
                said = piece.removesuffix(b"\n") + b"\n"
                file.write(f"{moment} stdout {tag} ".encode() + said)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
