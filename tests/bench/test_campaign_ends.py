"""SIGTERM ends the campaign in order: what a row started is ended, however often the signal comes."""

import signal
import subprocess
import sys

import pytest

from tests.waiting import PATIENCE_S

PROGRAM = """
import asyncio, sys
from bench.campaign import __main__ as campaign
from bench.campaign.outcome import Row

async def run(options):
    try:
        print("runs", flush=True)
        await asyncio.sleep(600.0)
    finally:
        print("ends", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print("has ended", flush=True)

campaign.ROWS = {name: Row(run=run, seconds=600.0) for name in ("first", "second")}
campaign.main(["--rows", "first,second"])
"""
"""Two rows, whose cleanup lasts until it is told to go on."""


@pytest.mark.thorough
def test_a_second_sigterm_does_not_interrupt_the_cleanup_and_no_other_row_begins() -> (
    None
):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        # The first line describes the machine.
        assert "runs\n" in [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "ends\n"
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate("go on\n", timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert rest == "has ended\n"
    assert process.returncode == 1
