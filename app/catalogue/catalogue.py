"""The GPU types and operating points that ship with Plimsoll.

The figures are CSV files in `data/`; where each comes from stands in `SOURCES.md`, and every operating point carries
its provenance. They are what the planner believes before anybody has profiled a GPU of their own.

GPU type names join the board and, where it is sold with several, its memory: V100-16GB, V100-32GB, A100-40GB.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import resources
from typing import Literal, TypeAlias

from solvers.predict.data.samples import LayerCounts
from solvers.types.problem import (
    CapacityLaw,
    OperatingPoint,
    OperatingPoints,
    Problem,
)
from solvers.types.state import GpuType

SM_PERCENT_STEP = 5.0
"""Finest step of the shipped GPU types; the shipped rows use every second one."""
_SIZES = ("network", "parameters_millions", "gmacs", "activations_millions")
"""Columns of the layer counts that count no kind of layer."""

_FIGURES = tuple(
    name for name in OperatingPoint._fields if name not in ("batch", "stall_ms")
)

Row = Mapping[str, str]
NetworkKind: TypeAlias = Literal["inference", "training"]
"""What a network's batch is: requests of a service or inputs of an offline task, or one step of a training task."""


class CatalogueError(LookupError):
    """The catalogue holds no network or GPU type of that name."""


def load_gpu_types(names: Iterable[str] | None = None) -> tuple[GpuType, ...]:
    """All shipped GPU types, or those named, in the catalogue's order; `power_cap_w` is the board's TDP.

    Raises `CatalogueError` for a name that is not shipped.
    """
    known = {row["name"]: row for row in _rows("gpu_types.csv")}
    return tuple(_gpu_type(known[name]) for name in _select(names, known, "GPU type"))


def list_networks(kind: NetworkKind | None = None) -> tuple[str, ...]:
    """Names of all shipped networks, or of those of one kind."""
    return tuple(
        row["network"] for row in _rows("networks.csv") if kind in (None, row["kind"])
    )


def not_for_services(network: str) -> str:
    """Why no service can run a training network, and what can."""
    return (
        f"{network} is a training network: its batch is one training step, for which no request waits; "
        "run it as a task, and give the service an inference network"
    )


def load_profiles(
    networks: Iterable[str] | None = None, gpu_types: Iterable[str] | None = None
) -> tuple[OperatingPoints, ...]:
    """Operating points of the named networks (None = all) on the named GPU types (None = all), in catalogue order.

    Raises `CatalogueError` for a name that is not shipped.
    """
    shipped_types = [row["name"] for row in _rows("gpu_types.csv")]
    types = _select(gpu_types, shipped_types, "GPU type")
    sensitivity = _sensitivities()
    found = []
    for network in _select(networks, list_networks(), "network"):
        rows = _points_by_type(network)
        found += [
            OperatingPoints(
                network=network,
                gpu_type=gpu_type,
                sensitivity=sensitivity[network, gpu_type],
                rows=tuple(rows[gpu_type]),
            )
            for gpu_type in types
        ]
    return tuple(found)


def _sensitivities() -> dict[tuple[str, str], float]:
    """By network and GPU type."""
    return {
        (row["network"], row["gpu_type"]): float(row["sensitivity"])
        for name in ("sensitivity.csv", "training_sensitivity.csv")
        for row in _rows(name)
    }


def with_gpu_types(problem: Problem, names: Iterable[str]) -> Problem:
    """The problem with those of these types that it lacks and the catalogue has: none in stock, at the catalogue's
    price, with the shipped operating points of the problem's networks."""
    there = {gpu_type.name for gpu_type in problem.gpu_types}
    shipped = {row["name"] for row in _rows("gpu_types.csv")}
    new = sorted((set(names) - there) & shipped)
    if not new:
        return problem
    networks = {service.network for service in problem.services}
    points = load_profiles(networks & set(list_networks()), new)
    types = (replace(gpu_type, count=0) for gpu_type in load_gpu_types(new))
    return replace(
        problem,
        gpu_types=(*problem.gpu_types, *types),
        points=(*problem.points, *points),
        capacity_law=_law_for(problem.capacity_law, points),
    )


