"""Processes that stand still while a command runs, and go on."""

import subprocess
import sys

import pytest

from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

UNTIL_STOPPED = """
import subprocess, sys
subprocess.run([sys.executable, "-c", '''
import time
before_s = time.monotonic()
while (now_s := time.monotonic()) - before_s < 0.25:
    before_s = now_s
    time.sleep(0.01)
print("stood still")
'''])
sys.exit(3)
"""


def test_a_command_whose_processes_were_stopped_ends_as_it_would_have() -> None:
    words = ("-m", "tools.stops", "--seed", "4", "--most-s", "0.4")
    found = subprocess.run(
        [sys.executable, *words, sys.executable, "-c", UNTIL_STOPPED],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (found.returncode, found.stdout) == (3, "stood still\n")
    assert found.stderr.endswith(" stops, seed 4\n")
