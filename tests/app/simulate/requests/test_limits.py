"""What a simulation that was asked for over HTTP may take from the control plane's machine."""

import json
import os
import subprocess
import sys

import pytest

from app.simulate.requests.run import MAX_MEMORY_BYTES

pytestmark = pytest.mark.integration

SHOWN = """
import json, os, resource, sys
from pathlib import Path
from app.simulate.requests import run, runner

class Pipe:
    send = staticmethod(lambda said: print(json.dumps(said)))

def shown(*_given):
    try:
        bytearray(8 << 30)
    except MemoryError:
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        return [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), *limits]

run.run_simulation = shown
runner._work(Pipe, {}, Path("."))
"""


def test_it_has_its_memory_and_a_core_that_nothing_else_wants() -> None:
    said = subprocess.run(
        [sys.executable, "-c", SHOWN], check=True, capture_output=True, text=True
    )
    scheduler, niceness, *limits = json.loads(said.stdout)
    assert limits == [MAX_MEMORY_BYTES, MAX_MEMORY_BYTES] == [4 << 30, 4 << 30]
    assert scheduler == os.SCHED_IDLE or niceness == 19
