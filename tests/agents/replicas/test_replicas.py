"""Replicas as real processes: they become ready, change, fail in words and end in the right order."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from agents.base.device import LaunchFailed, UnknownPart
from agents.processes.launch import Crashes
from agents.processes.templates import WarmUp
from agents.replicas.replica import Proof
from tests.agents.fakes.replicas import (
    BOTH_LAUNCHERS,
    WORKER,
    Node,
    a_launch,
    gone,
    in_loop,
    is_running,
    started,
    status,
    the,
    until,
)
from tests.agents.kubernetes.cluster import Cluster
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration


@pytest.fixture
def node(tmp_path: Path, cluster: Cluster | None) -> Node:
    return Node(directory=tmp_path / "workers", cluster=cluster)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@BOTH_LAUNCHERS
@in_loop
async def test_a_replica_starts_serves_and_is_stopped(node: Node) -> None:
    mps = {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "CUDA_MPS_PIPE_DIRECTORY": "/run/mps/0",
    }
    async with node.workers() as workers:
        await workers.start(a_launch(environment=mps))
        assert the(workers).state == "starting"
        await until(lambda: the(workers).state == "ready")
        view = the(workers)
        assert (view.service, view.gpu_index) == ("chat", 1)
        assert (view.batch, view.sm_count) == (4, 66)
        assert os.getsid(view.pid) == view.pid, "it has a session of its own"
        environment = psutil.Process(view.pid).environ()
        assert environment.items() >= {**mps, "FAKE_SHARE": "50"}.items()
        assert "PLIMSOLL_TOKEN" not in environment
        assert environment["PATH"] == node.environment["PATH"]
        with pytest.raises(LaunchFailed, match="there already"):
            await workers.start(a_launch())
        for call in (workers.drain, workers.stop):
            with pytest.raises(UnknownPart, match="no replica r9"):
                await call("r9")
        await workers.drain("r1")
        assert the(workers).state == "draining"
        await workers.stop("r1")
        await gone(workers)
        assert not is_running(view.pid)
    assert node.terminated == [], "it ended on SIGTERM"
    for folder in ("records", "work"):
        assert names(node.directory / folder) == []


@in_loop
async def test_readiness_is_waited_for(node: Node, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    node.arguments = ("--ready-file", str(ready))
    async with node.workers() as workers:
        await workers.start(a_launch())
        await until(lambda: the(workers).message == "not ready")
        ready.touch()
        await until(lambda: the(workers).state == "ready")
        assert the(workers).message == ""
        await workers.stop("r1")
        await gone(workers)
    # One that starts can be stopped.
    ready.unlink()
    async with node.workers() as workers:
        await workers.start(a_launch())
        await workers.stop("r1")
        await gone(workers)


@in_loop
async def test_a_replica_that_never_becomes_ready_fails(node: Node) -> None:
    node.arguments = ("--ready-file", "never", "--say", "loading weights")
    node.start_limit_s = 0.25

    async def fails_with_its_log() -> bool:
        # It says something within some limit, on a busy machine a longer one.
        node.start_limit_s *= 2.0
        async with node.workers() as workers:
            view = await started(workers, state="failed")
            assert f"not ready within {node.start_limit_s:g} s" in view.message
            assert not is_running(view.pid)
            return "loading weights" in view.message

    await until(fails_with_its_log)


ENDS = ("--exit-after-s", "0", "--exit-code")
DIES = ("--exit-after-s", "0", "--die-by")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*ENDS, "3", "--say", "no such network"), ("exit code 3", "no such network")),
        ((*ENDS, "1"), ("exit code 1: it failed; see its log", "its log is empty")),
        ((*DIES, "9"), ("signal 9 (SIGKILL)", "memory ran out")),
        ((*DIES, "11"), ("signal 11 (SIGSEGV)",)),
        (("--odd",), ("exit code 2: its arguments are wrong", "unrecognized argum")),
    ],
)
@in_loop
async def test_how_a_worker_ended_is_told_with_the_end_of_its_log(
    node: Node, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    node.arguments = arguments
    async with node.workers() as workers:
        view = await started(workers, state="failed")
        for each in words:
            assert each in view.message


@in_loop
async def test_the_children_of_a_dead_replica_are_ended(node: Node) -> None:
    node.arguments = ("--child",)
    async with node.workers() as workers:
        view = await started(workers)
        (child,) = psutil.Process(view.pid).children()
        os.kill(view.pid, signal.SIGKILL)  # as the kernel would, when memory runs out
        await until(lambda: the(workers).state == "failed")
        await until(lambda: not is_running(child.pid))
        assert node.terminated == [(1, (child.pid,))], (
            "MPS was asked before the child was killed"
        )
        await workers.stop("r1")
        assert workers.replicas() == ()


@in_loop
async def test_a_child_in_another_session_is_found(node: Node) -> None:
    node.arguments = ("--child", "--own-session")
    async with node.workers() as workers:
        view = await started(workers)
        (child,) = psutil.Process(view.pid).children()
        assert os.getsid(child.pid) == child.pid
        await workers.stop("r1")
        await gone(workers)
        await until(lambda: not is_running(child.pid))


@pytest.mark.parametrize("lets_go", [True, False])
@in_loop
async def test_sigterm_comes_first_then_mps_lets_go_then_sigkill(
    node: Node, lets_go: bool
) -> None:
    node.arguments, node.grace_s, node.lets_go = ("--hang",), 0.3, lets_go
    async with node.workers() as workers:
        view = await started(workers)
        await workers.stop("r1")
        assert the(workers).state == "draining" and node.terminated == []
        await workers.stop("r1")  # again: it is being ended already
        await gone(workers)
        assert node.terminated == [(1, (view.pid,))]
        # Also where MPS does not let it go.
        assert not is_running(view.pid)


@in_loop
async def test_another_process_makes_no_replica_ready(node: Node) -> None:
    """The worker never listens; a stranger does, on the very port, and says that it is ready."""
    node.arguments = ("--no-listen",)
    async with node.workers() as workers:
        await workers.start(a_launch())
        port = int(the(workers).url.rpartition(":")[2])
        stranger = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(WORKER), "--port", str(port)
        )
        try:
            await until(lambda: "another process" in the(workers).message)
            assert the(workers).state == "starting"
        finally:
            stranger.kill()
            await stranger.wait()


@in_loop
async def test_warm_up_and_proof_come_before_traffic(node: Node) -> None:
    path = "/v2/models/{service}/infer"
    node.warm_up = WarmUp(path=path, body='{"b": {batch}}', requests=2)
    async with node.workers() as workers:
        view = await started(workers)
        # a_replica has batch 4 and service chat.
        asked = ['POST /v2/models/chat/infer {"b": 4}'] * 2
        assert (await status(view))["seen"] == asked
    proof = Proof(id="r1", gpu_index=1, sm_percent=50.0, sm_count=66, pids=(view.pid,))
    assert node.proofs == [proof]


@pytest.mark.parametrize(
    ("arguments", "objection", "words"),
    [
        (("--refuse", "/warm"), "", "answers 500"),
        ((), "it sees all 132 SMs: it is not under MPS", "not under MPS"),
    ],
)
@in_loop
async def test_without_warm_up_or_proof_a_replica_gets_no_traffic(
    node: Node, arguments: tuple[str, ...], objection: str, words: str
) -> None:
    node.arguments, node.objection = arguments, objection
    node.warm_up = WarmUp(path="/warm", body="{}")
    async with node.workers() as workers:
        view = await started(workers, state="failed")
        assert words in view.message
        assert not is_running(view.pid)


@in_loop
async def test_a_batch_changes_live_and_the_record_knows(node: Node) -> None:
    async with node.workers(keep=True) as workers:
        view = await started(workers)
        # The second time it is in force, and the server is not asked again.
        for _ in range(2):
            assert await workers.set_batch("r1", 16) == "applied_live"
            assert (await status(view))["seen"] == ['PUT /batch {"batch": 16}']
    async with node.workers() as workers:
        assert the(workers).batch == 16


@in_loop
async def test_a_template_may_ask_for_a_restart_instead(node: Node) -> None:
    node.batch_change = "restart"
    async with node.workers() as workers:
        await started(workers)
        assert await workers.set_batch("r1", 16) == "needs_restart"
        assert the(workers).batch == 4


@in_loop
async def test_a_reload_takes_the_replica_out_meanwhile(node: Node) -> None:
    node.batch_change = "reload"
    async with node.workers() as workers:
        view = await started(workers)
        assert await workers.set_batch("r1", 16) == "reloading"
        assert the(workers).state == "starting"
        await until(lambda: the(workers).state == "ready")
        assert (the(workers).batch, the(workers).pid) == (16, view.pid)


@in_loop
async def test_a_server_is_told_to_drain_where_the_template_says_so_once_it_is_stopped(
    node: Node,
) -> None:
    node.drain, node.arguments, node.grace_s = "server", ("--hang",), PATIENCE_S
    async with node.workers() as workers:
        view = await started(workers)
        await workers.drain("r1")
        node.now_s += 7.0
        assert the(workers).draining_s == 7.0
        await workers.drain("r1")
        assert the(workers).draining_s == 7.0, "draining again does not begin again"
        # What the router sent before may reach it only now, and would be refused.
        assert (await status(view))["seen"] == []
        await workers.stop("r1")

        async def is_told() -> bool:
            return (await status(view))["seen"] == ["PUT /drain"]

        await until(is_told)
        os.kill(view.pid, signal.SIGKILL)
        await gone(workers)


@in_loop
async def test_a_server_that_never_took_requests_is_not_told_to_drain(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.drain, node.arguments = "server", ("--no-listen",)
    async with node.workers() as workers:
        await workers.start(a_launch())
        await workers.stop("r1")
        await gone(workers)
    assert "could not be told" not in caplog.text


@in_loop
async def test_a_replica_that_dies_again_and_again_waits(node: Node) -> None:
    async with node.workers() as workers:
        for _ in range(Crashes.LOOP):
            view = await started(workers)
            os.kill(view.pid, signal.SIGKILL)
            await until(lambda: the(workers).state == "failed")
            message = the(workers).message
            await workers.stop("r1")
        assert message.startswith(
            "crash loop: 3 failures in 10 minutes, not before 10 s"
        )
        with pytest.raises(LaunchFailed, match="crash loop and waits another 10 s"):
            await workers.start(a_launch())
        node.now_s += 10.0
        await started(workers)


def test_crash_loops_wait_longer_each_time_and_are_forgotten_after_a_window() -> None:
    now_s = 0.0
    crashes = Crashes(now_s=lambda: now_s)
    assert [crashes.note("r1") for _ in range(2)] == ["", ""]
    waits = []
    for _ in range(7):
        crashes.note("r1")
        waits.append(crashes.hold_s("r1"))
    # 10 s from the third failure, doubling: 10 · 2^5 = 320 is above the longest, 300.
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    assert crashes.hold_s("r2") == 0.0
    now_s = 299.0
    assert crashes.hold_s("r1") == 1.0
    now_s = 601.0
    assert crashes.hold_s("r1") == 0.0 and crashes.note("r1") == ""
