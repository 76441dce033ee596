"""Replicas that run and serve no more: hung ones are ended in the safe order, busy ones are left alone."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.agents.fakes.replicas import Node, a_launch, in_loop, started, the, until

pytestmark = pytest.mark.integration

SOON_S = 0.6
"""Six questions, 0.1 s each."""


@in_loop
async def test_one_that_answers_nothing_is_ended(tmp_path: Path) -> None:
    # Two answers are those that its start takes: ready, and its SMs.
    node = Node(
        directory=tmp_path / "workers",
        arguments=("--mute-after", "2"),
        hung_after_s=SOON_S,
    )
    async with node.workers() as workers:
        view = await started(workers)
        await until(lambda: the(workers).state == "failed")
        assert (
            "it hung: its server answered none of 6 questions in 0.6 s"
            in the(workers).message
        )
        assert not psutil.pid_exists(view.pid)
        assert (
            node.terminated == []
        )  # SIGTERM was enough, so that nobody had to let go of it
        await workers.stop("r1")
        await workers.start(a_launch("r1"))
        await until(lambda: the(workers).state == "ready")


@in_loop
async def test_mps_lets_go_of_one_that_hangs(tmp_path: Path) -> None:
    node = Node(directory=tmp_path / "workers", grace_s=0.2, hung_after_s=SOON_S)
    async with node.workers() as workers:
        view = await started(workers)
        os.kill(view.pid, signal.SIGSTOP)
        await until(lambda: the(workers).state == "failed")
        assert "it hung" in the(workers).message
        assert node.terminated == [(1, (view.pid,))]
        assert not psutil.pid_exists(view.pid)


@pytest.mark.parametrize(
    ("arguments", "hung_after_s", "wakes"),
    [
        # Each answer takes 0.15 of the 0.3 s that a question has.
        pytest.param(("--slow-s", "0.15"), 1.8, 110, marks=pytest.mark.thorough),
        (("--refuse-after", "2"), SOON_S, 60),
    ],
)
@in_loop
async def test_one_that_answers_late_or_no_is_not_hung(
    tmp_path: Path, arguments: tuple[str, ...], hung_after_s: float, wakes: int
) -> None:
    node = Node(
        directory=tmp_path / "workers", arguments=arguments, hung_after_s=hung_after_s
    )
    async with node.workers() as workers:
        view = await started(workers)
        asked = psutil.Process(view.pid)
        before = asked.num_ctx_switches().voluntary
        # Long enough for more than six questions: each wakes the process, apart from its own look every 0.02 s.
        await until(lambda: asked.num_ctx_switches().voluntary > before + wakes)
        assert (the(workers).state, the(workers).pid) == ("ready", view.pid)
