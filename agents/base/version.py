"""Which version of the agent is installed, and what control planes of its time take."""

from importlib.metadata import PackageNotFoundError, version

TAKES_HEADER = "Plimsoll-Takes"
"""In answers to agents: the fields of a service's reading that this control plane takes and earlier ones refused."""
TAKEN_FIELDS = ("gone", "unmeasured")


def agent_version() -> str:
    """That of the distribution it came with, the agent alone or all of Plimsoll; "" from a source tree."""
    for distribution in ("plimsoll-agent", "plimsoll"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return ""
