"""Why a GPU cannot be shared by MPS, as kinds."""

from enum import StrEnum
from typing import NamedTuple


class MpsLackKind(StrEnum):
    """What stands in the way."""

    NOT_INSTALLED = "NotInstalled"
    PATH_TOO_LONG = "PathTooLong"
    """MPS cannot open sockets below that directory."""
    OTHER_USER = "OtherUser"
    """A directory, a daemon or a server is another user's, or another agent's."""
    OTHER = "Other"
    """The directory is another GPU's, or the daemon gives no usable answer."""


class MpsLack(NamedTuple):
    """Why one GPU cannot be shared by MPS."""

    kind: MpsLackKind
    detail: str
