"""Folders whose content a worker made, as deep and as wide as it liked: set aside, removed and measured.

    set_aside(path)         its name is free at once; the rest is left to `remove_aside`
    remove_aside(folder)    everything that was set aside there
    size_bytes(path)        a file's, or a folder's with all that is in it

By `rm` and `du`: Python 3.11's `shutil.rmtree`, `os.walk` and `Path.rglob` call themselves once per level, and 1000
folders in each other raise RecursionError; they also reach no path of more than 4096 bytes. Both take as long as the
worker's folder asks for, up to a limit, so that callers with an event loop use a thread.
"""

import contextlib
import logging
import os
import secrets
import stat
import subprocess
from pathlib import Path

from agents.processes.templates import tool_environment

ASIDE = "gone~"
"""Beginning of the names of what was set aside; names made of ids hold no tilde."""
REMOVE_S = 120.0
MEASURE_S = 60.0

log = logging.getLogger(__name__)


def set_aside(path: Path) -> None:
    """Take a folder's name away, so that another can have it; nothing where there is none. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        path.rename(path.with_name(f"{ASIDE}{secrets.token_hex(8)}"))


def remove_aside(folder: Path) -> None:
    """Remove what was set aside in that folder; what does not go is logged, and is tried again by the next call."""
    for path in sorted(folder.glob(f"{ASIDE}*")):
        remove(path)


def remove(path: Path) -> None:
    """Remove a folder with all that is in it on its file system; that it did not go is logged."""
    # What an operator mounted there is not the worker's to lose.
    _run(
        "rm",
        "-rf",
        "--one-file-system",
        path=path,
        limit_s=REMOVE_S,
    )
    if path.exists():
        log.warning("%s could not be removed completely within %g s", path, REMOVE_S)


def size_bytes(path: Path) -> int:
    """The size of a file, or of a folder with all that is in it; 0 where it cannot be measured in time."""
    with contextlib.suppress(OSError, ValueError):  # gone meanwhile
        # Of a link itself and not of its target, which may lie anywhere.
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            return found.st_size
        said = _run(
            "du",
            "-sx",
            "--apparent-size",
            "--block-size=1",
            path=path,
            limit_s=MEASURE_S,
        )
        return int(said.partition("\t")[0])
    # Too small rather than too large: what is over the limit is removed, and may be somebody's checkpoint.
    return 0


def _run(
    program: str,
    *options: str,
    path: Path,
    limit_s: float,
) -> str:
    """What the program printed; empty where it did not come to an end."""
    try:
        return subprocess.run(
            (program, *options, "--", path),
            env=tool_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # With 100,000 files that do not go there are as many lines, which are not read.
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        ).stdout.decode("utf-8", errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return ""
