"""A cluster of one node for a test: the fake API or a real server, and a kubelet whose containers are processes here.

It runs in a thread of its own, since agents come and go within a test and Pods must stay.

`PLIMSOLL_KUBERNETES` names the directory of a real one, as `make test-kubernetes` sets it; else the fake one is used.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import msgspec

from agents.base.waits import cancel
from agents.kubernetes.api import ApiAddress, ApiRefused, KubernetesApi
from agents.kubernetes.launcher import PodLauncher
from agents.kubernetes.manifest import PodSettings
from tests.agents.kubernetes.fake_api import NAMESPACE, FakeApi
from tests.agents.kubernetes.kubelet import Kubelet
from tests.waiting import eventually

TESTBED = os.environ.get("PLIMSOLL_KUBERNETES", "")

ROOM = {"cpu": "64", "memory": "256Gi", "pods": "250", "nvidia.com/gpu": "2"}
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Test",
    "message": "",
    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


@dataclass(slots=True, kw_only=True)
class Cluster:
    """What a test needs of it."""

    settings: PodSettings
    address: ApiAddress
    kubelet: Kubelet
    fake: FakeApi | None
    """None: the server is a real one."""

    @asynccontextmanager
    async def launcher(self) -> AsyncIterator[PodLauncher]:
        """As an agent has it."""
        launcher = PodLauncher(KubernetesApi(self.address), self.settings)
        await launcher.open()
        try:
            yield launcher
        finally:
            await launcher.close()


@contextmanager
def make_cluster(directory: Path) -> Iterator[Cluster]:
    """Running until the end; what Pods wrote lies in the directory."""
    directory.mkdir(parents=True)
    started: list[Cluster] = []
    is_up, end = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(_serve(directory, started, is_up, end))
        except BaseException as error:
            failures.append(error)
        finally:
            is_up.set()

    thread = threading.Thread(target=run)
    thread.start()
    is_up.wait()
    try:
        if failures:
            raise failures[0]
        yield started[0]
    finally:
        end.set()
        thread.join()


async def _serve(
    directory: Path,
    started: list[Cluster],
    is_up: threading.Event,
    end: threading.Event,
) -> None:
    node = f"node-{token_hex(4)}"
    settings = PodSettings(
        node=node, namespace=NAMESPACE, image="worker", logs=directory / "logs"
    )
    async with _server(directory, node) as (address, fake):
        kubelet = Kubelet(address, node, settings.logs)
        running = asyncio.create_task(kubelet.run())
        started.append(
            Cluster(settings=settings, address=address, kubelet=kubelet, fake=fake)
        )
        is_up.set()
        await asyncio.to_thread(end.wait)
        await cancel(running)
        await kubelet.close()


@asynccontextmanager
async def _server(
    directory: Path, node: str
) -> AsyncIterator[tuple[ApiAddress, FakeApi | None]]:
    if not TESTBED:
        fake = FakeApi()
        async with fake.running():
            token_file = directory / "token"
            token_file.write_text(fake.token)
            yield ApiAddress(url=fake.url, token_file=token_file), fake
        return
    run = Path(TESTBED) / "run"
    config = msgspec.json.decode((run / "admin.kubeconfig").read_bytes())
    address = ApiAddress(
        url=config["clusters"][0]["cluster"]["server"],
        token_file=run / "pki" / "admin.token",
        ca_file=run / "pki" / "ca.crt",
    )
    api = KubernetesApi(address)
    try:
        await _prepare(api, node)
        yield address, None
    finally:
        await api.ask("DELETE", f"/api/v1/nodes/{node}")
        await api.close()


async def _prepare(api: KubernetesApi, node: str) -> None:
    """A node that is ready, and what Pods refer to."""
    for path, kind, name, rest in (
        ("/api/v1/namespaces", "v1 Namespace", NAMESPACE, {}),
        (
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            "scheduling.k8s.io/v1 PriorityClass",
            "plimsoll-replica",
            {"value": 1000000, "preemptionPolicy": "Never"},
        ),
        ("/api/v1/nodes", "v1 Node", node, {}),
    ):
        version, _, kind_name = kind.partition(" ")
        document = {
            "apiVersion": version,
            "kind": kind_name,
            "metadata": {"name": name},
            **rest,
        }
        try:
            await api.ask("POST", path, document)
        except ApiRefused as error:
            if error.status != 409:
                raise
    path = f"/api/v1/nodes/{node}"
    while True:
        found = msgspec.json.decode(await api.ask("GET", path))
        # Controllers write to it as well, and take its first taint away when it is ready.
        if "status" in found and found["status"].get("allocatable") == ROOM:
            if not found["spec"].get("taints"):
                return
            await asyncio.sleep(0.1)
            continue
        found["status"] = {
            "capacity": ROOM,
            "allocatable": ROOM,
            "conditions": [READY],
        }
        with contextlib.suppress(ApiRefused):
            await api.ask("PUT", f"{path}/status", found)


async def pod_names(cluster: Cluster) -> list[str]:
    """The Pods of the node that are there, also those that are being deleted."""
    api = KubernetesApi(cluster.address)
    try:
        body = await api.ask("GET", "/api/v1/pods")
    finally:
        await api.close()
    items = msgspec.json.decode(body)["items"]
    node = cluster.settings.node
    return [
        each["metadata"]["name"]
        for each in items
        if each["spec"].get("nodeName") == node
    ]


async def until_no_pods(cluster: Cluster) -> None:
    async def are_gone() -> bool:
        return not await pod_names(cluster)

    await eventually(are_gone, "a Pod is left")
