"""What it costs that replicas are Pods: starts next to those of processes, crashes, deletions by others, adoption.

Run: `python -m bench.pods`. Prints a table and writes bench/results/pods.json.

With `PLIMSOLL_KUBERNETES` the API server is the real one in that directory (`make test-kubernetes` builds it), else the
tests' fake. In both cases a process of this machine stands for each container, so that what kubelet and container
runtime take is not in here; replicas are the tests' small HTTP worker.
"""

import argparse
import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import psutil

from agents.kubernetes.api import ApiAddress, KubernetesApi
from agents.kubernetes.launcher import PodLauncher
from agents.kubernetes.manifest import PodSettings
from agents.processes.launcher import PROCESSES, Launcher
from agents.replicas.replicas import Workers
from bench.report import Figures, print_table, write_results
from tests.agents.fakes.replicas import Node, a_launch
from tests.agents.kubernetes.cluster import Cluster, make_cluster, pod_names
from tests.waiting import eventually

MANY = 48
STARTS = 12


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(make_cluster(directory / "cluster"))
        rows = asyncio.run(_measure(directory, cluster))
    print_table(rows)
    write_results("pods", rows)


async def _measure(directory: Path, cluster: Cluster) -> list[Figures]:
    processes = Node(directory=directory / "processes")
    pods = Node(directory=directory / "pods", cluster=cluster)
    async with processes.workers() as workers:
        process_s = [await _start(workers, f"r{n}") for n in range(STARTS)]
    async with pods.workers() as workers:
        pod_s = [await _start(workers, f"r{n}") for n in range(STARTS)]
        crash_s = [await _crash(workers, f"r{n}") for n in range(STARTS // 2)]
        deletion_s = [
            await _delete(workers, cluster, f"r{n}") for n in range(STARTS // 2, STARTS)
        ]
    async with processes.workers(keep=True) as workers:
        await _start_many(workers)
        await _until_all_ready(workers)
    processes_mib = await asyncio.to_thread(_resident_mib, processes, None)
    async with processes.workers():
        """They give their ports back."""
    async with pods.workers(keep=True) as workers:
        begun_s = time.monotonic()
        await _start_many(workers)
        while len(await pod_names(cluster)) < MANY:  # noqa: ASYNC110  the server knows it
            await asyncio.sleep(0.05)
        bound_s = time.monotonic() - begun_s
        await _until_all_ready(workers)
    seen = (cluster.address, cluster.settings)
    pods_mib = await asyncio.to_thread(_resident_mib, replace(pods, cluster=None), seen)
    async with pods.workers() as workers:
        begun_s = time.monotonic()
        await _until_all_ready(workers)
        adoption_s = time.monotonic() - begun_s
    beyond_s = [pod - process for pod, process in zip(pod_s, process_s, strict=True)]
    return [
        _row("start of a process until it is ready, s", process_s),
        _row("start of a Pod until it is ready, s", pod_s),
        _row("start of a Pod beyond a process's, s", beyond_s, must=1.5),
        _row(f"{MANY} Pods created and bound, s", [bound_s], must=3.0),
        _row("crash until it is known, s", crash_s, must=1.0),
        _row("deletion by others until no request goes there, s", deletion_s, must=0.5),
        _row(f"adoption of {MANY} Pods, s", [adoption_s], must=5.0),
        _row(f"memory of an agent of {MANY} processes, MiB", [processes_mib]),
        _row(
            "memory with as many Pods beyond that, MiB",
            [pods_mib - processes_mib],
            must=10.0,
        ),
    ]


async def _start(workers: Workers, name: str) -> float:
    begun_s = time.monotonic()
    await workers.start(a_launch(name))
    await eventually(lambda: _state(workers, name) == "ready")
    return time.monotonic() - begun_s


async def _start_many(workers: Workers) -> None:
    for number in range(MANY):
        await workers.start(a_launch(f"m{number}"))


async def _until_all_ready(workers: Workers) -> None:
    await eventually(lambda: all(each.state == "ready" for each in workers.replicas()))


def _resident_mib(node: Node, cluster: tuple[ApiAddress, PodSettings] | None) -> float:
    """The memory of an agent that has adopted the node's replicas, in a process of its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_adopt, (node, cluster))


def _adopt(node: Node, cluster: tuple[ApiAddress, PodSettings] | None) -> float:
    return asyncio.run(_adopt_all(node, cluster))


async def _adopt_all(
    node: Node, cluster: tuple[ApiAddress, PodSettings] | None
) -> float:
    launcher: Launcher = PROCESSES
    if cluster is not None:
        address, settings = cluster
        launcher = PodLauncher(KubernetesApi(address), settings)
    await launcher.open()
    workers = node.make(launcher)
    await workers.open()
    await _until_all_ready(workers)
    resident_mib = float(psutil.Process().memory_info().rss) / 2**20
    await workers.close(keep=True)
    await launcher.close()
    return resident_mib


async def _crash(workers: Workers, name: str) -> float:
    view = next(each for each in workers.replicas() if each.id == name)
    assert view.pid is not None
    return await _until_out(workers, name, lambda: _kill(view.pid))


async def _kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


async def _delete(workers: Workers, cluster: Cluster, name: str) -> float:
    api = KubernetesApi(cluster.address)
    path = f"/api/v1/namespaces/{cluster.settings.namespace}/pods"
    (pod,) = (each for each in await pod_names(cluster) if each.startswith(f"{name}-"))
    options = {"apiVersion": "v1", "kind": "DeleteOptions"}

    async def delete() -> None:
        await api.ask("DELETE", f"{path}/{pod}", options)

    try:
        return await _until_out(workers, name, delete)
    finally:
        await api.close()


async def _until_out(
    workers: Workers, name: str, act: Callable[[], Awaitable[None]]
) -> float:
    """From the act until the replica gets no more requests; it is removed afterwards."""
    begun_s = time.monotonic()
    await act()
    await eventually(lambda: _state(workers, name) != "ready")
    spent_s = time.monotonic() - begun_s
    await eventually(lambda: _state(workers, name) == "failed")
    await workers.stop(name)
    return spent_s


def _state(workers: Workers, name: str) -> str:
    return next(each.state for each in workers.replicas() if each.id == name)


def _row(what: str, times_s: list[float], *, must: float | None = None) -> Figures:
    return {
        "what": what,
        "p50": round(median(times_s), 3),
        "max": round(max(times_s), 3),
        "must": must,
    }


if __name__ == "__main__":
    main()
