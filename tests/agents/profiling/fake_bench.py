"""A bench whose batches take known times, under the fake MPS; as a template's program.

`python fake_bench.py -m agents.profiling OPTIONS`. A batch of n rows at share p takes

    (2 + n) · 100 / p ms, half as much more for each other bench that holds a batch

by a clock that moves by batches and by waits for a window, so that no load of the machine shows in a time. Its engine
holds 100 + n MiB; more than 64 rows do not fit. FAKE_DIRECTORY, from the template, is where benches see each other:
PID.up since it was started, PID.holding as long as it holds a batch. Other files make a bench misbehave:

    outside     it does not join MPS          hang.N      a batch of N rows does not end while the file is there
    broken      it does not come up           lost        the first batch of 7 rows ends the process
    crowded     no batch fits while more than one is up
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from agents.profiling import bench
from agents.serving.engines.engine import DeviceFacts, Signature
from agents.serving.engines.errors import EngineFailed
from agents.serving.engines.tensors import Tensors
from tests.agents.fakes.mps_client import join

SMS = 132
MAX_ROWS = 64


class Clock:
    """The machine's when it begins, then behind or ahead."""

    def __init__(self) -> None:
        self.at_s = time.monotonic()

    def now_s(self) -> float:
        return self.at_s

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds


class FakeEngine:
    platform = "fake"

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory, self.clock = directory, clock
        self.percent = float(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"))
        self.rows = 0
        self.holding = directory / f"{os.getpid()}.holding"
        is_outside = (directory / "outside").exists() and self.percent < 100.0
        self.client = None if is_outside else join(SMS)
        self.sms = SMS if self.client is None else self.client.sms

    def load(self) -> Signature:
        (self.directory / f"{os.getpid()}.up").touch()
        if (self.directory / "broken").exists():
            raise EngineFailed("the network is broken")
        return Signature()

    def warm_up(self, batch: int) -> None:
        self.rows = batch

    def run(self, inputs: Tensors) -> Tensors:
        self.rows = inputs[0].rows
        self.holding.touch()
        is_crowded = (self.directory / "crowded").exists() and self._count("up") > 1
        if self.rows > MAX_ROWS or is_crowded:
            raise EngineFailed(f"{self.rows} rows do not fit into memory")
        if self.rows == 7 and (self.directory / "lost").exists():
            (self.directory / "lost").unlink()
            os._exit(3)
        while (self.directory / f"hang.{self.rows}").exists():
            time.sleep(0.05)
        others = self._count("holding") - 1
        self.clock.sleep((2 + self.rows) / 10.0 / self.percent * (1.0 + 0.5 * others))
        return inputs

    def _count(self, state: str) -> int:
        return len(list(self.directory.glob(f"*.{state}")))

    def facts(self) -> DeviceFacts:
        return DeviceFacts(
            device="fake:0", sm_count=self.sms, memory_mib=100.0 + self.rows
        )

    def offload(self) -> None:
        self.rows = 0
        self.holding.unlink(missing_ok=True)

    def resume(self) -> None:
        pass


if __name__ == "__main__":
    place = Path(os.environ["FAKE_DIRECTORY"])
    clock = Clock()
    bench.time = clock  # type: ignore[assignment, attr-defined]
    try:
        code = bench.main(
            sys.argv[3:], lambda *_: FakeEngine(place, clock), clock.now_s
        )
    finally:
        for state in ("up", "holding"):
            (place / f"{os.getpid()}.{state}").unlink(missing_ok=True)
    sys.exit(code)
