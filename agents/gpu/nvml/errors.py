"""NVML's return codes as the errors of `agents.base.device`, typed once, and what an agent does about each.

    2 INVALID_ARGUMENT, 24 FREQ_NOT_SUPPORTED  OutOfRange   refuse the decision and name the range; no second try
    3 NOT_SUPPORTED, 13 FUNCTION_NOT_FOUND   NotSupported   the capability is off; plan without it
    21 NO_DATA, 22, 25, 26, 30               NotSupported   the same: no data, vGPU, versions that do not fit, gone
    4 NO_PERMISSION, 17 OPERATING_SYSTEM     NotPermitted   say what is missing; watch only
    6 NOT_FOUND, 28 GPU_NOT_FOUND            UnknownPart    (lists answer 6 when they are empty: no error there)
    1, 9, 12, 18                             NoDriver       start NVML again, at most every few seconds
    15 GPU_IS_LOST, 16 RESET_REQUIRED        GpuLost        unhealthy; an operator resets it
    19 IN_USE                                InUse          somebody works on the GPU: end that first
    23 INSUFFICIENT_RESOURCES                NoRoom         another order, or another layout of slices
    10 TIMEOUT                               none           no event came: `agents.gpu.nvml.session` does not let it out
    anything else                            DeviceError    log, try again later

The numbers are NVML's stable binary interface, so that this table needs no driver and no binding.
"""

from agents.base.device import (
    DeviceError,
    GpuLost,
    NoDriver,
    NotPermitted,
    NotSupported,
    OutOfRange,
    UnknownPart,
)
from agents.gpu.nvml.mig_types import InUse, NoRoom

_KINDS: dict[int, tuple[type[DeviceError], str]] = {
    1: (NoDriver, "NVML was shut down; start it again"),
    2: (OutOfRange, "the driver does not take this value"),
    3: (NotSupported, "this GPU does not have it"),
    4: (NotPermitted, "it needs CAP_SYS_ADMIN"),
    6: (UnknownPart, "there is no such GPU"),
    7: (DeviceError, "the list grew while it was read; read it again"),
    8: (DeviceError, "a power cable of the board is not connected; check it"),
    9: (NoDriver, "the NVIDIA kernel driver is not loaded"),
    11: (DeviceError, "the kernel lost an interrupt of the GPU; see its log"),
    12: (NoDriver, "libnvidia-ml.so.1 is not installed; it comes with the driver"),
    13: (NotSupported, "the installed driver is too old for it"),
    14: (DeviceError, "the board's infoROM is corrupted; contact its vendor"),
    15: (GpuLost, "the GPU fell off the bus; reset it or restart the machine"),
    16: (GpuLost, "the GPU needs a reset"),
    17: (
        NotPermitted,
        "the operating system blocks the device; give this process or container access to it",
    ),
    18: (NoDriver, "the driver is being upgraded; restart when it is done"),
    19: (InUse, "the GPU is in use; drain it first"),
    20: (DeviceError, "the driver ran out of memory; try again"),
    21: (NotSupported, "the driver has no data of it"),
    22: (NotSupported, "a vGPU with ECC does not have it"),
    23: (NoRoom, "the GPU has no room for it"),
    24: (OutOfRange, "the GPU does not have this clock"),
    25: (
        NotSupported,
        "the driver and nvidia-ml-py do not fit together; upgrade the older one",
    ),
    26: (NotSupported, "the installed driver no longer has it"),
    27: (DeviceError, "the GPU is not ready yet; try again"),
    28: (UnknownPart, "there is no such GPU"),
    29: (DeviceError, "the GPU is in a state that does not allow it; try again"),
    30: (NotSupported, "the GPU does not take this kind of reset"),
    999: (DeviceError, "the driver met an unknown error; try again"),
}


UNKNOWN_CODES = frozenset(
    {2, 4, *(code for code, (kind, _) in _KINDS.items() if kind is NotSupported)}
)
"""A reading that is refused so is unknown, which is no fault of the GPU. 2: a driver that does not know the question,
such as a field's number that is newer; 4: some guests may not even read."""


def detail_of(code: int) -> str:
    """What NVML's return code says, without what was tried."""
    return _answer(code)[1]


def translate(code: int, doing: str) -> DeviceError:
    """The error to raise when NVML answered `code` to an attempt to do something."""
    kind, message = _answer(code)
    return kind(f"could not {doing}: {message}")


def _answer(code: int) -> tuple[type[DeviceError], str]:
    return _KINDS.get(code, (DeviceError, f"NVML answered {code}; try again"))
