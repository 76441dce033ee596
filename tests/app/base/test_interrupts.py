"""A Ctrl-C while a child is being started: the child never hears of it, the parent does afterwards."""

import os
import signal
import subprocess
import sys

import pytest

from app.base.interrupts import interrupts_deferred

_BLOCKED = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"


def test_one_that_comes_meanwhile_comes_afterwards() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_deferred():
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("the end")
    assert reached == ["the end"]


def test_what_is_started_meanwhile_is_deaf() -> None:
    with interrupts_deferred():
        child = subprocess.run(
            [sys.executable, "-c", _BLOCKED], capture_output=True, check=True
        )
    assert b"SIGINT" in child.stdout
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
