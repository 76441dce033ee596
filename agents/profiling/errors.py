"""What can go wrong in a profile.

    DeviceError                 agents.device
    └── ProfileError            base
        ├── NotSteady           a cell's windows never agreed, or none of them counted: the cell is left out
        └── BenchFailed         a cell cannot be measured, e.g. its batch does not fit; the next one may
            └── BenchLost       the process is of no further use; others must be started

What keeps a profile from running at all are the errors of `agents.device`.
"""

from agents.device import DeviceError


class ProfileError(DeviceError):
    """Base of everything that a profile raises on purpose."""


class NotSteady(ProfileError):
    """A cell's windows never agreed."""


class BenchFailed(ProfileError):
    """A cell cannot be measured."""


class BenchLost(BenchFailed):
    """The process is of no further use."""
