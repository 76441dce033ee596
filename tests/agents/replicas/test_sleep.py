"""Replicas of language models that sleep: a real engine, the stand-in, put to sleep, woken, adopted and ended."""

import sys
from pathlib import Path

import aiohttp
import msgspec
import pytest

from agents.base.device import ASLEEP_SHARE
from agents.base.protocol import EngineCommand
from agents.processes.launch import Launch
from agents.processes.template_file import BadTemplate, load_templates
from agents.processes.templates import Template
from agents.replicas import life
from agents.replicas.replica import ReplicaView
from agents.replicas.replicas import Workers
from tests.agents.factories import a_replica
from tests.agents.fakes.replicas import Node, gone, in_loop, is_running, the, until

pytestmark = pytest.mark.integration
MEMORY_MIB = 90.0


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(directory=tmp_path, own_template=a_template())


def a_template(*options: str) -> Template:
    return Template(
        name="fake",
        server="vllm",
        command=(
            sys.executable,
            "-m",
            "agents.llm",
            *[
                "--served-model-name",
                "{service}",
                "--host",
                "{host}",
                "--port",
                "{port}",
            ],
            *(options or ("--enable-sleep-mode",)),
        ),
        batch_change="restart",
        start_limit_s=60.0,
    )


def a_model_launch() -> Launch:
    engine = EngineCommand(
        gpus=(1,),
        max_num_batched_tokens=2048,
        max_num_seqs=64,
        max_model_len=4096,
        drain_s=600.0,
    )
    replica = a_replica(sm_percent=100.0, memory_mib=MEMORY_MIB)
    return Launch(replica=msgspec.structs.replace(replica, engine=engine), gpu_index=1)


async def in_state(workers: Workers, state: str) -> ReplicaView:
    await until(lambda: the(workers).state in (state, "failed"), state)
    assert the(workers).state == state, the(workers).message
    return the(workers)


async def put_to_sleep(workers: Workers) -> ReplicaView:
    await workers.start(a_model_launch())
    await in_state(workers, "ready")
    await workers.drain("r1")
    await workers.sleep("r1")
    return await in_state(workers, "asleep")


async def asked(view: ReplicaView) -> int:
    """The status of an answer to one request."""
    body = {"model": "chat", "prompt": "a b c", "max_tokens": 2}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{view.url}/v1/completions", json=body) as answer,
    ):
        return answer.status


@in_loop
async def test_it_sleeps_in_its_process_and_serves_again_when_it_is_woken(
    node: Node,
) -> None:
    async with node.workers() as workers:
        view = await put_to_sleep(workers)
        assert view.can_return
        assert view.memory_mib == pytest.approx(MEMORY_MIB * ASLEEP_SHARE)
        assert await asked(view) == 503
        await workers.wake("r1")
        woken = await in_state(workers, "ready")
        assert woken.pid == view.pid
        assert woken.memory_mib == MEMORY_MIB
        assert await asked(woken) == 200


@in_loop
async def test_one_that_drains_takes_requests_again_at_once(node: Node) -> None:
    async with node.workers() as workers:
        await workers.start(a_model_launch())
        await in_state(workers, "ready")
        await workers.drain("r1")
        assert the(workers).can_return
        await workers.wake("r1")
        view = the(workers)
        assert view.state == "ready"
        assert view.draining_s == 0.0


@in_loop
async def test_the_next_agent_finds_it_asleep_and_can_wake_it(node: Node) -> None:
    async with node.workers(keep=True) as workers:
        before = await put_to_sleep(workers)
    async with node.workers() as workers:
        view = await in_state(workers, "asleep")
        assert view.pid == before.pid
        await workers.wake("r1")
        assert await asked(await in_state(workers, "ready")) == 200


@in_loop
async def test_it_ends_when_it_is_stopped(node: Node) -> None:
    async with node.workers() as workers:
        view = await put_to_sleep(workers)
        await workers.stop("r1")
        await gone(workers)
        assert view.pid is not None
        assert not is_running(view.pid)


@in_loop
async def test_one_that_nobody_wakes_ends(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "SLEEP_LIMIT_S", 0.2)
    async with node.workers() as workers:
        await put_to_sleep(workers)
        await gone(workers)


@in_loop
async def test_one_whose_server_refuses_to_sleep_ends(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.own_template = a_template("--kv-tokens", "4096")
    async with node.workers() as workers:
        await workers.start(a_model_launch())
        await in_state(workers, "ready")
        assert not the(workers).can_sleep
        await workers.drain("r1")
        await workers.sleep("r1")
        await gone(workers)
    assert "ends and does not sleep" in caplog.text


@in_loop
async def test_one_ends_where_the_host_has_too_little_memory(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(life, "host_memory_free_mib", lambda: 40.0)
    async with node.workers() as workers:
        await workers.start(a_model_launch())
        await in_state(workers, "ready")
        await workers.drain("r1")
        await workers.sleep("r1")
        await gone(workers)
    assert "90 MiB of the host's memory, which has 40 free" in caplog.text


def test_a_template_that_could_not_be_asked_to_sleep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "templates.toml"
    command = '["vllm", "serve", "--port", "{port}", "--enable-sleep-mode"]'
    path.write_text(f'[templates.v]\nserver = "vllm"\ncommand = {command}\n')
    path.chmod(0o600)
    with pytest.raises(BadTemplate, match="VLLM_SERVER_DEV_MODE"):
        load_templates(path)
    path.write_text(
        f'[templates.v]\nserver = "vllm"\ncommand = {command}\n'
        'environment = {VLLM_SERVER_DEV_MODE = "1"}\n'
    )
    assert load_templates(path).by_name["v"].can_sleep
