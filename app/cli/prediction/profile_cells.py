"""What `plimsoll profile run` is asked to measure, as cells: lists on the command line, or a plan of points."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from agents.base.device import OutOfRange
from agents.base.plurals import counted
from agents.profiling.cells import (
    MeasurementCell,
    Member,
    at_most,
    grid,
    make_cell,
    pairs,
)

if TYPE_CHECKING:
    from solvers.predict.data.samples import Queries


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """The command's words."""

    networks: tuple[str, ...]
    gpu_type: str
    shares: str
    batches: str
    clocks: str
    """Empty: none is locked."""
    plan: Path | None
    splits: str
    """Empty: no pairs."""
    max_pairs: int
    seed: int


def make_cells(
    wanted: ProfileOptions,
) -> tuple[tuple[MeasurementCell, ...], tuple[str, ...]]:
    """The cells, and what should be said of them. Raises BadParameter or InvalidRequest."""
    if not wanted.networks and wanted.plan is None:
        raise typer.BadParameter("give at least one", param_hint="'--network'")
    clocks = read_numbers(wanted.clocks, "--clocks") if wanted.clocks else ()
    try:
        alone, notes = (
            _planned(wanted.plan, wanted, clocks)
            if wanted.plan
            else (_grid(wanted, clocks), ())
        )
        # A plan may name networks beyond those of the command line.
        networks = sorted({each.network for cell in alone for each in cell.members})
        beside = _pairs(wanted, clocks, networks)
    except OutOfRange as error:
        raise typer.BadParameter(str(error)) from error
    drawn = at_most(beside, wanted.max_pairs, seed=wanted.seed)
    if len(drawn) < len(beside):
        notes += (
            f"{len(drawn):,} of {counted(len(beside), 'pair')} were drawn; --max-pairs takes more",
        )
    # A plan may hold a pair that is drawn as well: measured once, in the first one's place.
    cells = tuple(dict.fromkeys((*alone, *drawn)))
    if not cells:
        raise typer.BadParameter("there is nothing to measure")
    return cells, notes


def read_numbers(listed: str, option: str) -> tuple[float, ...]:
    """`10,25,50` as numbers above 0, ascending, each once. Raises BadParameter."""
    try:
        # A set: a number that is given twice is measured once.
        numbers = {float(word) for word in listed.split(",")}
    except ValueError as error:
        raise typer.BadParameter(
            f"{listed!r} is not a list like 10,25,50", param_hint=f"'{option}'"
        ) from error
    if not all(0.0 < number < math.inf for number in numbers):
        raise typer.BadParameter(
            f"{listed!r} must be numbers above 0", param_hint=f"'{option}'"
        )
    return tuple(sorted(numbers))


def read_splits(listed: str) -> tuple[tuple[float, float], ...]:
    """`25:75,50:50` as pairs of shares. Raises BadParameter."""
    found = []
    for split in listed.split(","):
        try:
            # Also refuses three shares: pairs are what interference is learned from.
            one, other = map(float, split.split(":"))
        except ValueError as error:
            raise typer.BadParameter(
                f"{split!r} is not a split like 25:75", param_hint="'--pair-shares'"
            ) from error
        found.append((one, other))
    return tuple(found)


def _batches(listed: str) -> tuple[int, ...]:
    numbers = read_numbers(listed, "--batches")
    if any(number != int(number) for number in numbers):
        raise typer.BadParameter(
            f"{listed!r} must be whole numbers", param_hint="'--batches'"
        )
    return tuple(map(int, numbers))


def _grid(
    wanted: ProfileOptions, clocks: Sequence[float]
) -> tuple[MeasurementCell, ...]:
    return grid(
        wanted.networks,
        read_numbers(wanted.shares, "--shares"),
        _batches(wanted.batches),
        clocks,
    )


def _pairs(
    wanted: ProfileOptions, clocks: Sequence[float], networks: Sequence[str]
) -> tuple[MeasurementCell, ...]:
    if not wanted.splits:
        return ()
    return pairs(networks, read_splits(wanted.splits), _batches(wanted.batches), clocks)


def _planned(
    path: Path, wanted: ProfileOptions, clocks: Sequence[float]
) -> tuple[tuple[MeasurementCell, ...], tuple[str, ...]]:
    """The points of a plan on this GPU type. Clocks are locked only at what --clocks names."""
    from app.measurements.csv_files import read_queries

    at = read_queries(path).queries
    # A dictionary, as points that differ in their clock alone are one cell where no clock is locked.
    cells: dict[MeasurementCell, None] = {}
    other_type = other_clock = 0
    for row in range(len(at)):
        if at.gpu_type[row] != wanted.gpu_type:
            other_type += 1
        elif clocks and float(at.clock_mhz[row]) not in clocks:
            other_clock += 1
        else:
            clock_mhz = float(at.clock_mhz[row]) if clocks else None
            cells[make_cell(_members(at, row), clock_mhz)] = None
    notes = []
    if other_type:
        notes.append(
            f"{counted(other_type, 'point')} of {path} are of another GPU type than {wanted.gpu_type}"
        )
    if other_clock:
        notes.append(
            f"{counted(other_clock, 'point')} of {path} have a clock that --clocks does not name"
        )
    if not clocks and not all(map(math.isnan, at.clock_mhz.tolist())):
        notes.append(
            "the plan's clocks are ignored: without --clocks no clock is locked"
        )
    return tuple(cells), tuple(notes)


def _members(at: "Queries", row: int) -> tuple[Member, ...]:
    """The network of a point, then its neighbours."""
    own = Member(
        network=at.network[row],
        batch=round(float(at.batch[row])),
        sm_percent=float(at.sm_percent[row]),
    )
    neighbours = (
        Member(
            network=each.network, batch=round(each.batch), sm_percent=each.sm_percent
        )
        for each in at.neighbours[row]
    )
    return own, *neighbours
