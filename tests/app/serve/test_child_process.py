"""The two ends of the pipe between the API and the controller."""

import asyncio
import signal
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from app.base.errors import PlimsollError
from app.serve import child_process as module
from app.serve.child_process import ChildEnded, child_process, follow
from tests.waiting import eventually, run


def test_the_end_of_the_controller_is_told_without_a_traceback() -> None:
    """A PlimsollError: the command shows its text alone."""

    async def ended() -> None:
        ours, theirs = Pipe()
        theirs.close()
        await follow(ours, lambda _: None, what="controller")

    with pytest.raises(PlimsollError, match="process ended; start again"):
        asyncio.run(ended())


def tell_what_interrupts(pipe: Connection) -> None:
    pipe.send(signal.getsignal(signal.SIGINT))


def test_an_interrupt_reaches_the_parent_alone_while_the_controller_starts() -> None:
    """A terminal sends Ctrl-C to both; the pipe tells the controller."""
    told: list[object] = []

    async def started() -> None:
        async with child_process(
            tell_what_interrupts, told.append, what="controller"
        ) as ended:
            await ended

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ChildEnded):
        asyncio.run(started())
    assert told == [signal.SIG_IGN]
    assert signal.getsignal(signal.SIGINT) is before


def loads_for_ever(pipe: Connection) -> None:
    pipe.send("loading")
    # As a process that imports: it does not look at its pipe.
    signal.pause()


def test_a_child_that_still_loads_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Longer than the patience of this.
    monkeypatch.setattr(module, "STOP_S", 1e6)
    told: list[object] = []

    async def stopped() -> None:
        async with child_process(loads_for_ever, told.append, what="loader"):
            await eventually(lambda: told)

    run(stopped())
