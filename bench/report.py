"""What every bench prints and writes: a table of named figures with units in their names, and the machine."""

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

import psutil

RESULTS = Path(__file__).parent / "results"
_CPU_INFO = Path("/proc/cpuinfo")
_LIBRARIES = ("numpy", "scipy", "numba", "highspy", "ortools")
"""What figures of speed depend on, besides the machine."""
_GAP = "  "
ROOM = 120
"""Characters that a line of a wide table may have."""

Figure: TypeAlias = str | int | float | bool | None
Figures: TypeAlias = Mapping[str, Figure]
"""One row: figures by name, each name with its unit."""


def machine() -> dict[str, str | int]:
    """What the figures were measured on."""
    return {
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "processor": _processor(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    """Its name where the system says it, else its architecture."""
    text = _CPU_INFO.read_text(encoding="utf-8") if _CPU_INFO.is_file() else ""
    named = re.search(r"^model name\s*: (.+)$", text, re.M)
    return named[1] if named else platform.machine()


def print_table(rows: Sequence[Figures], *, room: int | None = None) -> None:
    """Rows below each other; every column as wide as its widest entry. Last columns without room are left out."""
    if not rows:
        return
    table = [
        list(rows[0]),
        *([_text(row.get(name)) for name in rows[0]] for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    ends = accumulate(width + len(_GAP) for width in widths)
    shown = sum(room is None or end <= room + len(_GAP) for end in ends)
    for line in table:
        print(
            _GAP.join(
                entry.rjust(width)
                for entry, width in zip(line[:shown], widths[:shown], strict=True)
            )
        )


def write_results(
    name: str, rows: Sequence[Figures], *, settings: Figures | None = None
) -> None:
    """`bench/results/<name>.json`: the rows, the machine, versions of libraries, and how the bench was called."""
    RESULTS.mkdir(exist_ok=True)
    document = {
        "machine": machine(),
        "versions": {library: version(library) for library in _LIBRARIES},
        "settings": settings or {},
        "rows": list(rows),
    }
    (RESULTS / f"{name}.json").write_text(
        json.dumps(document, indent=1) + "\n", encoding="utf-8"
    )


def _text(value: Figure) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
    return "-" if value is None else str(value)
