"""What sharing a GPU can win on Morak's own board, per network and latency limit: its figure 6, network by network.

A network alone runs the largest throughput that any batch within the limit has. Shared, n replicas of it run a batch b
each: together they do as much as `min(n, gain(b))` would that disturb none, and each batch takes as much longer as
the replicas hold each other up:

    throughput = min(n, gain(b)) · b / t(b)        time of a batch = n / min(n, gain(b)) · t(b) <= limit

t(b) is measured on an RTX 2080 Ti by gpu-lets, times one factor for all networks that makes GoogLeNet take the 38.4 ms
at batch 64 that Morak states; gain(b) is 1 / utilisation (gpu-lets', the larger of SMs and memory), times 0.654, so
that GoogLeNet reaches the 1,860 over 1,600 requests a second that Morak states. So levels are scaled, and no policy
runs here: it is the most that any could win by sharing alone.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.papers.table import Row, Table

LIMITS_MS = (5.0, 7.0, 10.0, 13.0, 18.0, 25.0, 35.0, 50.0, 70.0, 100.0)
HALF_MS = tuple(0.5 * step for step in range(6, 201))
"""Limits of 3 to 100 ms, among which the longest with the stated gain is looked for."""
MIN_GAIN = 67.7
"""Percent that Morak states over its best baseline."""
_TABLE = Path(__file__).with_name("data") / "morak_2080ti.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBatch:
    """One batch size of one network."""

    batch: int
    alone_ms: float
    gain: float
    """Throughput of enough replicas at once over that of one."""

    @property
    def alone_rps(self) -> float:
        """Of one replica with the GPU for itself."""
        return 1000.0 * self.batch / self.alone_ms

    def shared_rps(self, limit_ms: float) -> float:
        """The most that replicas of this batch do within the limit; 0 where not even one keeps it."""
        # One more than the gain gives does nothing more, and makes batches longer.
        counts = range(1, math.ceil(self.gain) + 1)
        return max(
            (
                min(count, self.gain) * self.alone_rps
                for count in counts
                if count / min(count, self.gain) * self.alone_ms <= limit_ms
            ),
            default=0.0,
        )


@cache
def shared_batches() -> Mapping[str, Sequence[SharedBatch]]:
    """By network, in the table's order."""
    found: dict[str, list[SharedBatch]] = {}
    for row in csv.DictReader(_TABLE.read_text().splitlines()):
        found.setdefault(row["network"], []).append(
            SharedBatch(
                batch=int(row["batch"]),
                alone_ms=float(row["latency_ms"]),
                gain=float(row["sharing_gain"]),
            )
        )
    return found


def gain_percent(batches: Sequence[SharedBatch], limit_ms: float) -> float | None:
    """What sharing adds to the best batch alone within the limit; None where no batch keeps it."""
    alone = [each.alone_rps for each in batches if each.alone_ms <= limit_ms]
    if not alone:
        return None
    shared = max(each.shared_rps(limit_ms) for each in batches)
    return 100.0 * (shared / max(alone) - 1.0)


def longest_ms(batches: Sequence[SharedBatch]) -> float:
    """The longest limit up to 100 ms at which sharing wins what the paper states; 0 where it does at none."""
    gains = {limit: gain_percent(batches, limit) for limit in HALF_MS}
    enough = [limit for limit, gain in gains.items() if (gain or 0.0) >= MIN_GAIN]
    return max(enough, default=0.0)


def sharing_table() -> Table:
    """Gains by network and limit, and up to which limit each network gains what the paper states."""
    rows = []
    for network, batches in shared_batches().items():
        rows += [
            _row(f"{network}: gain at {limit:g} ms, %", gain)
            for limit in LIMITS_MS
            if (gain := gain_percent(batches, limit)) is not None
        ]
        figure = f"{network}: longest limit with {MIN_GAIN:g} % (0 = none), ms"
        rows.append(_row(figure, longest_ms(batches)))
    return Table(
        system="Morak",
        title="what sharing alone can win on an RTX 2080 Ti, by latency limit (figure 6)",
        scenario="bench/papers/morak_sharing.py",
        seeds=(0,),
        rows=tuple(rows),
        notes=(
            "At 100 ms all but the largest batches fit, and a full batch leaves little to share: the paper's own text "
            "has 16 % of GoogLeNet there. Its 67.7 % are over baselines that stand elsewhere than at their best point.",
        ),
    )


def _row(figure: str, value: float) -> Row:
    return Row(
        figure=figure, policy="any sharing", paper=None, values=(value,), truth="scaled"
    )
