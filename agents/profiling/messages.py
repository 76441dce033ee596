"""What a profiler and its benches say to each other: one JSON object per line.

    bench     ──▶ Ready                        once, when its network is loaded
    profiler  ──▶ Load(rows, warm_up)          ──▶ Loaded
              ──▶ Window(start_s, window_s)    ──▶ Timed
              ──▶ Unload                       ──▶ Unloaded
              ──▶ Exit                         ──▶ (it ends)
    or instead of any answer                   ──▶ Failed

When its standard input ends, whatever it does, a bench ends too.
"""

from typing import TypeAlias

import msgspec

MAX_LINE = 16 * 1024 * 1024
MAX_BATCHES = 200_000
"""Batches of a window that are told; 12 bytes each."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The network is loaded."""

    pid: int
    device: str
    sm_count: int | None
    """Multiprocessors that the process sees; None: no GPU."""


class LoadBatch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Take another batch and warm up."""

    rows: int
    warm_up: int
    """Batches, at least 1; the first of them may tune and allocate."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Warm."""

    batch_ms: float
    """Time of the last batch of the warm-up."""
    memory_mib: float | None
    """What the engine holds for this batch; None: not known."""


class RunWindow(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Run batches one after the other."""

    start_s: float
    """By the machine's monotonic clock, which all processes share."""
    window_s: float
    skip_s: float
    """Batches that begin before `start_s + skip_s` run and do not count."""


class Timed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The batches that ran wholly within the window."""

    latencies_ms: tuple[float, ...]


class UnloadBatch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Give back what the batch takes: others are measured now."""


class Unloaded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Only the network is held, until the next load."""


class Exit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It could not be done."""

    problem: str
    is_lost: bool = False
    """The process is of no further use."""


Order: TypeAlias = LoadBatch | RunWindow | UnloadBatch | Exit
Answer: TypeAlias = Ready | Loaded | Timed | Unloaded | Failed
