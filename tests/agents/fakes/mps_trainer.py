"""Our own trainer under the fake MPS: joins the server that its environment names, then works."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from agents.trainer.trainer import main
from tests.agents.fakes.mps_client import join

SMS = 132

if __name__ == "__main__":
    client = join(SMS)
    sys.exit(main([*sys.argv[1:], "--fake-sms", str(SMS)]))