def _law_for(law: CapacityLaw, points: Iterable[OperatingPoints]) -> CapacityLaw:
    """The law with the batches of these points: it is a table by batch, and has no figures for others."""
    # Imported late: it needs SciPy, whose import takes longer than most commands that read the catalogue.
    from solvers.laws.capacity_law import make_capacity_law

    batches = {row.batch for entry in points for row in entry.rows}
    return make_capacity_law(law.percentiles, sorted(batches.union(law.batches)))


def load_provenance(network: str) -> tuple[tuple[str, OperatingPoint, str], ...]:
    """Every operating point of one network with its GPU type and how it is known: measured, scaled or estimated."""
    _select([network], list_networks(), "network")
    return tuple(
        (row["gpu_type"], _point(row), row["provenance"])
        for row in _rows(f"profiles/{network}.csv")
    )


def load_actors() -> Mapping[str, bytes]:
    """The shipped trained actors, by the fingerprint of the fleet that each was trained for."""
    folder = resources.files("app.catalogue") / "data" / "actors"
    # A build without trained actors is complete: policies ask for theirs when they plan.
    if not folder.is_dir():
        return {}
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".npz")),
        key=lambda file: file.name,
    )
    return {file.name.removesuffix(".npz"): file.read_bytes() for file in files}


def load_layers() -> Mapping[str, LayerCounts]:
    """Layer counts of every network that was counted, by name; more networks than have operating points."""
    return {row["network"]: _layer_counts(row) for row in _rows("layers.csv")}


def load_training_layers() -> tuple[LayerCounts, ...]:
    """Layer counts of the shipped training networks, by which training that was never profiled is judged."""
    return tuple(map(_layer_counts, _rows("training_layers.csv")))


def _layer_counts(row: Row) -> LayerCounts:
    return LayerCounts(
        network=row["network"],
        # The columns are the kinds: a kind that is counted later needs no code here.
        counts={kind: int(count) for kind, count in row.items() if kind not in _SIZES},
        parameters_millions=float(row["parameters_millions"]),
        # Known of inference networks alone.
        gmacs=float(row["gmacs"]) if "gmacs" in row else None,
    )


def _gpu_type(row: Row) -> GpuType:
    delays = {each["gpu_type"]: each for each in _rows("launch_delay.csv")}
    delay = delays[row["name"]]
    return GpuType(
        name=row["name"],
        price_usd_per_hour=float(row["price_usd_per_hour"]),
        memory_mib=float(row["memory_mib"]),
        sm_percent_step=SM_PERCENT_STEP,
        idle_w=float(row["idle_w"]),
        power_cap_w=float(row["tdp_w"]),
        clocks_mhz=tuple(float(clock) for clock in row["clocks_mhz"].split(";")),
        launch_per_neighbour=float(delay["launch_per_neighbour"]),
        launch_base=float(delay["launch_base"]),
    )


def _points_by_type(network: str) -> dict[str, list[OperatingPoint]]:
    points: dict[str, list[OperatingPoint]] = {}
    for row in _rows(f"profiles/{network}.csv"):
        points.setdefault(row["gpu_type"], []).append(_point(row))
    return points


def _point(row: Row) -> OperatingPoint:
    # The columns have the fields' names; the batch alone is an integer.
    figures = {name: float(row[name]) for name in _FIGURES}
    # Of training alone.
    stall_ms = float(row.get("stall_ms", 0.0))
    return OperatingPoint(batch=int(row["batch"]), stall_ms=stall_ms, **figures)


def _select(names: Iterable[str] | None, known: Iterable[str], what: str) -> list[str]:
    """`known` in its own order, cut down to `names` unless that is None."""
    # In the catalogue's own order, so that the same fleet gives the same problem however it was asked for.
    ordered = list(known)
    wanted = set(ordered if names is None else names)
    if unknown := sorted(wanted - set(ordered)):
        raise CatalogueError(
            f"the catalogue has no {what} {', '.join(unknown)}; it has {', '.join(ordered)}"
        )
    return [name for name in ordered if name in wanted]


def _rows(name: str) -> Iterator[Row]:
    # Read as a package's resource: installed from a wheel there may be no folder.
    text = (resources.files("app.catalogue") / "data" / name).read_text()
    yield from csv.DictReader(text.splitlines())
