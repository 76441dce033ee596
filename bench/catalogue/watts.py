"""Watts that a replica adds to a GPU, from iGniter's 27 board-power readings on a V100.

Measured there (watts above idle): at 10, 50 and 100 % of the SMs a busy ResNet-50 adds 31.6, 133 and about 275 W
(the last one read off its 235 W at duty 0.80: at 100 % the 300 W limit binds). With batch 1 the same shares add 0.84,
0.50 and 0.34 of that at duties of 0.75, 0.44 and 0.24: watts = busy watts * (0.1 + 0.9 * duty) is within 4 points of
all three. Duty is the share of the time in which the kernels fill the SMs that the replica may use; a host-bound
network leaves them idle in between. For networks measured with PyTorch, which have no readings, this shape is used.
"""

from pathlib import Path

import numpy as np

from bench.catalogue.curves import FloatArray, Surface
from bench.catalogue.measured import rows

V100_IDLE_W = 53.5
V100_LIMIT_W = 300.0
CLOCK_EXPONENT = 2.5
"""Watts above idle grow as clock^2.5: faster than the clock, for the voltage falls with it; estimated."""

_SHARES = np.array([0.0, 10.0, 50.0, 100.0])
_BUSY_W = np.array([0.0, 31.6, 133.0, 275.0])


def read_watts(
    shared: Path, source_name: str
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Measured watts above idle of one iGniter network: shares (P,), batches (B,), watts (P, B)."""
    readings = {
        (float(row["sm_pct"]), float(row["batch"])): float(row["gpu_power_w"])
        - V100_IDLE_W
        for row in rows(shared / "igniter_v100" / "power_clock.csv")
        if row["model"] == source_name
    }
    shares = sorted({share for share, _ in readings})
    batches = sorted({batch for _, batch in readings})
    watts = np.array(
        [[readings[share, batch] for batch in batches] for share in shares]
    )
    return np.array(shares), np.array(batches), watts


def work_ms_per_item(surface: Surface) -> float:
    """Time of one item on a whole V100 if its kernels alone counted: the least latency * share / batch measured."""
    batches = np.array(surface.batches, dtype=float)[:, None]
    return float((surface.time_ms * surface.sm_percents / 100 / batches).min())


def busy_share_w(sm_percent: float, duty: float) -> float:
    """Watts above idle of a replica on a V100 at that duty, never beyond what the board's limit leaves."""
    busy_w = float(np.interp(sm_percent, _SHARES, _BUSY_W))
    return min(busy_w * (0.1 + 0.9 * min(duty, 1.0)), V100_LIMIT_W - V100_IDLE_W)


def interpolated_w(
    readings: tuple[FloatArray, FloatArray, FloatArray], sm_percent: float, batch: int
) -> float:
    """Measured watts, linear in share and batch, held up where the readings fall a little from batch 16 to 32."""
    shares, batches, watts = readings
    rising = np.maximum.accumulate(watts, axis=1)
    by_share = np.array([np.interp(batch, batches, line) for line in rising])
    return float(np.interp(sm_percent, shares, by_share))
