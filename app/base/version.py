"""Which version of the program this is."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of


def program_version() -> str:
    """The installed version of this package."""
    try:
        return version_of("plimsoll")
    except PackageNotFoundError:
        return "not installed; run from a source tree"
