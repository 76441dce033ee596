"""What every bench prints and writes: a table of named figures with units in their names, and the machine."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import psutil

RESULTS = Path(__file__).parent / "results"

Figure: TypeAlias = str | int | float | bool | None
Figures: TypeAlias = Mapping[str, Figure]
"""One row: figures by name, each name with its unit."""


def machine() -> dict[str, str | int]:
    """What the figures were measured on."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "processor": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def print_table(rows: Sequence[Figures]) -> None:
    """Rows below each other; every column as wide as its widest entry."""
    if not rows:
        return
    table = [list(rows[0]), *([_text(row.get(name)) for name in rows[0]] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(entry.rjust(width) for entry, width in zip(line, widths, strict=True)))


def write_results(name: str, rows: Sequence[Figures]) -> None:
    """`bench/results/<name>.json`: the rows and the machine."""
    RESULTS.mkdir(exist_ok=True)
    document = {"machine": machine(), "rows": list(rows)}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _text(value: Figure) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
    return "-" if value is None else str(value)
