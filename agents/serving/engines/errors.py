"""What can go wrong in a worker.

    DeviceError                 agents.base.device
    └── ServingError            base
        ├── BadRequest          the client's request cannot be run as it is: 400
        ├── NotTaken            the request was not run and may go elsewhere: 503 and Retry-After
        ├── DeadlinePassed      the request was not run, its time is over: 504
        ├── WrongState          the worker cannot do this now: 409
        └── EngineFailed        a batch failed; the next one may do well: 500
            └── EngineLost      the device does not come back in this process; the process ends with exit code 1

A worker that cannot be set up raises LaunchFailed of agents.base.device.
"""

from typing import Literal, TypeAlias

from agents.base.device import DeviceError

DropReason: TypeAlias = Literal[
    "queue_full", "not_ready", "deadline", "abandoned", "stopped"
]
"""Why a request was not run; the label of a metric, so the set is closed."""


class ServingError(DeviceError):
    """Base of everything that a worker raises on purpose."""


class BadRequest(ServingError):
    """The client's request cannot be run as it is."""


class NotTaken(ServingError):
    """The request was not run and may go elsewhere."""

    def __init__(self, detail: str, *, reason: DropReason) -> None:
        super().__init__(detail)
        self.reason: DropReason = reason


class DeadlinePassed(ServingError):
    """The request was not run because its time is over."""


class WrongState(ServingError):
    """The worker cannot do this now."""


class EngineFailed(ServingError):
    """A batch failed."""


class EngineLost(EngineFailed):
    """The device does not come back in this process."""
