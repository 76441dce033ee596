"""A node of replicas that are real processes: the fake worker, its template, and waiting for what happens."""

import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import psutil
import pytest

from agents.processes.launch import Launch
from agents.processes.launcher import PROCESSES, Launcher
from agents.processes.templates import (
    BatchChange,
    DrainMethod,
    Template,
    Templates,
    WarmUp,
)
from agents.replicas.replica import Hooks, Proof, ReplicaView
from agents.replicas.replicas import Workers, WorkersSettings
from tests.agents.factories import a_replica
from tests.agents.kubernetes.cluster import Cluster
from tests.ports import PORTS, own_ports
from tests.waiting import PATIENCE_S
from tests.waiting import eventually as until
from tests.waiting import in_loop as in_loop

WORKER = Path(__file__).with_name("http_worker.py")
FIRST_PORT = own_ports()
BOTH_LAUNCHERS = pytest.mark.parametrize(
    "cluster", ["processes", "pods"], indirect=True
)
"""Of tests that run with Pods in `make test`, too: what a launcher does is what they are about."""


@dataclass(slots=True, kw_only=True)
class Node:
    """Where the workers of one test live, and what was asked of the GPU's sharing."""

    directory: Path
    arguments: tuple[str, ...] = ()
    start_limit_s: float = PATIENCE_S
    grace_s: float = 10.0
    hung_after_s: float = 120.0
    batch_change: BatchChange = "live"
    drain: DrainMethod = "router"
    warm_up: WarmUp | None = None
    environment: dict[str, str] = field(
        default_factory=lambda: {**os.environ, "PLIMSOLL_TOKEN": "secret"}
    )
    objection: str = ""
    lets_go: bool = True
    now_s: float = 0.0
    own_template: Template | None = None
    """Another than that of the fake worker."""
    cluster: Cluster | None = None
    """Where its replicas are Pods; None: they are processes."""
    terminated: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)

    def template(self) -> Template:
        return Template(
            name="fake",
            command=(
                sys.executable,
                "-I",
                "-S",
                str(WORKER),
                "--port",
                "{port}",
                *self.arguments,
            ),
            environment={"FAKE_SHARE": "{sm_percent}"},
            start_limit_s=self.start_limit_s,
            drain_limit_s=self.grace_s,
            hung_after_s=self.hung_after_s,
            batch_change=self.batch_change,
            drain=self.drain,
            warm_up=self.warm_up,
        )

    async def terminate(self, gpu_index: int, pids: tuple[int, ...]) -> bool:
        self.terminated.append((gpu_index, pids))
        return self.lets_go

    async def prove(self, proof: Proof) -> str:
        self.proofs.append(proof)
        return self.objection

    def clock(self) -> float:
        return self.now_s

    def make(self, launcher: Launcher = PROCESSES) -> Workers:
        return Workers(
            WorkersSettings(
                directory=self.directory, first_port=FIRST_PORT, port_count=PORTS
            ),
            templates=Templates(
                by_name={"fake": self.own_template or self.template()}, default="fake"
            ),
            hooks=Hooks(terminate=self.terminate, prove=self.prove),
            launcher=launcher,
            environment=self.environment,
            now_s=self.clock,
        )

    @asynccontextmanager
    async def workers(self, *, keep: bool = False) -> AsyncIterator[Workers]:
        async with AsyncExitStack() as stack:
            launcher: Launcher = PROCESSES
            if self.cluster is not None:
                launcher = await stack.enter_async_context(self.cluster.launcher())
            workers = self.make(launcher)
            await workers.open()
            try:
                yield workers
            finally:
                await workers.close(keep=keep)


def a_launch(replica_id: str = "r1", /, **changes: object) -> Launch:
    return replace(Launch(replica=a_replica(replica_id), gpu_index=1), **changes)  # type: ignore[arg-type]


def the(workers: Workers, replica_id: str = "r1") -> ReplicaView:
    return next(each for each in workers.replicas() if each.id == replica_id)


async def started(
    workers: Workers, state: str = "ready", **changes: object
) -> ReplicaView:
    await workers.start(a_launch("r1", **changes))
    await until(lambda: the(workers).state in (state, "failed"))
    assert the(workers).state == state, the(workers).message
    return the(workers)


async def gone(workers: Workers, replica_id: str = "r1") -> None:
    await until(lambda: all(each.id != replica_id for each in workers.replicas()))


async def status(view: ReplicaView) -> dict[str, object]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{view.url}/status") as answer,
    ):
        read: dict[str, object] = json.loads(await answer.read())
        return read


def is_running(pid: int) -> bool:
    """One that only waits to be reaped does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
