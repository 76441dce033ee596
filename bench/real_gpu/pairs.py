"""Two networks side by side in the same seconds, also next to training, into pairs.csv; a row for each of the two.

Each is also measured alone at its share and batch in the same run; `slowdown` is its p50 next to the other over that.
Rows of the same cell follow each other and name each other in `other_…`; rows measured alone have these empty.
"""

from collections.abc import Sequence
from itertools import combinations_with_replacement

from agents.gpu.nvml.types import POWER_LIMIT
from agents.profiling.cells import MeasurementCell, Member, make_cell
from agents.profiling.journal import Measurement
from bench.real_gpu.networks import TRAINING
from bench.real_gpu.profiling import Kept, profile
from bench.real_gpu.run import Run
from bench.real_gpu.solo import COLUMNS as ALONE_COLUMNS
from bench.real_gpu.solo import condition, timing_figures
from bench.real_gpu.tables import Table
from bench.report import Figure, Figures

FILE = "pairs.csv"
COLUMNS = (
    *ALONE_COLUMNS,
    "other_network",
    "other_batch",
    "other_sm_percent",
    "slowdown",
    "held_back_by",
)
SPLITS = ((25.0, 75.0), (50.0, 50.0), (75.0, 25.0), (100.0, 100.0))
"""SM percents of both; the last one without limits."""
BATCH, TRAINING_BATCH = 32, 256
"""Large enough that the GPU, and not the process that launches, is the bottleneck."""
TRAINED = ("vit_b_16", "vgg16", "resnet18")
"""Trained next to the networks: a transformer, convolutions with long kernels and with short ones."""
FILES = {FILE: COLUMNS}
HOW = (
    "Both processes run closed loops in the same windows, under MPS with the shares named; windows count when the "
    "medians of three agree for both. `slowdown` = p50 next to the other / p50 alone at the same share and batch. "
    "`held_back_by`: what held the clock back, and `clock_mhz` says how far; the power limit may, as in service. "
    f"`{TRAINING}NETWORK` is a step of SGD, bfloat16 autocast."
)


async def measure(run: Run) -> bool:
    """Every pair at every split, and everybody alone."""
    table = Table(run.path(FILE), COLUMNS)
    kept = Kept(
        table=table,
        rows=lambda found: pair_rows(run, found),
        has=lambda cell: table.has(
            **condition(cell.members[0]), **_other(cell.members[1:])
        ),
    )
    return await profile(
        run,
        "pairs",
        cells(run.options.networks),
        kept,
        accepted=frozenset([POWER_LIMIT]),
    )


def cells(networks: Sequence[str]) -> tuple[MeasurementCell, ...]:
    """Every network next to training, to every other one and to itself; both of a pair are measured."""
    neighbours = [
        ((network, BATCH), (f"{TRAINING}{trained}", TRAINING_BATCH))
        for trained in TRAINED
        for network in networks
    ]
    neighbours += [
        ((one, BATCH), (other, BATCH))
        for one, other in combinations_with_replacement(networks, 2)
    ]
    found: dict[MeasurementCell, None] = {}
    for (one, rows), (other, other_rows) in neighbours:
        for share, rest in SPLITS:
            first = Member(network=one, batch=rows, sm_percent=share)
            second = Member(network=other, batch=other_rows, sm_percent=rest)
            found |= dict.fromkeys(
                (make_cell([first]), make_cell([second]), make_cell([first, second]))
            )
    return tuple(found)


def pair_rows(run: Run, found: Sequence[Measurement]) -> list[Figures]:
    """Alone first, then the pairs."""
    alone = {
        each.cell.members[0]: each.timings[0].latency_ms_p50
        for each in found
        if len(each.cell.members) == 1
    }
    ordered = sorted(
        found, key=lambda each: (len(each.cell.members), each.cell.members)
    )
    return [row for each in ordered for row in _rows(run, each, alone)]


def _rows(
    run: Run, measurement: Measurement, alone_ms: dict[Member, float]
) -> list[Figures]:
    found: list[Figures] = []
    for place, timing in enumerate(measurement.timings):
        others = [
            other.member for at, other in enumerate(measurement.timings) if at != place
        ]
        base_ms = alone_ms.get(timing.member)
        found.append(
            {
                **timing_figures(run, timing),
                "power_w": measurement.power_w,
                "clock_mhz": measurement.clock_mhz,
                "windows": measurement.windows,
                **_other(others),
                "slowdown": timing.latency_ms_p50 / base_ms
                if others and base_ms
                else None,
                "held_back_by": ", ".join(measurement.held_back_by) or None,
            }
        )
    return found


def _other(others: Sequence[Member]) -> dict[str, Figure]:
    """The columns of the one next to it; empty for who is alone."""
    other = others[0] if others else None
    return {
        "other_network": other.network if other else None,
        "other_batch": other.batch if other else None,
        "other_sm_percent": other.sm_percent if other else None,
    }
