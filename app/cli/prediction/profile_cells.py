"""What `plimsoll profile run` is asked to measure, as cells: lists on the command line, or a plan of points."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from agents.base.device import OutOfRange
from agents.profiling.cells import (
    MeasurementCell,
    Member,
    at_most,
    grid,
    make_cell,
    pairs,
)
from app.cli.common.output import count


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
        beside = _pairs(
            wanted,
            clocks,
            sorted({member.network for cell in alone for member in cell.members}),
        )
    except OutOfRange as error:
        raise typer.BadParameter(str(error)) from error
    chosen = at_most(beside, wanted.max_pairs, seed=wanted.seed)
    if len(chosen) < len(beside):
        notes += (
            f"{len(chosen)} of {count(len(beside), 'pair')} were drawn; --max-pairs takes more",
        )
    cells = tuple(dict.fromkeys((*alone, *chosen)))
    if not cells:
        raise typer.BadParameter("there is nothing to measure")
    return cells, notes


def read_numbers(words: str, option: str) -> tuple[float, ...]:
    """`10,25,50` as numbers above 0, ascending, each once. Raises BadParameter."""
    try:
        numbers = {float(word) for word in words.split(",")}
    except ValueError as error:
        raise typer.BadParameter(
            f"{words!r} is no list like 10,25,50", param_hint=f"'{option}'"
        ) from error
    if not all(0.0 < number < math.inf for number in numbers):
        raise typer.BadParameter(
            f"{words!r} must be numbers above 0", param_hint=f"'{option}'"
        )
    return tuple(sorted(numbers))


def read_splits(words: str) -> tuple[tuple[float, float], ...]:
    """`25:75,50:50` as pairs of shares. Raises BadParameter."""
    found = []
    for word in words.split(","):
        parts = word.split(":")
        try:
            one, other = map(float, parts)
        except ValueError as error:
            raise typer.BadParameter(
                f"{word!r} is no split like 25:75", param_hint="'--pair-shares'"
            ) from error
        found.append((one, other))
    return tuple(found)


def _whole(words: str) -> tuple[int, ...]:
    numbers = read_numbers(words, "--batches")
    if any(number != int(number) for number in numbers):
        raise typer.BadParameter(
            f"{words!r} must be whole numbers", param_hint="'--batches'"
        )
    return tuple(map(int, numbers))


def _grid(
    wanted: ProfileOptions, clocks: Sequence[float]
) -> tuple[MeasurementCell, ...]:
    return grid(
        wanted.networks,
        read_numbers(wanted.shares, "--shares"),
        _whole(wanted.batches),
        clocks,
    )


def _pairs(
    wanted: ProfileOptions, clocks: Sequence[float], networks: Sequence[str]
) -> tuple[MeasurementCell, ...]:
    if not wanted.splits:
        return ()
    return pairs(networks, read_splits(wanted.splits), _whole(wanted.batches), clocks)


def _planned(
    path: Path, wanted: ProfileOptions, clocks: Sequence[float]
) -> tuple[tuple[MeasurementCell, ...], tuple[str, ...]]:
    """The points of a plan on this GPU type. Clocks are locked only at what --clocks names."""
    from app.measurements.csv_files import read_queries

    at = read_queries(path).queries
    cells: dict[MeasurementCell, None] = {}
    other_type = other_clock = 0
    for row, network in enumerate(at.network):
        if at.gpu_type[row] != wanted.gpu_type:
            other_type += 1
            continue
        if clocks and float(at.clock_mhz[row]) not in clocks:
            other_clock += 1
            continue
        own = Member(
            network=network,
            batch=round(float(at.batch[row])),
            sm_percent=float(at.sm_percent[row]),
        )
        neighbours = (
            Member(
                network=each.network,
                batch=round(each.batch),
                sm_percent=each.sm_percent,
            )
            for each in at.neighbours[row]
        )
        cells[
            make_cell((own, *neighbours), float(at.clock_mhz[row]) if clocks else None)
        ] = None
    notes = []
    if other_type:
        notes.append(
            f"{count(other_type, 'point')} of {path} are of another GPU type than {wanted.gpu_type}"
        )
    if other_clock:
        notes.append(
            f"{count(other_clock, 'point')} of {path} have a clock that --clocks does not name"
        )
    if not clocks and not all(map(math.isnan, at.clock_mhz.tolist())):
        notes.append(
            "the plan's clocks are passed over: without --clocks no clock is locked"
        )
    return tuple(cells), tuple(notes)
