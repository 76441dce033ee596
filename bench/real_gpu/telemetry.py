"""The agent's telemetry next to nvidia-smi, second by second, idle and at work, into agent.csv.

The agent's side is `ReadOnlyDevice.read()` as it goes into an observation: power is the mean over the second from the
energy counter where there is one. nvidia-smi's power is the driver's own mean over about a second, its utilisation the
share of the last sampling period: single seconds differ, means should not.
"""

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from agents.base.clock import ScaledClock
from agents.base.device import LaunchFailed, NotSupported
from agents.gpu.mps.gpu_sharing import ByTurns
from agents.gpu.node.readonly_device import ReadOnlyDevice
from agents.profiling.bench_processes import BenchProcess, Site, open_benches
from agents.profiling.cells import BenchSettings
from agents.profiling.messages import LoadBatch, Loaded, RunWindow, Timed
from bench.real_gpu.profiling import templates
from bench.real_gpu.run import Run
from bench.real_gpu.tables import Table
from bench.report import Figures

FILE = "agent.csv"
QUANTITIES = {
    "memory_used_mib": "memory.used",
    "power_w": "power.draw",
    "clock_mhz": "clocks.sm",
    "busy_percent": "utilization.gpu",
}
"""nvidia-smi's words by ours."""
COLUMNS = (
    *("gpu_type", "phase", "second"),
    *(
        f"{name}_{side}"
        for name in QUANTITIES
        for side in ("agent", "nvidia_smi", "difference_percent")
    ),
)
SECONDS = 10
BATCH = 16
ANSWER_S = 20.0
WARM_UP_S = 120.0
PROGRAM = "nvidia-smi"
FILES = {FILE: COLUMNS}
HOW = (
    "Each second the agent's reading and one of nvidia-smi, taken at the same time; `…_difference_percent` = agent / "
    "nvidia-smi - 1. Phases: idle, and busy with batches of one network on the whole GPU."
)


async def measure(run: Run) -> bool:
    """Both phases, as far as they are not in the file."""
    if shutil.which(PROGRAM, path=run.environment.get("PATH")) is None:
        raise NotSupported(
            f"{PROGRAM} is not in PATH; it comes with the driver, and this step compares with it"
        )
    table = Table(run.path(FILE), COLUMNS)
    if not table.has(phase="idle"):
        table.replace([*table.rows, *await _watch(run, "idle")])
    if not table.has(phase="busy"):
        table.replace([*table.rows, *await _busy(run)])
    for phase in ("idle", "busy"):
        run.say(
            f"  {phase}: "
            + ", ".join(_compared([row for row in table.rows if row["phase"] == phase]))
        )
    return True


async def _busy(run: Run) -> list[Figures]:
    """Readings while one network computes."""
    with TemporaryDirectory(prefix="plimsoll-") as directory:
        site = Site(
            gpu=run.gpu,
            templates=templates(run),
            template="",
            sharing=ByTurns(run.gpu, "one process alone"),
            directory=Path(directory),
            mark=f"telemetry{run.begun_s:.6f}",
            environment=run.environment,
            largest_batch=BATCH,
        )
        async with open_benches(
            (BenchSettings(network=run.options.networks[0], sm_percent=100.0),), site
        ) as (bench,):
            await bench.ask(LoadBatch(rows=BATCH, warm_up=3), Loaded, limit_s=WARM_UP_S)
            working = asyncio.create_task(_work(run, bench))
            try:
                rows = await _watch(run, "busy")
                await working
            finally:
                working.cancel()
            return rows


async def _work(run: Run, bench: BenchProcess) -> None:
    lasts_s = _seconds(run) * (SECONDS + 2)
    order = RunWindow(start_s=time.monotonic(), window_s=lasts_s, skip_s=0.0)
    await bench.ask(order, Timed, limit_s=lasts_s + ANSWER_S)


async def _watch(run: Run, phase: str) -> list[Figures]:
    """Readings of both sides; the first second settles the agent's energy window."""
    device = ReadOnlyDevice(run.nvml, ScaledClock(), type_of=lambda _: run.gpu_type)
    rows: list[Figures] = []
    for second in range(SECONDS + 1):
        await asyncio.sleep(_seconds(run))
        readings, said = await asyncio.gather(device.read(), _nvidia_smi(run))
        reading = next(each for each in readings.gpus if each.index == run.gpu.index)
        if second:
            ours = {name: float(getattr(reading, name)) for name in QUANTITIES}
            rows.append(
                {
                    "gpu_type": run.gpu_type,
                    "phase": phase,
                    "second": second,
                    **_beside(ours, said),
                }
            )
    return rows


def _seconds(run: Run) -> float:
    """Between two readings: a second, less only where windows are shorter, too."""
    return min(1.0, run.options.window_s)


def _beside(
    ours: Mapping[str, float], theirs: Mapping[str, float | None]
) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name, value in ours.items():
        other = theirs[name]
        found[f"{name}_agent"] = value
        found[f"{name}_nvidia_smi"] = other
        found[f"{name}_difference_percent"] = (
            100.0 * (value / other - 1.0) if other else None
        )
    return found


async def _nvidia_smi(run: Run) -> dict[str, float | None]:
    """What it says; None where it says N/A. Raises LaunchFailed."""
    query = (
        f"--query-gpu={','.join(QUANTITIES.values())}",
        "--format=csv,noheader,nounits",
        "-i",
        run.gpu.uuid,
    )
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *query,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(run.environment),
    )
    try:
        async with asyncio.timeout(ANSWER_S):
            said, complaint = await process.communicate()
    except TimeoutError as error:
        process.kill()
        raise LaunchFailed(f"{PROGRAM} gave no answer in {ANSWER_S:g} s") from error
    cells = said.decode().strip().split(",")
    if process.returncode or len(cells) != len(QUANTITIES):
        raise LaunchFailed(
            f"{PROGRAM} failed: {(complaint or said).decode(errors='replace').strip()}"
        )
    return {name: _number(cell) for name, cell in zip(QUANTITIES, cells, strict=True)}


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None  # [N/A], [Not Supported]


def _compared(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Means of both sides and how far they are apart."""
    found = []
    for name in QUANTITIES:
        both = [
            (float(row[f"{name}_agent"]), float(row[f"{name}_nvidia_smi"]))
            for row in rows
            if row[f"{name}_nvidia_smi"]
        ]
        if not both:
            found.append(f"{name} not told by {PROGRAM}")
            continue
        ours, theirs = fmean(each for each, _ in both), fmean(each for _, each in both)
        apart = f"{100.0 * (ours / theirs - 1.0):+.1f} %" if theirs else "-"
        found.append(f"{name} {ours:.4g} / {theirs:.4g} ({apart})")
    return found
