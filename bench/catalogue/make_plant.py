"""Make `bench/papers/data/plant*.csv`: time and watts over batch × clock × SM percent, for boards whose clock is
turned.

    python -m bench.catalogue.make_plant [--shared ../shared/data] [--out bench/papers/data]

The three were never published together, so every row is synthetic. Levels are measured ones, the shape over the clock
is fitted by others:

    time(b, p, f)  = time(b, p, f_max) · (f_max / f)^gamma_t
    watts(b, p, f) = level(b, p) · (phi + (1 - phi) · (f / f_max)^gamma_p) + p / 100 · (static(f) - static(f_min))

* time(b, p, f_max): the V100's measured curve (RaPP, batches 1 to 8) at p times the board's speed. Beyond batch 8 it
  goes on as (host^4 + work^4)^(1/4): the host's part, as long as batch 1 takes, hidden behind the kernels' part.
* level(b, p): iGniter's readings on a V100 at equal duty (`watts`), scaled to the range from static(f_max) to the TDP.
* gamma_t, gamma_p, phi = p_base / watts of a full board, static(f): PctoDL's fits (pctodl_fits: facts, no raw data) of
  the A100 and of the 3080 Ti with its memory at 9501 MHz; VGG-19's for VGG-16, DenseNet-201's for DenseNet-121.
* speeds: the A100's as elsewhere in this folder; the 3080 Ti's is the A100's times the ratio of PctoDL's kappa at batch
  128, throughput at equal use of the memory. The 2080 Ti's laws are the 3080 Ti's, its static watts by TDP.
* A checksum of the names adds up to ±2 % to times and ±1 % to watts per (b, p), and ±0.3 % per clock, so that no
  formula fits exactly.

A re-run gives the same bytes.
"""

import argparse
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agents.sim.truth.curves import FloatArray
from agents.sim.truth.tables import NetworkTruth, read_networks, read_speeds
from bench.catalogue.make_truth import Line
from bench.catalogue.measured import DEFAULT_SHARED, Row, rows, write_rows
from bench.catalogue.watts import V100_IDLE_W, V100_LIMIT_W, busy_share_w

FITTED = {
    "resnet50": "resnet50",
    "mobilenet_v2": "mobilenet_v2",
    "vgg16": "vgg19",
    "densenet121": "densenet201",
}
"""Networks with curves of their own, and whose law over the clock they follow."""
PLANT_DATA = Path(__file__).parents[1] / "papers" / "data"
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
SM_PERCENTS = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 80.0, 100.0)
_SHARPNESS = 4.0
"""Of the bend between the host's part and the kernels': at 4 the sum is 19 % above the larger where they are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One board, and whose fits it follows."""

    name: str
    clocks_mhz: tuple[float, ...]
    tdp_w: float
    fitted: str
    memory_mhz: str
    static_scale: float = 1.0


