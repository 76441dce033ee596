"""HetSev's section 6.3 with curves like TensorFlow Serving's, under which a T4 is not nearly a V100.

PyTorch's host floor, in the simulator's measured curves, makes a T4 94 % as fast as a V100 at batch 8, so that cost
ratios are about the choice of T4s. Here a batch of b takes

    host + gpu · b / B        on a V100 and on a T4

with B the paper's batch; `gpu` on the V100 is RaPP's measured work per item, on the T4 that by Sia's published ratio;
`host` (client, server, copies) is set so that three identical replicas serve 1.85 times one on a V100, as the paper's
figure 1 has it. Different ones disturb each other less: three serve 2.00 times one here, and 1.36 times on a T4. Alone,
a T4 is then 51 to 57 % of a V100.

GPUs are shared as the paper shares them, without SM limits: a network's pressure is its duty, gpu / (host + gpu), a
neighbour that always runs costs 6 %, and beyond a whole GPU replicas take turns. What neighbours cost and batches below
the paper's are inferred, so every row is synthetic. Everything takes exactly what the planner reckons with.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from app.simulate.run.build import Catalogue, shipped_catalogue
from app.simulate.scenario.scenario import SimulationScenario
from solvers.types.problem import OperatingPoint, OperatingPoints

SENSITIVITY = 0.0625
"""Half of it per neighbour of half duty: 3 %."""
OVERLOAD = 1.0
"""Kernels share a full GPU fairly: with duties of u in all, everybody takes u times as long."""
_TABLE = Path(__file__).with_name("data") / "hetsev_tf_serving.csv"
_BOARDS = {"V100-32GB": "gpu_v100_ms", "T4": "gpu_t4_ms"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCurve:
    """One network of the paper, by what stands for it in the scenarios."""

    batch: int
    """The paper's."""
    host_ms: float
    gpu_ms: dict[str, float]
    """By board, of the paper's batch on the whole GPU."""

    def row(self, board: str, row: OperatingPoint) -> OperatingPoint:
        """The catalogue's row, its memory and watts, with this curve's times."""
        busy_ms = self.gpu_ms[board] * row.batch / self.batch
        batch_ms = self.host_ms + busy_ms
        return row._replace(
            transfer_ms=0.0,
            launch_ms=0.0,
            run_ms=batch_ms,
            pressure=busy_ms / batch_ms,
        )


@cache
def serving_curves() -> dict[str, ServingCurve]:
    """By network of the scenarios."""
    rows = csv.DictReader(_TABLE.read_text().splitlines())
    return {
        row["stand_in"]: ServingCurve(
            batch=int(row["batch"]),
            host_ms=float(row["host_ms"]),
            gpu_ms={board: float(row[column]) for board, column in _BOARDS.items()},
        )
        for row in rows
    }


def with_serving_curves(
    scenario: SimulationScenario,
) -> tuple[SimulationScenario, Catalogue]:
    """The scenario in a world of these curves, and the catalogue that has them in the place of its own."""
    shipped = shipped_catalogue(scenario)
    gpu_types = tuple(
        replace(each, overload=OVERLOAD, launch_per_neighbour=0.0, launch_base=0.0)
        for each in shipped.gpu_types
    )
    points = tuple(_with_curves(entry) for entry in shipped.points)
    spec = scenario.spec.model_copy(update={"truth": "planned"})
    planned = scenario.model_copy(update={"spec": spec})
    return planned, Catalogue(gpu_types=gpu_types, points=points)


def _with_curves(entry: OperatingPoints) -> OperatingPoints:
    return replace(entry, sensitivity=SENSITIVITY, rows=tuple(_rows(entry)))


def _rows(entry: OperatingPoints) -> Iterator[OperatingPoint]:
    curve = serving_curves()[entry.network]
    for row in entry.rows:
        # The paper sends batches of its own size and no larger ones, and sets no SM percents.
        if row.batch <= curve.batch and row.sm_percent == 100.0:
            yield curve.row(entry.gpu_type, row)
