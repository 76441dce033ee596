"""The checked-in tables behind the simulated truth, read into arrays (made by bench/catalogue/make_truth.py)."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources

import numpy as np

from agents.sim.truth.curves import BatchCurve, FloatArray, MeasuredCurves
from agents.sim.truth.partners import BoardSharing, MeasuredPairs, PartnerTruth

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTruth:
    """What is true of one network wherever it runs."""

    curves: MeasuredCurves
    kernels: int
    """Kernel launches of one batch."""
    work_ms_per_item: float
    """Milliseconds of a whole V100 that one item's kernels need at best."""
    noise_cv: float
    """Standard deviation of one batch's time as a share of its mean."""
    memory_base_mib: float
    memory_per_item_mib: float
    memory_bound: float
    """Share of kernel time that waits for memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeTruth:
    """What is true of one GPU type."""

    max_clock_mhz: float
    idle_w: float
    tdp_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedTruth:
    """How fast one network runs on a whole GPU of one type, as a multiple of a whole V100."""

    speed: float
    provenance: str
    """measured (V100), scaled or estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRelation:
    """A measured relation y(x): linear between points, constant beyond the ends."""

    x: FloatArray
    y: FloatArray

    def at(self, x: float) -> float:
        """y at any x."""
        return float(np.interp(x, self.x, self.y))


@dataclass(frozen=True, slots=True, kw_only=True)
class WattsTable:
    """Measured watts above idle of one network on a V100 by share (P,), and per share by batch or duty (B,)."""

    sm_percents: FloatArray
    by_batch: tuple[MeasuredRelation, ...]
    by_duty: tuple[MeasuredRelation, ...]

    def at_batch(self, sm_percent: float, batch: int) -> float:
        """Watts above idle, linear in batch and share; no SMs draw nothing."""
        return self._at_share(sm_percent, [table.at(batch) for table in self.by_batch])

    def at_duty(self, sm_percent: float, duty: float) -> float:
        """The same by the share of time in which kernels fill the SMs (0 to 1)."""
        return self._at_share(sm_percent, [table.at(duty) for table in self.by_duty])

    def _at_share(self, sm_percent: float, watts: list[float]) -> float:
        return float(np.interp(sm_percent, [0.0, *self.sm_percents], [0.0, *watts]))


def read(name: str) -> Iterator[Row]:
    """Each line of one table as column -> text."""
    text = (resources.files("agents.sim") / "data" / name).read_text()
    yield from csv.DictReader(text.splitlines())


def read_networks() -> dict[str, NetworkTruth]:
    """Every network's curves and facts, by name."""
    curves = read_curves("curves.csv", "latency_ms")
    return {
        row["network"]: network_of(row, curves[row["network"]])
        for row in read("networks.csv")
    }


def read_curves(name: str, column: str) -> dict[str, MeasuredCurves]:
    """Curves over batch and SM percent in one table, by network; `column` holds the milliseconds."""
    points: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for row in read(name):
        point = (float(row["sm_percent"]), float(row[column]))
        points.setdefault(row["network"], {}).setdefault(int(row["batch"]), []).append(
            point
        )
    return {
        network: MeasuredCurves(
            by_batch={batch: _curve(line) for batch, line in by_batch.items()}
        )
        for network, by_batch in points.items()
    }


def network_of(row: Row, curves: MeasuredCurves) -> NetworkTruth:
    """The facts of one line."""
    return NetworkTruth(
        curves=curves,
        kernels=int(row["kernels"]),
        work_ms_per_item=float(row["work_ms_per_item"]),
        noise_cv=float(row["noise_cv"]),
        memory_base_mib=float(row["memory_base_mib"]),
        memory_per_item_mib=float(row["memory_per_item_mib"]),
        # Nothing is known of training's kernels.
        memory_bound=float(row.get("memory_bound", 0.0)),
    )


def _curve(points: list[tuple[float, float]]) -> BatchCurve:
    shares, latencies = zip(*sorted(points), strict=True)
    return BatchCurve(sm_percents=np.array(shares), latency_ms=np.array(latencies))


def read_types() -> dict[str, TypeTruth]:
    """Every GPU type, by name."""
    return {
        row["gpu_type"]: TypeTruth(
            max_clock_mhz=float(row["max_clock_mhz"]),
            idle_w=float(row["idle_w"]),
            tdp_w=float(row["tdp_w"]),
        )
        for row in read("gpu_types.csv")
    }


def read_speeds() -> dict[tuple[str, str], SpeedTruth]:
    """Speed by (network, GPU type)."""
    return {
        (row["network"], row["gpu_type"]): SpeedTruth(
            speed=float(row["speed"]), provenance=row["provenance"]
        )
        for row in read("speeds.csv")
    }


def read_partners() -> PartnerTruth:
    """What networks do to each other where SM limits hold, and inference without."""
    boards = {
        row["gpu_type"]: BoardSharing(
            excess=float(row["partner_excess"]),
            share_exponent=float(row["partner_share_exponent"]),
        )
        for row in read("gpu_types.csv")
    }
    rows: dict[tuple[str, str], list[Row]] = {}
    for row in read("measured_pairs.csv"):
        rows.setdefault((row["network"], row["neighbour"]), []).append(row)
    return PartnerTruth(
        boards=boards,
        measured={pair: _measured_pairs(each, boards) for pair, each in rows.items()},
    )


def _measured_pairs(
    rows: list[Row], boards: Mapping[str, BoardSharing]
) -> MeasuredPairs:
    columns = ("neighbour_sm_percent", "batch", "neighbour_batch")
    return MeasuredPairs(
        # All rows of a pair are of one board.
        board=boards[rows[0]["gpu_type"]],
        conditions=np.log2([[float(row[name]) for name in columns] for row in rows]),
        excesses=np.array([float(row["factor"]) - 1.0 for row in rows]),
    )


def read_launch_delay() -> MeasuredRelation:
    """Delay per kernel launch in ms by the number of replicas on the GPU."""
    rows = [
        (float(row["replicas"]), float(row["delay_ms_per_kernel"]))
        for row in read("launch_delay.csv")
    ]
    return table(rows)


def read_watts() -> dict[str, WattsTable]:
    """Measured watts, by network."""
    rows: dict[str, dict[float, list[Row]]] = {}
    for row in read("watts.csv"):
        rows.setdefault(row["network"], {}).setdefault(
            float(row["sm_percent"]), []
        ).append(row)
    return {
        network: WattsTable(
            sm_percents=np.array(sorted(by_share)),
            by_batch=tuple(
                _watts_over(by_share[share], "batch") for share in sorted(by_share)
            ),
            by_duty=tuple(
                _watts_over(by_share[share], "duty") for share in sorted(by_share)
            ),
        )
        for network, by_share in rows.items()
    }


def _watts_over(rows: list[Row], column: str) -> MeasuredRelation:
    return table([(float(row[column]), float(row["watts"])) for row in rows])


def table(points: list[tuple[float, float]]) -> MeasuredRelation:
    """The relation through (x, y) points in any order."""
    x, y = zip(*sorted(points), strict=True)
    return MeasuredRelation(x=np.array(x), y=np.array(y))
