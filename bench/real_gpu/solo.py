"""Networks alone: latency, memory and power over shares and batches, into solo.csv."""

from agents.profiling.cells import Member, grid
from agents.profiling.journal import Measurement, Timing
from agents.profiling.windows import SURE_P99_BATCHES
from bench.real_gpu.profiling import Kept, profile
from bench.real_gpu.run import Run, why_no_mps
from bench.real_gpu.tables import Table
from bench.report import Figures

FILE = "solo.csv"
COLUMNS = (
    *("network", "gpu_type", "batch", "sm_percent", "sm_count"),
    *(
        "latency_ms_mean",
        "latency_ms_p50",
        "latency_ms_p99",
        "p99_is_indicative",
        "batches_timed",
        "spread_percent",
    ),
    *("memory_mib", "power_w", "clock_mhz", "windows"),
)
FILES = {FILE: COLUMNS}
HOW = (
    "Closed loop, one batch in flight, inputs in GPU memory, host clock around a synchronised batch; windows are "
    "repeated until the medians of three agree within 3 %. A p99 of fewer than 200 batches is marked as indicative. "
    "`power_w` is the whole GPU's, `memory_mib` the process's."
)


async def measure(run: Run) -> bool:
    """Every network at every share and batch; without MPS at 100 % only."""
    shares = run.options.shares
    if why := await why_no_mps(run):
        run.say(f"without MPS only whole GPUs are measured: {why}")
        shares = (100.0,)
    table = Table(run.path(FILE), COLUMNS)
    cells = grid(run.options.networks, shares, run.options.batches)
    kept = Kept(
        table=table,
        rows=lambda found: [solo_row(run, each) for each in found],
        has=lambda cell: table.has(**condition(cell.members[0])),
    )
    return await profile(run, "solo", cells, kept)


def condition(member: Member) -> dict[str, object]:
    """The columns that say what was measured."""
    return {
        "network": member.network,
        "batch": member.batch,
        "sm_percent": member.sm_percent,
    }


def solo_row(run: Run, measurement: Measurement) -> Figures:
    """One network alone."""
    (timing,) = measurement.timings
    return {
        **timing_figures(run, timing),
        "power_w": measurement.power_w,
        "clock_mhz": measurement.clock_mhz,
        "windows": measurement.windows,
    }


def timing_figures(run: Run, timing: Timing) -> Figures:
    """What is known of one member of a cell."""
    return {
        "network": timing.member.network,
        "gpu_type": run.gpu_type,
        "batch": timing.member.batch,
        "sm_percent": timing.member.sm_percent,
        "sm_count": timing.sm_count,
        "latency_ms_mean": timing.latency_ms,
        "latency_ms_p50": timing.latency_ms_p50,
        "latency_ms_p99": timing.latency_ms_p99,
        "p99_is_indicative": timing.batches < SURE_P99_BATCHES,
        "batches_timed": timing.batches,
        "spread_percent": 100.0 * timing.spread,
        "memory_mib": timing.memory_mib,
    }
