"""Our own worker under the fake MPS: joins the server that its environment names, then serves.

`python mps_worker.py --outside ...`: it does not join, as a process that missed MPS.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from agents.serving.arguments import main
from tests.agents.fakes.mps_client import join

SMS = 132

if __name__ == "__main__":
    words = [*sys.argv[1:], "--fake-sms", str(SMS)]
    if words[0] == "--outside":
        # Its CUDA would see all SMs.
        del words[0], os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]
    else:
        client = join(SMS)
    sys.exit(main(words))
