"""What a GPU does not let this process do, and why, as kinds.

lack_of(capability, error) -> Lack    from an error that `agents.gpu.nvml.session` raised
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from agents.base.device import DeviceError, NotSupported
from agents.gpu.nvml.errors import detail_of
from agents.gpu.nvml.types import Capability


class LackKind(StrEnum):
    """Why a GPU does not do something."""

    RIGHT_MISSING = "RightMissing"
    """This process has no CAP_SYS_ADMIN."""
    DRIVER_TOO_OLD = "DriverTooOld"
    DEVICE_BLOCKED = "DeviceBlocked"
    """The operating system keeps this process from the device."""
    PERSISTENCE_OFF = "PersistenceOff"
    NOT_TRIED = "NotTried"
    """This process was started to watch only."""
    OTHER = "Other"
    """The GPU does not have it, or the driver gave an error for which no remedy is known."""


class Lack(NamedTuple):
    """One thing that a GPU does not let this process do."""

    capability: Capability
    kind: LackKind
    detail: str
    """The driver's answer."""
    message: str
    """The same with what was tried."""


class PersistenceOff(NotSupported):
    """Nothing keeps the driver's settings while nothing uses the GPU."""

    detail = "without clients the driver may drop them; run nvidia-persistenced"

    def __init__(self) -> None:
        super().__init__(f"persistence mode is off: {self.detail}")


_KINDS: Mapping[int, LackKind] = {
    4: LackKind.RIGHT_MISSING,
    13: LackKind.DRIVER_TOO_OLD,
    17: LackKind.DEVICE_BLOCKED,
}
"""By NVML's return code."""


def lack_of(capability: Capability, error: DeviceError) -> Lack:
    """What an error shows that came up when a capability was tried."""
    if isinstance(error, PersistenceOff):
        return Lack(capability, LackKind.PERSISTENCE_OFF, error.detail, str(error))
    # Errors that were translated from NVML's keep those as their cause.
    code = getattr(error.__cause__, "value", None)
    if not isinstance(code, int):
        return Lack(capability, LackKind.OTHER, str(error), str(error))
    # Most codes call for no remedy that a program could name.
    kind = _KINDS.get(code, LackKind.OTHER)
    return Lack(capability, kind, detail_of(code), str(error))
