"""Which files and functions a worker may load: only what lies in the directory, or in the module, that it was given.

The directory and the module are the node's own choice; a network's name may come from elsewhere.
"""

from pathlib import Path

from agents.device import LaunchFailed


def file_in(directory: Path | None, name: str) -> Path:
    """The file of that name in the directory, links followed. Raises LaunchFailed where it is elsewhere or absent."""
    if directory is None:
        raise LaunchFailed(f"{name} is a file; say by --network-dir where files may come from")
    try:
        allowed = directory.resolve(strict=True)
        found = (allowed / name).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise LaunchFailed(f"there is no {name!r} in {directory}: {error}") from error
    if not found.is_relative_to(allowed) or not found.is_file():
        raise LaunchFailed(f"{name!r} is not a file in {directory}; only those are loaded")
    return found
