"""Does a client at 20 % get 20 %: the rate of a compute-bound kernel alone at several shares, into share.csv.

    knee        the share behind which one more percent brings less than half of what one brought before
    line        rate = slope · share through zero, fitted (least squares) to the shares up to the knee
    difference  rate / (slope · share) − 1, in percent; up to the knee it should stay within 10

A line through zero is the claim; a kernel that the board's power holds back at large shares has its knee there, and
nothing is said of it beyond.
"""

from collections.abc import Sequence

from agents.profiling.cells import grid
from agents.profiling.journal import Measurement
from bench.real_gpu.networks import KERNEL
from bench.real_gpu.profiling import Kept, profile
from bench.real_gpu.run import Run
from bench.real_gpu.tables import Table
from bench.report import Figures

FILE = "share.csv"
COLUMNS = (
    *("gpu_type", "sm_percent", "sm_count", "kernels_per_s", "rate_percent_of_largest"),
    *("is_below_knee", "difference_percent", "power_w", "clock_mhz"),
)
TOLERANCE_PERCENT = 10.0
FILES = {FILE: COLUMNS}
HOW = (
    "One process alone multiplies fp32 matrices of 8192 x 8192 at each share. `difference_percent` is the rate against "
    "a line through zero fitted to the shares up to the knee; within 10 % a share is what it says."
)
Point = tuple[float, float]
"""Share in percent, rate."""


async def measure(run: Run) -> bool:
    """The kernel at every share, and whether shares are kept."""
    table = Table(run.path(FILE), COLUMNS)
    cells = grid([KERNEL], run.options.shares, [1])
    kept = Kept(
        table=table,
        rows=lambda found: share_rows(run, found),
        has=lambda cell: table.has(sm_percent=cell.members[0].sm_percent),
    )
    is_whole = await profile(run, "share", cells, kept)
    run.say(verdict(table.rows))
    return is_whole


def share_rows(run: Run, found: Sequence[Measurement]) -> list[Figures]:
    """By share, ascending."""
    ordered = sorted(found, key=lambda each: each.timings[0].member.sm_percent)
    points = [
        (each.timings[0].member.sm_percent, 1000.0 / each.timings[0].latency_ms)
        for each in ordered
    ]
    differences = differences_percent(points)
    return [
        {
            "gpu_type": run.gpu_type,
            "sm_percent": share,
            "sm_count": each.timings[0].sm_count,
            "kernels_per_s": rate,
            "rate_percent_of_largest": 100.0 * rate / points[-1][1],
            "is_below_knee": difference is not None,
            "difference_percent": difference,
            "power_w": each.power_w,
            "clock_mhz": each.clock_mhz,
        }
        for each, (share, rate), difference in zip(
            ordered, points, differences, strict=True
        )
    ]


def differences_percent(points: Sequence[Point]) -> list[float | None]:
    """Of each point from the line through zero; None beyond the knee. `points`: ascending by share."""
    kept = points[: _knee(points) + 1]
    if not kept:
        return []
    slope = sum(share * rate for share, rate in kept) / sum(
        share * share for share, _ in kept
    )
    return [
        100.0 * (rate / (slope * share) - 1.0) if place < len(kept) else None
        for place, (share, rate) in enumerate(points)
    ]


def verdict(rows: Sequence[dict[str, str]]) -> str:
    """What the rows say of the claim."""
    judged = [row for row in rows if row["difference_percent"]]
    if len(judged) < 2:
        return "too few shares are measured to judge whether a share is what it says"
    worst = max(judged, key=lambda row: abs(float(row["difference_percent"])))
    is_kept = abs(float(worst["difference_percent"])) <= TOLERANCE_PERCENT
    return (
        f"shares {'are' if is_kept else 'ARE NOT'} proportional within {TOLERANCE_PERCENT:g} % up to "
        f"{judged[-1]['sm_percent']} %: the worst is {worst['difference_percent']} % at {worst['sm_percent']} %"
    )


def _knee(points: Sequence[Point]) -> int:
    """The place of the last point up to which the rate grows with the share."""
    for place in range(1, len(points)):
        (share, rate), (next_share, next_rate) = points[place - 1 : place + 1]
        if (next_rate - rate) / (next_share - share) < 0.5 * rate / share:
            return place - 1
    return len(points) - 1
