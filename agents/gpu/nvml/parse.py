"""What NVML's raw lists mean: the parts of reading a GPU that need no driver."""

from collections.abc import Iterable, Mapping

from agents.base.device import NotSupported, OutOfRange
from agents.gpu.nvml.types import GpuProcess, ProcessUse

CLOCK_STEP_MHZ = 15.0
"""The step of all GPUs since Volta."""
_BYTES_PER_MIB = 1024.0 * 1024.0
_MAX_PID = 1 << 22
"""Linux' largest; more means that this driver lays its list out in another way than the binding reads it."""


def join_processes(
    running: Mapping[int, int | None], clients: Mapping[int, int | None]
) -> tuple[GpuProcess, ...]:
    """All processes by PID, from bytes by PID: of everybody, and of MPS clients, whom some drivers list apart.

    Raises NotSupported where the PIDs cannot be PIDs.
    """
    # A process may be on both lists; then the entry of the clients' list counts.
    found = {**running, **clients}
    if any(not 0 < pid < _MAX_PID for pid in found):
        raise NotSupported(
            "the driver's list of processes has another layout: use another driver or nvidia-ml-py"
        )
    return tuple(
        GpuProcess(
            pid=pid,
            memory_mib=None if used is None else used / _BYTES_PER_MIB,
            is_mps=pid in clients,
        )
        for pid, used in sorted(found.items())
    )


def newest_use(samples: Iterable[tuple[int, int, int]]) -> tuple[ProcessUse, ...]:
    """The newest sample of each process, by PID; from (time, PID, percent of SMs) in any order."""
    # Sorted by time, so that a later sample of a process replaces the earlier one.
    newest = {pid: (percent, at_us) for at_us, pid, percent in sorted(samples)}
    return tuple(
        ProcessUse(pid=pid, sm_percent=float(percent), at_us=at_us)
        for pid, (percent, at_us) in sorted(newest.items())
    )


def upper_clocks_mhz(highest_mhz: float) -> tuple[float, ...]:
    """Clocks of GPUs that list none (some consumer and virtual ones): every step from half of the highest up."""
    steps = int(highest_mhz / 2.0 / CLOCK_STEP_MHZ)
    return tuple(highest_mhz - CLOCK_STEP_MHZ * below for below in range(steps, -1, -1))


def to_unsigned(number: float) -> int:
    """The nearest whole number, for NVML's unsigned arguments; raises OutOfRange where they do not hold it."""
    if not 0.0 <= number < 2**31:
        raise OutOfRange(f"{number:g} is no value for a knob: give a positive number")
    return round(number)


def sms(cores: int, compute_capability: tuple[int, int]) -> int:
    """SMs of a GPU by its CUDA cores: 64 per SM on V100, T4 and A100, 128 on 8.6 and everything since."""
    # NVML reports CUDA cores, but not SMs.
    return cores // (
        64 if tuple(compute_capability) in ((7, 0), (7, 2), (7, 5), (8, 0)) else 128
    )
