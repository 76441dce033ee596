"""Clocks that the run may set: processes that see another date than the machine, by a library that is loaded first.

The library is compiled where there is a C compiler. Programs of Plimsoll read the date when they start and follow the
monotonic clock from there, so that a step reaches them with their next start; PostgreSQL sees it at once.
"""

import os
import shutil
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.postgres.process import find_binaries

SOURCE = Path(__file__).with_name("clock_offset.c")
_PROGRAMS = ("initdb", "postgres")


def build(directory: Path) -> Path | None:
    """The library; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = directory / "clock_offset.so"
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")
    subprocess.run([compiler, *flags, "-o", library, SOURCE], check=True)
    return library


@dataclass(frozen=True, slots=True)
class Clock:
    """The date as some processes see it."""

    library: Path
    path: Path
    """Of the file with the offset."""

    def __post_init__(self) -> None:
        self.set(0)
        # PostgreSQL runs as another user.
        for each in (self.path, self.library):
            each.chmod(0o755)

    def set(self, offset_s: int) -> None:
        """The date is so far ahead from now on; below 0: behind."""
        # One write of eight bytes: no reader sees half of it. Not a new file, since the old one is mapped.
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(file, struct.pack("l", offset_s))
        os.close(file)

    @property
    def environment(self) -> Mapping[str, str]:
        """Of a process that sees it."""
        return {"LD_PRELOAD": str(self.library), "CLOCK_OFFSET_FILE": str(self.path)}

    def postgres_programs(self, directory: Path) -> Path:
        """PostgreSQL's programs that see it, in this directory."""
        real = find_binaries()
        directory.mkdir()
        variables = " ".join(
            f"{name}={text}" for name, text in self.environment.items()
        )
        for name in _PROGRAMS:
            script = directory / name
            script.write_text(
                f'#!/bin/sh\nexport {variables}\nexec {real.path(name)} "$@"\n'
            )
            script.chmod(0o755)
        return directory
