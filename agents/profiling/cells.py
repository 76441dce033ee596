"""What is to be measured: cells of networks, shares, batches and clocks, in an order that a seed decides.

    Member(network, batch, sm_percent)         one bench of a cell
    Cell(members, clock_mhz)                   measured in the same windows; one member = alone
    grid(networks, shares, batches, clocks)    every network alone
    pairs(networks, splits, batches, clocks)   two networks side by side, also a network next to itself
    by_bench_set(cells, seed) -> [(set, cells)] cells by the benches that they need, shuffled, pairs last

Starting a process takes seconds and changing its batch none, so cells of the same processes follow each other. Their
order is shuffled: what drifts while a GPU warms up must not look like an effect of the batch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from random import Random
from typing import TypeAlias

from agents.base.device import DeviceError, OutOfRange

MAX_BATCH = 4096
"""What a runtime template takes."""
MAX_CELLS = 20_000
MAX_MEMBERS = 8


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BenchSettings:
    """One process of a cell: what is fixed for its life."""

    network: str
    sm_percent: float


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Member:
    """One network in a cell."""

    network: str
    batch: int
    sm_percent: float

    @property
    def bench(self) -> BenchSettings:
        """The process that runs it, whatever the batch."""
        return BenchSettings(network=self.network, sm_percent=self.sm_percent)

    def __str__(self) -> str:
        return f"{self.network} batch {self.batch} at {self.sm_percent:g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementCell:
    """One point of measurement."""

    members: tuple[Member, ...]
    """Sorted; all run at the same time."""
    clock_mhz: float | None = None
    """To be locked; None = as the GPU likes."""

    def __str__(self) -> str:
        clock = "" if self.clock_mhz is None else f", {self.clock_mhz:g} MHz"
        return " next to ".join(map(str, self.members)) + clock


BenchSet: TypeAlias = tuple[BenchSettings, ...]
"""Benches that are started and measured together."""


def make_cell(
    members: Iterable[Member], clock_mhz: float | None = None
) -> MeasurementCell:
    """A cell whose members are in order. Raises OutOfRange where it cannot be measured."""
    # In order, so that a with b and b with a are one cell.
    ordered = tuple(sorted(members))
    if not 1 <= len(ordered) <= MAX_MEMBERS:
        raise OutOfRange(
            f"{len(ordered)} networks side by side cannot be measured; 1 to {MAX_MEMBERS} can"
        )
    for each in ordered:
        if not 1 <= each.batch <= MAX_BATCH:
            raise OutOfRange(
                f"batch {each.batch} of {each.network} must be 1 to {MAX_BATCH}"
            )
        if not 0.0 < each.sm_percent <= 100.0:
            raise OutOfRange(
                f"share {each.sm_percent:g} of {each.network} must be above 0 and at most 100 %"
            )
    if clock_mhz is not None and not 0.0 < clock_mhz < 1e5:
        raise OutOfRange(f"clock {clock_mhz:g} MHz is none")
    return MeasurementCell(members=ordered, clock_mhz=clock_mhz)


def grid(
    networks: Sequence[str],
    shares: Sequence[float],
    batches: Sequence[int],
    clocks_mhz: Sequence[float] = (),
) -> tuple[MeasurementCell, ...]:
    """Every network alone at every share, batch and clock. Raises OutOfRange."""
    found = (
        make_cell([Member(network=network, batch=batch, sm_percent=share)], clock)
        for network, share, batch, clock in product(
            networks, shares, batches, tuple(clocks_mhz) or (None,)
        )
    )
    return _distinct(found)


def pairs(
    networks: Sequence[str],
    splits: Sequence[tuple[float, float]],
    batches: Sequence[int],
    clocks_mhz: Sequence[float] = (),
) -> tuple[MeasurementCell, ...]:
    """Two networks side by side, with every split of the SMs and every two batches. Raises OutOfRange."""
    clocks = tuple(clocks_mhz) or (None,)
    found = []
    for (one, other), split, sizes, clock in product(
        combinations_with_replacement(networks, 2),
        splits,
        product(batches, repeat=2),
        clocks,
    ):
        members = [
            Member(network=network, batch=batch, sm_percent=share)
            for network, batch, share in zip((one, other), sizes, split, strict=True)
        ]
        found.append(make_cell(members, clock))
    return _distinct(found)


def at_most(
    cells: Sequence[MeasurementCell], number: int, *, seed: int
) -> tuple[MeasurementCell, ...]:
    """`number` of the cells, the same for the same seed, in their order."""
    if len(cells) <= number:
        return tuple(cells)
    # A string as seed does not depend on PYTHONHASHSEED, and "/choice" keeps this draw apart from that of the order.
    chosen = sorted(Random(f"{seed}/choice").sample(range(len(cells)), number))
    return tuple(cells[place] for place in chosen)


def by_bench_set(
    cells: Iterable[MeasurementCell], *, seed: int
) -> tuple[tuple[BenchSet, tuple[MeasurementCell, ...]], ...]:
    """The cells of each set of processes; the order is the seed's, whatever the order of the cells was."""
    cells_by_set: dict[BenchSet, list[MeasurementCell]] = {}
    # Sorted before the shuffle: else the order of the arguments would leak into the seed's order.
    for cell in sorted(_distinct(cells), key=_key):
        cells_by_set.setdefault(tuple(each.bench for each in cell.members), []).append(
            cell
        )
    random = Random(f"{seed}/order")
    ordered = list(cells_by_set.items())
    random.shuffle(ordered)
    # Without the latency alone a pair says nothing, so a profile that ends early had better lack pairs.
    ordered.sort(key=lambda each: len(each[0]))
    for _, group in ordered:
        random.shuffle(group)
    return tuple((bench_set, tuple(group)) for bench_set, group in ordered)


def _key(cell: MeasurementCell) -> tuple[int, tuple[Member, ...], float]:
    return len(cell.members), cell.members, cell.clock_mhz or 0.0


def _distinct(cells: Iterable[MeasurementCell]) -> tuple[MeasurementCell, ...]:
    """Each cell once. Raises OutOfRange when they are too many."""
    # A dictionary keeps the order, which a set would not.
    found = tuple(dict.fromkeys(cells))
    if len(found) > MAX_CELLS:
        raise OutOfRange(
            f"{len(found)} cells are more than {MAX_CELLS}; give fewer shares, batches or networks"
        )
    return found


class ProfileError(DeviceError):
    """Base of everything that a profile raises on purpose."""


class NotSteady(ProfileError):
    """A cell's windows never agreed."""


class BenchFailed(ProfileError):
    """A cell cannot be measured."""


class BenchLost(BenchFailed):
    """The process is of no further use."""
