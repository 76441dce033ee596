"""Replicas that run and serve no more: hung ones are ended in the safe order, busy ones are left alone."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.agents.fakes.replicas import Node, a_launch, in_loop, started, the, until
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

SOON_S = 0.6
"""Six questions, 0.1 s each."""


@in_loop
async def test_one_that_answers_nothing_is_ended(tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    node = Node(
        directory=tmp_path / "workers",
        arguments=("--mute-file", str(mute)),
        grace_s=PATIENCE_S,
        hung_after_s=SOON_S,
    )
    async with node.workers() as workers:
        view = await started(workers)
        mute.touch()
        await until(lambda: the(workers).state == "failed")
        assert (
            "it hung: its server answered none of 6 questions in 0.6 s"
            in the(workers).message
        )
        assert not psutil.pid_exists(view.pid)
        assert (
            node.terminated == []
        )  # SIGTERM was enough, so that nothing had to release it
        mute.unlink()
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


class Hasty(Node):
    """By its clock an answer took all the time that a question has, so that the next one comes at once."""

    def clock(self) -> float:
        self.now_s += self.hung_after_s
        return self.now_s


@in_loop
async def test_one_that_answers_no_is_not_hung(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ready.touch()
    node = Hasty(
        directory=tmp_path / "workers",
        arguments=("--ready-file", str(ready)),
        # A test's whole patience for each question.
        hung_after_s=6.0 * PATIENCE_S,
    )
    async with node.workers() as workers:
        view = await started(workers)
        ready.unlink()
        changes: list[str] = []
        workers.on_change = lambda: changes.extend(
            each.state for each in workers.replicas()
        )
        # More than six questions, at each of which the clock is looked at twice.
        enough_s = node.now_s + 2.0 * 7.0 * node.hung_after_s
        await until(lambda: changes or node.now_s > enough_s)
        assert changes == []
        assert (the(workers).state, the(workers).pid) == ("ready", view.pid)
