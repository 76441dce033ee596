"""Kills a node's agent a thousand times at moments that a seed chose, and says what was wrong after any of them.

    python -m bench.kills --kills 1000

The agent is a process with the real NVML binding on a fake driver and the fake MPS; its replicas are
processes, which go on when it dies. Some kills come while it starts, the others within 1.5 s of a command for another
share and clock. Wrong is: a worker that lives without a record (an orphan, or one of two), a replica told twice, a
clock or power limit that is turned and not in the journal. `restored` says whether `plimsoll-agent restore` put
everything back after the last kill. The exit code is 1 when anything was wrong.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from bench.report import Figures, print_table, write_results
from tests.agents.fakes.nvml.fake_gpus import build_library
from tests.integration.killing import DEFAULT_LIMIT_MW, Killing
from tests.integration.test_gpu_agent import locked_mhz, machine

KILLS, SEED = 1000, 7
TOLD_EVERY = 50
MAX_SHOWN = 50


async def measure(kills: int, seed: int, limit_s: float) -> tuple[Figures, list[str]]:
    """The row, and the violations in words; fewer kills where the time is over before."""
    with tempfile.TemporaryDirectory(prefix="kills") as name:
        directory = Path(name)
        async with machine(directory, build_library(directory / "library")) as (
            node,
            plane,
        ):
            killing, begun_s = (
                Killing(node=node, plane=plane, draw=Random(seed)),
                time.monotonic(),
            )
            while killing.kills < kills and time.monotonic() - begun_s < limit_s:
                await killing.once()
                if killing.kills % TOLD_EVERY == 0:
                    print(
                        f"{killing.kills} kills, {len(killing.violations)} violations",
                        file=sys.stderr,
                        flush=True,
                    )
            await killing.end()
            seconds = time.monotonic() - begun_s
            node.restore()
            is_restored = (locked_mhz(node.gpus), node.gpus.gpu(0).power_limit) == (
                0,
                DEFAULT_LIMIT_MW,
            )
    row: Figures = {
        "kills": killing.kills,
        "early": killing.early,
        "seconds": seconds,
        "violations": len(killing.violations),
        "restored": is_restored,
    }
    return row, killing.violations


def main() -> int:
    """Kill, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.kills",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--kills", type=int, default=KILLS, help="how often (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=SEED, help="of the moments (default: %(default)s)"
    )
    parser.add_argument(
        "--limit-s",
        type=float,
        default=3600.0,
        help="no kills after so long (default: %(default)s)",
    )
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    row, violations = asyncio.run(measure(options.kills, options.seed, options.limit_s))
    print_table([row])
    for each in violations[:MAX_SHOWN]:
        print(each)
    if not options.dry:
        settings = {
            "seed": options.seed,
            "violations": "; ".join(violations[:MAX_SHOWN]),
        }
        write_results("kills", [row], settings=settings)
    return 1 if violations or not row["restored"] else 0


if __name__ == "__main__":
    sys.exit(main())
