"""Which version of the agent is installed, and what agents and control planes of this version take of each other."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

TAKES_HEADER = "Plimsoll-Takes"
"""Fields that the sender takes and earlier versions refused: of agents some of a reply, of control planes some of the
readings of services and replicas."""
REPLY_FIELDS = ("acquitted", "carriers", "logs")
SERVICE_FIELDS, REPLICA_FIELDS = ("gone", "unmeasured"), ("restarts",)
READING_FIELDS = (*SERVICE_FIELDS, *REPLICA_FIELDS)


def agent_version() -> str:
    """That of the distribution it came with, the agent alone or all of Plimsoll; "" from a source tree."""
    for distribution in ("plimsoll-agent", "plimsoll"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return ""


def takes(fields: Iterable[str]) -> str:
    """The value of the header."""
    return ", ".join(fields)


def taken(header: str | None) -> frozenset[str]:
    """The fields that a header names."""
    return frozenset(each.strip() for each in (header or "").split(","))
