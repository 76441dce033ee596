"""What the API's process and the controller's share."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc
import os
from pathlib import Path
from app.serve.plane import settle_memory

PAGE = os.sysconf("SC_PAGE_SIZE")

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20

# From here on glibc itself would keep what is freed, up to blocks of this size.
large = bytearray(24 * 2**20)
del large
tracked = len(gc.get_objects())
settle_memory()
assert gc.get_freeze_count() > 0.9 * tracked
assert len(gc.get_objects()) < 0.1 * tracked
before = resident_mib()
blocks = [bytearray(2**18) for _ in range(120)]
blocks = blocks[-1:]
assert resident_mib() < before + 5.0, resident_mib() - before
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_garbage_collections_skip_what_is_loaded_and_large_blocks_go_back_when_freed() -> (
    None
):
    # In a process of its own: here it would keep the garbage of all other tests.
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
