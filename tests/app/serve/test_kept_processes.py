"""Programs that are kept: started again where they end, and ended with the block."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from unittest.mock import patch

import psutil

from app.serve.kept_processes import end_processes, kept_processes
from tests.waiting import eventually, run

NOTES_ITS_ID = """
import os, signal, sys
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()}\\n")
signal.pause()
"""
LAGGARD = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
signal.pause()
"""


def test_a_program_that_is_killed_is_started_again_and_ends_with_the_block(
    tmp_path: Path,
) -> None:
    notes = tmp_path / "notes"
    notes.touch()

    def started() -> list[int]:
        return [int(line) for line in notes.read_text().split()]

    async def keep() -> None:
        command = [sys.executable, "-c", NOTES_ITS_ID, str(notes)]
        async with kept_processes({"noter": command}):
            for times in (1, 2):
                await eventually(lambda times=times: len(started()) == times)  # type: ignore[misc]
                psutil.Process(started()[-1]).kill()
            await eventually(lambda: len(started()) == 3)
        assert not psutil.pid_exists(started()[-1])
        assert len(started()) == 3

    run(keep())


def test_processes_that_do_not_end_are_killed_within_one_limit_for_all() -> None:
    async def laggard() -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", LAGGARD, stdout=PIPE
        )
        assert process.stdout is not None
        await process.stdout.readline()
        return process

    async def end() -> None:
        laggards = [await laggard() for _ in range(4)]
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with patch.object(loop, "call_later", wraps=loop.call_later) as timers:
            await end_processes(laggards, limit_s=1.0)
        assert loop.time() - began_s >= 1.0
        # One after the other they would take four.
        assert [each.args[0] for each in timers.call_args_list] == [1.0]
        assert [each.returncode for each in laggards] == [-signal.SIGKILL] * 4

    run(end())


def test_a_process_that_ends_is_not_waited_for() -> None:
    async def end() -> int | None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import signal; signal.pause()"
        )
        await end_processes([process], limit_s=600.0)
        return process.returncode

    assert asyncio.run(end()) == -signal.SIGTERM
