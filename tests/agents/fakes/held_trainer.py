"""Our trainer, whose last iteration does not end while the file TASK_HOLD is there."""

import argparse
import os
import sys
import time
from pathlib import Path
from unittest.mock import patch

from agents.trainer import trainer


class HeldWork(trainer.TimedWork):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self._left = options.iterations - self.start_iterations

    def step(self) -> None:
        super().step()
        self._left -= 1
        while self._left == 0 and Path(os.environ["TASK_HOLD"]).exists():
            time.sleep(0.01)


if __name__ == "__main__":
    with patch.object(trainer, "TimedWork", HeldWork):
        sys.exit(trainer.main())
