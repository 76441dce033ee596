"""Mélange's instances as planner problems, and Mélange's own optimum of them.

An instance has one workload over classes of request sizes, a price and a throughput per class for every GPU type, and
a number of pieces that every class is cut into. Mélange puts each piece on one type and buys the fewest whole GPUs that
the loads of a type's pieces, added up, need: Σ rate / throughput ≤ count. Which GPU of a type runs what is left open,
so that a piece may be spread over several.

As a planner problem: a class is a service, and what shares a GPU's time shares its SMs. A replica with x % of the SMs
carries x % of the throughput; none slows its neighbours, memory and watts do not bind, and the SLO, which is in the
throughputs already, is met by all. Rows are shares for 64ths of a class (or of a GPU, where the class needs more), for
64ths of a 64th, and for what the class needs beyond whole GPUs; each is rounded up to a multiple of `SM_PERCENT_STEP`,
so that a plan loses that much to Mélange per replica at most. On the other hand, its rates may be cut where Mélange's
may not.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from solvers.joint.kernels.types import Reals
from solvers.types.problem import (
    CapacityLaw,
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import GpuType

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "peer_inputs"
SM_PERCENT_STEP = 0.001
_PARTS = 64
_SLO_MS = 1.0e9
_CLOCK_MHZ = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instance:
    """One workload over C classes, and G GPU types."""

    name: str
    gpu_types: tuple[str, ...]
    price: Reals
    """(G,) USD per hour."""
    throughput: Reals
    """(G, C) rps of a whole GPU that serves nothing else."""
    rate: Reals
    """(C,) rps."""
    pieces: int
    """Of every class."""


def instances() -> list[Instance]:
    """All shared instances; none without the folder."""
    return [_read(path) for path in sorted(FOLDER.glob("hetero_*.json"))]


def _read(path: Path) -> Instance:
    document = json.loads(path.read_text(encoding="utf-8"))
    infos = document["gpu_info"]
    return Instance(
        name=path.stem,
        gpu_types=tuple(infos),
        price=np.array([info["cost"] for info in infos.values()]),
        throughput=np.array(
            [np.ravel(info["tputs"]) for info in infos.values()], dtype=np.float64
        ),
        rate=np.ravel(document["workload_distribution"])
        * document["total_request_rate"],
        pieces=document["slice_factor"],
    )


def melange_problem(instance: Instance) -> Problem:
    """The instance as a planner problem."""
    classes = range(len(instance.rate))
    return Problem(
        max_replicas_per_gpu=len(instance.rate),
        capacity_law=CapacityLaw(
            percentiles=(0.5,),
            batches=(1,),
            slo_ratios=(1.0, 2.0),
            max_utilisation=(((1.0, 1.0),),),
        ),
        gpu_types=tuple(
            GpuType(
                name=name,
                price_usd_per_hour=price,
                memory_mib=1.0,
                sm_percent_step=SM_PERCENT_STEP,
                idle_w=0.0,
                power_cap_w=1.0,
                clocks_mhz=(_CLOCK_MHZ,),
            )
            for name, price in zip(
                instance.gpu_types, instance.price.tolist(), strict=True
            )
        ),
        services=tuple(
            ServiceDemand(
                name=f"class-{each}",
                network=f"class-{each}",
                slo_ms=_SLO_MS,
                percentile=0.5,
                arrival_rate_rps=float(instance.rate[each]),
            )
            for each in classes
        ),
        points=tuple(
            OperatingPoints(
                network=f"class-{each}",
                gpu_type=name,
                sensitivity=0.0,
                rows=_rows(float(throughput[each]), float(instance.rate[each])),
            )
            for name, throughput in zip(
                instance.gpu_types, instance.throughput, strict=True
            )
            for each in classes
        ),
    )


def _rows(throughput_rps: float, rate_rps: float) -> tuple[OperatingPoint, ...]:
    load = rate_rps / throughput_rps
    parts = [
        min(load, 1.0) * part / whole
        for whole in (_PARTS, _PARTS**2)
        for part in range(1, _PARTS + 1)
    ]
    steps = {
        math.ceil(100.0 * part / SM_PERCENT_STEP - 1e-6)
        for part in (*parts, load % 1.0)
    }
    return tuple(
        _row(throughput_rps, step * SM_PERCENT_STEP)
        for step in sorted(steps)
        if step > 0
    )


def _row(throughput_rps: float, percent: float) -> OperatingPoint:
    return OperatingPoint(
        sm_percent=percent,
        batch=1,
        clock_mhz=_CLOCK_MHZ,
        transfer_ms=0.0,
        launch_ms=0.0,
        run_ms=1000.0 / (0.01 * percent * throughput_rps),
        memory_mib=0.0,
        power_w=0.0,
        pressure=0.0,
    )


def melange_optimum(instance: Instance, *, is_cut: bool = True) -> float:
    """USD per hour of Mélange's integer program, proven by HiGHS; pieces of a class, being equal, are counted.

    `is_cut`: classes in pieces as the instance says; without, rates may be split anywhere, which never costs more.
    """
    types, classes = instance.throughput.shape
    flows = types * classes
    load = instance.rate / instance.throughput / instance.pieces
    rows = np.zeros((classes + types, flows + types))
    for each in range(classes):
        rows[each, each:flows:classes] = 1.0
    for kind in range(types):
        rows[classes + kind, kind * classes : (kind + 1) * classes] = load[kind]
        rows[classes + kind, flows + kind] = -1.0
    least = np.concatenate((np.full(classes, instance.pieces), np.full(types, -np.inf)))
    most = np.concatenate((np.full(classes, instance.pieces), np.zeros(types)))
    found = milp(
        np.concatenate((np.zeros(flows), instance.price)),
        constraints=LinearConstraint(rows, least, most),
        integrality=np.concatenate((np.full(flows, int(is_cut)), np.ones(types))),
        bounds=Bounds(0.0, np.inf),
        options={"mip_rel_gap": 0.0},
    )
    if found.fun is None:
        raise RuntimeError(f"{instance.name}: {found.message}")
    return float(found.fun)
