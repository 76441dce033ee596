"""How many multiprocessors this process may use, and which share it was started with.

Under MPS the CUDA attribute shows the capped number and never changes in a process: comparing it with the GPU's full
number proves that a limit is in force. Source: NVIDIA, Multi-Process Service guide; CUDA driver API,
CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16.
"""

import ctypes
from collections.abc import Mapping

from agents.base.device import LaunchFailed

MULTIPROCESSOR_COUNT = 16
NO_DEVICE = 100
SHARE_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def driver_sm_count(library: str = "libcuda.so.1") -> int | None:
    """Multiprocessors of the first visible GPU, asked of the CUDA driver; None without a driver or GPU.

    Raises LaunchFailed where a driver is there and refuses.
    """
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return None
    if (code := cuda.cuInit(0)) == NO_DEVICE:
        return None
    _check("cuInit", code)
    device = ctypes.c_int()
    count = ctypes.c_int()
    _check("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0))
    _check(
        "cuDeviceGetAttribute",
        cuda.cuDeviceGetAttribute(ctypes.byref(count), MULTIPROCESSOR_COUNT, device),
    )
    return count.value


def sm_percent_of(environment: Mapping[str, str]) -> float | None:
    """The share that the process was started with; None = none was asked for. Raises LaunchFailed: not a share."""
    text = environment.get(SHARE_VARIABLE, "")
    if not text:
        return None
    try:
        percent = float(text)
    except ValueError:
        percent = 0.0
    if not 0.0 < percent <= 100.0:
        raise LaunchFailed(
            f"{SHARE_VARIABLE} is {text!r}; it must be above 0 and at most 100"
        )
    return percent


def _check(call: str, code: int) -> None:
    if code != 0:
        raise LaunchFailed(
            f"the CUDA driver answers error {code} to {call}; see its list of CUresult"
        )
