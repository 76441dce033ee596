"""Which version of the agent is installed."""

from importlib.metadata import PackageNotFoundError, version


def agent_version() -> str:
    """That of the distribution it came with, the agent alone or all of Plimsoll; "" from a source tree."""
    for distribution in ("plimsoll-agent", "plimsoll"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return ""
