"""The two ends of the pipe between the API and the controller."""

import asyncio
from multiprocessing import Pipe

import pytest

from app.base.errors import PlimsollError
from app.serve.child_process import follow


def test_the_end_of_the_controller_is_told_without_a_traceback() -> None:
    """A PlimsollError: the command shows its text alone."""

    async def ended() -> None:
        ours, theirs = Pipe()
        theirs.close()
        await follow(ours, lambda _: None)

    with pytest.raises(PlimsollError, match="process ended; start again"):
        asyncio.run(ended())
