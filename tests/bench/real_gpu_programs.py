"""The processes of a rehearsal on the fake MPS; as a program, one of them or the command itself.

    python real_gpu_programs.py run WORDS       python -m bench.real_gpu WORDS, with the processes below
    python real_gpu_programs.py client          asks a fake CUDA: joins the fake MPS, keeps its limit, works
    python real_gpu_programs.py bench WORDS     the scripts' bench, as a client of the fake MPS

What a test wants to go wrong stands in REHEARSAL: `outside` lets clients miss MPS, `no-limit` lets them have any
memory, `deaf` keeps a terminated client at work.
"""

import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.real_gpu.client import CudaFailed  # noqa: E402
from tests.agents.fakes.mps_client import join  # noqa: E402

SMS = 132
FAKES = ROOT / "tests" / "agents" / "fakes"
WISHES = os.environ.get("REHEARSAL", "").split(",")


class FakeCuda:
    """A client of the fake MPS."""

    def __init__(self) -> None:
        self.client = join(SMS, environment={} if "outside" in WISHES else os.environ)

    def sm_count(self) -> int:
        return self.client.sms

    def take(self, limit_mib: int) -> int:
        """By the limit `0=2048M`."""
        limit = self.client.limit.removeprefix("0=").removesuffix("M")
        return (
            limit_mib
            if not limit or "no-limit" in WISHES
            else min(limit_mib, int(limit))
        )

    def work(self) -> None:
        time.sleep(0.01)
        if (code := self.client.error()) and "deaf" not in WISHES:
            raise CudaFailed(code, "cuCtxSynchronize")


def main(role: str, words: list[str]) -> int:
    """Entry point."""
    if role == "client":
        from bench.real_gpu.client import main as client

        return client(FakeCuda)
    if role == "bench":
        from bench.real_gpu.bench import main as bench

        client_of_mps = join(SMS)
        assert client_of_mps.sms <= SMS
        return bench(words)
    from bench.real_gpu.commands import main as run
    from bench.real_gpu.run import Programs

    own = (sys.executable, __file__)
    worker = (sys.executable, str(FAKES / "mps_worker.py"))
    return run(
        words, Programs(client=(*own, "client"), bench=(*own, "bench"), worker=worker)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
