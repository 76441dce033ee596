"""Runs the systems' experiments, each in a process of its own: one that fails or hangs costs no other one."""

import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.papers.systems import System
from bench.papers.table import Table

QUICK_LIMIT_S = 600.0
LIMIT_S = 7200.0
_MAX_WORDS = 500
"""Characters of a failed one's last line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one system."""

    system: System
    tables: tuple[Table, ...] = ()
    error: str = ""
    """Why there are no tables; empty where there are."""
    seconds: float = 0.0


Make = Callable[[System, bool], Outcome]


def outcomes(
    systems: Sequence[System], *, quick: bool, jobs: int, make: Make | None = None
) -> tuple[Outcome, ...]:
    """Of every system, in their order; `jobs` at a time. `make`: in place of a process."""
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as threads:
        return tuple(
            threads.map(
                lambda system: _timed(make or in_process, system, quick), systems
            )
        )


def in_process(system: System, quick: bool) -> Outcome:
    """The tables that a process of its own makes."""
    if not system.is_there:
        return Outcome(
            system=system, error=f"bench/papers/{system.module}.py is not there"
        )
    with TemporaryDirectory() as folder:
        out = Path(folder) / "tables.json"
        command = [
            sys.executable,
            "-m",
            "bench.papers.single",
            system.module,
            str(out),
            *(["--quick"] * quick),
        ]
        limit_s = QUICK_LIMIT_S if quick else LIMIT_S
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            return Outcome(system=system, error=f"it was ended after {limit_s:.0f} s")
        if ended.returncode or not out.is_file():
            said = (ended.stderr or ended.stdout).strip().splitlines()
            words = (
                said[-1][:_MAX_WORDS]
                if said
                else f"it ended with code {ended.returncode}"
            )
            return Outcome(system=system, error=words)
        # Not as JSON, which knows no gain over nothing: it is endless.
        tables: tuple[Table, ...] = pickle.loads(out.read_bytes())
        return Outcome(system=system, tables=tables)


def _timed(make: Make, system: System, quick: bool) -> Outcome:
    began = time.perf_counter()
    found = make(system, quick)
    return replace(found, seconds=time.perf_counter() - began)
