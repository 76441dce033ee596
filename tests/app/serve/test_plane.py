"""What the API's process and the controller's share."""

import subprocess
import sys

PROGRAM = """
import gc
from app.serve.plane import freeze_loaded_objects

tracked = len(gc.get_objects())
freeze_loaded_objects()
assert gc.get_freeze_count() > 0.9 * tracked
assert len(gc.get_objects()) < 0.1 * tracked
"""


def test_what_is_loaded_is_not_looked_at_again_by_garbage_collections() -> None:
    # In a process of its own: here it would keep the garbage of all other tests.
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
