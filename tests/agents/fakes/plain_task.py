"""A task's program that knows nothing of hooks: it writes how far it is into a file, and goes on from there.

`python plain_task.py FILE ITERATIONS STEP_S [fail]`: with `fail` it ends with exit code 3 after its first iteration.
Its last one does not end while the file TASK_HOLD is there.
"""

import json
import os
import sys
import time
from pathlib import Path

file, iterations, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
done = int(json.loads(file.read_text())["done_iterations"]) if file.exists() else 0
while done < iterations:
    time.sleep(step_s)
    while done + 1 == iterations and Path(os.environ["TASK_HOLD"]).exists():
        time.sleep(0.01)
    done += 1
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps({"done_iterations": done}))
    fresh.replace(file)
    if "fail" in sys.argv:
        sys.stderr.write("no more wool\n")
        sys.exit(3)
