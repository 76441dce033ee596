"""A timed engine: each row's sum as answer, after the time that a batch of that size was measured to take.

Times come from `batch:ms` points, straight lines between them: 1:5,8:12 gives 5 ms for a row, 12 for 8, 5 + 7·3/7 = 8
for 4. Beyond the last point the last line goes on; below the first it stays level.

It may act as a GPU under MPS as well: with N multiprocessors and a share of p percent it reports N·p/100, rounded down
to the hardware's steps of two, and as CUDA does all N of them where no control daemon can be reached.
"""

import bisect
import csv
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.base.device import LaunchFailed
from agents.serving.engines.engine import DeviceFacts, Signature
from agents.serving.engines.errors import EngineFailed
from agents.serving.engines.sm_count import sm_percent_of
from agents.serving.engines.tensors import (
    Tensor,
    Tensors,
    byte_count,
    numbers_of,
    pack_numbers,
)

SM_STEP = 2
"""Multiprocessors per step: one TPC."""
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
DEFAULT_PIPE = "nvidia-mps"


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """Execution time by rows."""

    points: tuple[tuple[int, float], ...]
    """(rows, ms), rows ascending, at least one."""

    def ms(self, rows: int) -> float:
        """Milliseconds that a batch of `rows` rows takes."""
        if len(self.points) == 1 or rows <= self.points[0][0]:
            return self.points[0][1]
        at = min(bisect.bisect_left(self.points, (rows,)), len(self.points) - 1)
        (low, low_ms), (high, high_ms) = self.points[at - 1], self.points[at]
        return max(0.0, low_ms + (high_ms - low_ms) * (rows - low) / (high - low))


def read_times(text: str) -> MeasuredTimes:
    """Times of `1:5,8:12`. Raises LaunchFailed."""
    pairs = [tuple(part.partition(":")[::2]) for part in text.split(",")]
    return _times(pairs, f"{text!r}")


def load_times(path: Path) -> MeasuredTimes:
    """Times of a CSV file with the columns batch and execution_ms. Raises LaunchFailed."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        pairs = [(row["batch"], row["execution_ms"]) for row in rows]
    except KeyError as error:
        raise LaunchFailed(
            f"{path} has no column {error}; it needs batch and execution_ms"
        ) from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LaunchFailed(f"{path} cannot be read: {error}") from error
    return _times(pairs, str(path))


def _times(pairs: Sequence[tuple[str, ...]], source: str) -> MeasuredTimes:
    try:
        points = tuple(sorted((int(rows), float(ms)) for rows, ms in pairs))
    except (ValueError, TypeError) as error:
        raise LaunchFailed(
            f"{source} are not times like 1:5,8:12 (rows:milliseconds): {error}"
        ) from error
    rows = [each for each, _ in points]
    if not points or rows[0] < 1 or len(set(rows)) < len(rows):
        raise LaunchFailed(
            f"{source}: each count of rows must be 1 or more and be named once, they are {rows}"
        )
    if not all(0.0 <= ms < 3_600_000.0 for _, ms in points):
        raise LaunchFailed(f"{source}: every time must be 0 to 3600000 ms")
    return MeasuredTimes(points)


@dataclass(slots=True, kw_only=True)
class TimedEngine:
    """Sleeps and sums."""

    times: MeasuredTimes
    sms: int | None = None
    """Multiprocessors of the fake GPU."""
    memory_mib: float = 0.0
    """What it claims to hold while it is not offloaded."""
    environment: Mapping[str, str]
    sleep: Callable[[float], None] = time.sleep
    platform: str = "plimsoll_timed"
    _is_offloaded: bool = False

    def load(self) -> Signature:
        sm_percent_of(self.environment)  # A wrong share must fail here, as CUDA would.
        return Signature()

    def warm_up(self, batch: int) -> None:
        self.sleep(self.times.ms(batch) / 1000.0)

    def run(self, inputs: Tensors) -> Tensors:
        if self._is_offloaded:
            raise EngineFailed("the timed engine is offloaded; resume it first")
        self.sleep(self.times.ms(inputs[0].rows) / 1000.0)
        return tuple(map(row_sums, inputs))

    def facts(self) -> DeviceFacts:
        memory_mib = 0.0 if self._is_offloaded else self.memory_mib
        if self.sms is None:
            return DeviceFacts(device="cpu", memory_mib=memory_mib)
        return DeviceFacts(
            device=f"timed:0 {self.sms} SMs",
            sm_count=self._granted(self.sms),
            memory_mib=memory_mib,
        )

    def offload(self) -> None:
        self._is_offloaded = True

    def resume(self) -> None:
        self._is_offloaded = False

    def _granted(self, sms: int) -> int:
        percent = sm_percent_of(self.environment)
        pipe = self.environment.get(PIPE_VARIABLE) or os.path.join(  # noqa: PTH118  joined as CUDA does
            self.environment.get("TMPDIR", "/tmp"), DEFAULT_PIPE
        )
        if percent is None or not Path(pipe, "control").exists():
            return sms
        return max(SM_STEP, int(sms * percent / 100.0) // SM_STEP * SM_STEP)


def row_sums(tensor: Tensor) -> Tensor:
    """Each row's sum."""
    values = numbers_of(tensor)
    length = byte_count("UINT8", tensor.shape[1:])
    # Summed slice by slice: a list of all numbers would take eight times the memory of the tensor.
    sums = [
        float(sum(values[start : start + length]))
        for start in range(0, len(values), length)
    ]
    return Tensor(
        name=tensor.name,
        datatype="FP32",
        shape=(tensor.rows,),
        data=pack_numbers("FP32", sums),
    )
