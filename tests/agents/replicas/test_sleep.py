"""Replicas of language models that sleep: a real engine, the stand-in, put to sleep, woken, adopted and ended."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
import pytest

from agents.base.device import ASLEEP_SHARE
from agents.processes.launch import Launch
from agents.processes.templates import SLEEP_VARIABLE, Template, Templates
from agents.replicas.replica import ReplicaView
from agents.replicas.replicas import Workers, WorkersSettings
from tests.agents.factories import a_replica, an_engine
from tests.agents.fakes.replicas import (
    FIRST_PORT,
    gone,
    in_loop,
    is_running,
    the,
    until,
)
from tests.ports import PORTS
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration
MEMORY_MIB = 90.0


SLEEPS = "--enable-sleep-mode"


def a_template(*options: str) -> Template:
    words = "-m agents.llm --served-model-name {service} --host {host} --port {port}"
    return Template(
        name="engine",
        server="vllm",
        command=(sys.executable, *words.split(), *(options or (SLEEPS,))),
        environment={SLEEP_VARIABLE: "1"},
        batch_change="restart",
        start_limit_s=PATIENCE_S,
    )


@dataclass
class EngineNode:
    """Whose replicas are engines."""

    directory: Path
    template: Template = field(default_factory=a_template)
    sleep_limit_s: float = 600.0
    free_host_mib: Callable[[], float] = lambda: 1e6

    @asynccontextmanager
    async def workers(self, *, keep: bool = False) -> AsyncIterator[Workers]:
        workers = Workers(
            WorkersSettings(
                directory=self.directory,
                first_port=FIRST_PORT,
                port_count=PORTS,
                sleep_limit_s=self.sleep_limit_s,
            ),
            templates=Templates(by_name={"engine": self.template}, default="engine"),
            free_host_mib=self.free_host_mib,
        )
        await workers.open()
        try:
            yield workers
        finally:
            await workers.close(keep=keep)


@pytest.fixture
def node(tmp_path: Path) -> EngineNode:
    return EngineNode(tmp_path)


def a_model_launch(replica_id: str = "r1") -> Launch:
    replica = a_replica(replica_id, sm_percent=100.0, memory_mib=MEMORY_MIB)
    model = msgspec.structs.replace(replica, engine=an_engine(1))
    return Launch(replica=model, gpu_index=1)


async def in_state(workers: Workers, state: str, replica_id: str = "r1") -> ReplicaView:
    await until(lambda: the(workers, replica_id).state in (state, "failed"), state)
    view = the(workers, replica_id)
    assert view.state == state, view.message
    return view


async def drained(workers: Workers, replica_id: str = "r1") -> ReplicaView:
    await workers.start(a_model_launch(replica_id))
    await in_state(workers, "ready", replica_id)
    await workers.drain(replica_id)
    return the(workers, replica_id)


async def falls_asleep(workers: Workers) -> ReplicaView:
    await workers.drain("r1")
    await workers.sleep("r1")
    return await in_state(workers, "asleep")


async def put_to_sleep(workers: Workers) -> ReplicaView:
    await drained(workers)
    return await falls_asleep(workers)


async def ask(view: ReplicaView, method: str, path: str) -> int:
    """The status of the answer."""
    body = {"model": "chat", "prompt": "a b c", "max_tokens": 2}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{view.url}{path}", json=body) as answer,
    ):
        return answer.status


async def served(view: ReplicaView) -> bool:
    return await ask(view, "POST", "/v1/completions") == 200


@in_loop
async def test_it_sleeps_and_serves_when_it_is_woken_and_ends_when_it_is_stopped(
    node: EngineNode,
) -> None:
    async with node.workers() as workers:
        # While it drains it takes requests again at once.
        assert (await drained(workers)).can_return
        await workers.wake("r1")
        assert (the(workers).state, the(workers).draining_s) == ("ready", 0.0)
        view = await falls_asleep(workers)
        assert view.can_return
        assert view.memory_mib == pytest.approx(MEMORY_MIB * ASLEEP_SHARE)
        assert not await served(view)
        await workers.wake("r1")
        woken = await in_state(workers, "ready")
        assert (woken.pid, woken.memory_mib) == (view.pid, MEMORY_MIB)
        assert await served(woken)
        await falls_asleep(workers)
        await workers.stop("r1")
        # Until it is gone it holds no more than it did.
        assert the(workers).memory_mib < MEMORY_MIB
        await gone(workers)
        assert not is_running(view.pid or 0)


@in_loop
async def test_the_next_agent_can_wake_it(node: EngineNode) -> None:
    async with node.workers(keep=True) as workers:
        await workers.start(a_model_launch())
        before = await in_state(workers, "ready")
        # As if its agent had died when it had put it to sleep.
        assert await ask(before, "POST", "/sleep?level=1") == 200
    async with node.workers() as workers:
        view = await in_state(workers, "asleep")
        assert view.pid == before.pid
        await workers.wake("r1")
        assert await served(await in_state(workers, "ready"))


@in_loop
async def test_it_ends_with_its_agent_though_others_go_on(node: EngineNode) -> None:
    async with node.workers(keep=True) as workers:
        view = await put_to_sleep(workers)
    await until(lambda: not is_running(view.pid or 0))


@in_loop
async def test_one_that_nobody_wakes_ends(node: EngineNode) -> None:
    node.sleep_limit_s = 0.2
    async with node.workers() as workers:
        await put_to_sleep(workers)
        await gone(workers)


@pytest.mark.parametrize(
    ("options", "free_mib", "words"),
    [
        (("--kv-tokens", "4096"), 1e6, "ends and does not sleep"),
        ((SLEEPS,), 40.0, "90 MiB of the host's memory, which has 40 free"),
    ],
)
@in_loop
async def test_one_that_cannot_sleep_ends(
    node: EngineNode,
    caplog: pytest.LogCaptureFixture,
    options: tuple[str, ...],
    free_mib: float,
    words: str,
) -> None:
    node.template, node.free_host_mib = a_template(*options), lambda: free_mib
    async with node.workers() as workers:
        await drained(workers)
        await workers.sleep("r1")
        await gone(workers)
    assert words in caplog.text
