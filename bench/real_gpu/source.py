"""SOURCE.md next to the measured files: which GPU, which versions, when, by which command, how, under which licence."""

import datetime
import platform
from collections.abc import Mapping
from importlib import metadata
from types import ModuleType

from agents.base.durable_files import replace_file
from bench.real_gpu import pairs, probe, share, solo, switch, telemetry
from bench.real_gpu.run import Run
from bench.real_gpu.tables import Table

FILE = "SOURCE.md"
_PACKAGES = ("torch", "torchvision", "numpy", "nvidia-ml-py")
STEPS: Mapping[str, ModuleType] = {
    "probe": probe,
    "share": share,
    "solo": solo,
    "pairs": pairs,
    "switch": switch,
    "agent": telemetry,
}
"""In the order of `all`."""
_UNITS = (
    "Units stand in the column names: ms, mib (2^20 bytes), w, mhz, rps (requests per second), s, percent (0 to 100). "
    "Empty = not known. `sm_percent` is the share that was asked for, `sm_count` what the process saw of it."
)


def write_source(run: Run) -> None:
    """Write it again, with a part for each file that is there; the days of earlier calls stay."""
    path = run.path(FILE)
    calls = [
        line
        for line in _lines(path.read_text(encoding="utf-8") if path.exists() else "")
        if line != _call(run)
    ]
    driver = run.nvml.driver_version()
    facts = [
        f"- GPU: {run.gpu.name}, {run.gpu.memory_mib:.0f} MiB, SMs: {run.gpu.sm_count or 'not told'}; `gpu_type` in "
        f"the files: `{run.gpu_type}`",
        f"- Driver: {driver}; {', '.join(f'{name} {_version(name)}' for name in _PACKAGES)}; Python "
        f"{platform.python_version()}; {platform.system()}",
        "- Settings of the GPU: as found. Clocks, power limit, compute mode, MIG and persistence were not changed.",
        "- Licence: Apache-2.0, own measurement of the Plimsoll project.",
    ]
    warning = (
        ["**Made by the fake: these are not measurements of any GPU.**", ""]
        if run.options.is_fake
        else []
    )
    parts = [line for module in STEPS.values() for line in _part(run, module)]
    text = [
        f"# {run.gpu_type}: measured by bench.real_gpu",
        "",
        *warning,
        *facts,
        "",
        "## Calls",
        "",
        *calls,
        _call(run),
        "",
        "## Files",
        "",
        _UNITS,
        "",
        *parts,
    ]
    replace_file(path, ("\n".join(text).rstrip() + "\n").encode())


def _part(run: Run, module: ModuleType) -> list[str]:
    """A step's files that are there; `FILES` are their names with their columns."""
    found = []
    for name, columns in module.FILES.items():
        if run.path(name).exists():
            rows = len(Table(run.path(name), columns).rows)
            found.append(f"- `{name}` ({rows} rows): {', '.join(columns)}.")
    return [*found, f"  {module.HOW}"] if found else []


def _call(run: Run) -> str:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"- {today}: `{run.options.command}`"


def _lines(text: str) -> list[str]:
    """The calls that an earlier SOURCE.md tells."""
    return [
        line
        for line in text.splitlines()
        if line.startswith("- 20") and line.endswith("`")
    ]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"