BOARDS = (
    Board(
        name="A100-40GB",
        clocks_mhz=(300.0, 600.0, 870.0, 1140.0, 1410.0),
        tdp_w=400.0,
        fitted="A100",
        memory_mhz="1215",
    ),
    Board(
        name="RTX-3080-Ti",
        clocks_mhz=(300.0, 600.0, 1000.0, 1400.0, 1800.0),
        tdp_w=350.0,
        fitted="3080Ti",
        memory_mhz="9501",
    ),
    # 250 of 350 W.
    Board(
        name="RTX-2080-Ti",
        clocks_mhz=(300.0, 600.0, 915.0, 1230.0, 1545.0),
        tdp_w=250.0,
        fitted="3080Ti",
        memory_mhz="9501",
        static_scale=0.714,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """What PctoDL fitted for one network on one board."""

    time_exponent: float
    power_exponent: float
    base_w: float
    static: tuple[float, float, float, float]
    """W at f MHz, falling powers of f."""
    kappa: float

    def static_w(self, clock_mhz: float) -> float:
        """Watts of the board at that clock while nothing executes."""
        return float(np.polyval(self.static, clock_mhz))


def make(shared: Path, out: Path) -> None:
    """Write both files below `out`."""
    write_rows(
        out / "plant.csv",
        (
            "network",
            "gpu_type",
            "batch",
            "sm_percent",
            "clock_mhz",
            "latency_ms",
            "watts",
        ),
        [
            line
            for board in BOARDS
            for network in sorted(FITTED)
            for line in _lines(shared, board, network)
        ],
    )
    write_rows(
        out / "plant_types.csv",
        ("gpu_type", "idle_w", "tdp_w"),
        [_type_line(shared, each) for each in BOARDS],
    )


def _type_line(shared: Path, board: Board) -> Line:
    law = read_law(shared, board, "resnet50")
    return (
        board.name,
        board.static_scale * law.static_w(board.clocks_mhz[0]),
        board.tdp_w,
    )


def read_law(shared: Path, board: Board, network: str) -> Law:
    """The fits of that network on that board."""

    def row(name: str, **more: str) -> Row:
        wanted = {
            "model": FITTED[network],
            "dataset": "imagenet",
            "gpu": board.fitted,
            "mem_clock_mhz": board.memory_mhz,
        }
        wanted |= more
        found = rows(shared / "pctodl_fits" / name)
        return next(
            row
            for row in found
            if all(row[key] == value for key, value in wanted.items())
        )

    power = row("power_fit.csv")
    return Law(
        time_exponent=float(row("throughput_fit.csv")["gamma_t"]),
        power_exponent=float(power["gamma_p"]),
        base_w=float(power["p_base_w"]),
        static=(
            float(power["d3"]),
            float(power["d2"]),
            float(power["d1"]),
            float(power["d0"]),
        ),
        kappa=float(row("kappa_by_batch.csv", batch="128")["kappa"]),
    )


def _lines(shared: Path, board: Board, network: str) -> Iterator[Line]:
    law, facts = read_law(shared, board, network), read_networks()[network]
    speed = _speed(shared, board, network)
    static_w = [board.static_scale * law.static_w(clock) for clock in board.clocks_mhz]
    room_w = board.tdp_w - static_w[-1]
    base_share = law.base_w / law_range_w(board, law)
    for batch in BATCHES:
        for percent in SM_PERCENTS:
            time_ms, duty = solo_ms(facts, batch, percent * speed)
            wobble = _wobble(network, board.name, batch, percent)
            level_w = (
                busy_share_w(percent, duty)
                * room_w
                / (V100_LIMIT_W - V100_IDLE_W)
                * (1.0 + 0.01 * wobble)
            )
            for clock, static in zip(board.clocks_mhz, static_w, strict=True):
                share = clock / board.clocks_mhz[-1]
                ripple = 1.0 + 0.003 * _wobble(network, board.name, clock)
                latency_ms = (
                    time_ms * (1.0 + 0.02 * wobble) * share**-law.time_exponent * ripple
                )
                busy_w = level_w * (
                    base_share + (1.0 - base_share) * share**law.power_exponent
                )
                busy_w += percent / 100.0 * (static - static_w[0])
                yield (
                    network,
                    board.name,
                    float(batch),
                    percent,
                    clock,
                    latency_ms,
                    busy_w,
                )


def law_range_w(board: Board, law: Law) -> float:
    """Watts between static and full of the board that was fitted."""
    fitted = next(
        each
        for each in BOARDS
        if each.fitted == board.fitted and each.static_scale == 1.0
    )
    return fitted.tdp_w - law.static_w(fitted.clocks_mhz[-1])


def solo_ms(
    facts: NetworkTruth, batch: int, v100_percent: float
) -> tuple[float, float]:
    """Time of a batch alone at a share of a V100 (in percent, may be above 100), and its duty."""
    kernels_ms = facts.work_ms_per_item * 100.0 / v100_percent
    measured: FloatArray = facts.curves.batch_ms(v100_percent)
    largest = facts.curves.max_batch
    time_ms = float(measured[min(batch, largest)])
    if batch > largest:
        host_ms = float(measured[1])
        time_ms += _sum_ms(host_ms, kernels_ms * batch) - _sum_ms(
            host_ms, kernels_ms * largest
        )
    return time_ms, min(1.0, kernels_ms * batch / time_ms)


def _sum_ms(host_ms: float, kernels_ms: float) -> float:
    return float((host_ms**_SHARPNESS + kernels_ms**_SHARPNESS) ** (1.0 / _SHARPNESS))


def _speed(shared: Path, board: Board, network: str) -> float:
    speeds = read_speeds()
    if (network, board.name) in speeds:
        return speeds[network, board.name].speed
    a100, own = BOARDS[0], read_law(shared, board, network)
    return (
        speeds[network, a100.name].speed
        * own.kappa
        / read_law(shared, a100, network).kappa
    )


def _wobble(*of: object) -> float:
    """-1 to 1, from a checksum."""
    return 2.0 * zlib.crc32("/".join(map(str, of)).encode()) / 0xFFFFFFFF - 1.0


def main() -> None:
    """Read the two folders from the command line and make the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=DEFAULT_SHARED)
    parser.add_argument("--out", type=Path, default=PLANT_DATA)
    arguments = parser.parse_args()
    make(arguments.shared, arguments.out)


if __name__ == "__main__":
    main()
