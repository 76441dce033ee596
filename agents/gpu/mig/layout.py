"""Layouts of slices: what an operator writes, whether it fits, and in which orders a driver may be asked for it.

    parse("3g.71gb,1g.18gb", profiles) -> the profiles, the largest first; raises OutOfRange
    fits(wanted)                       -> whether they have places next to one another
    what_fits(wanted, profiles)        -> the most of them that has, and what else would go next to it, in words
    orders(wanted)                     -> every order of them, at most MAX_ORDERS

A driver places a slice where it likes when it is made, so that a layout may fit in one order and not in another. Pure
functions of profiles; places are those of an empty GPU.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice, permutations
from typing import TypeAlias

from agents.base.device import OutOfRange
from agents.gpu.nvml.mig_types import MigProfile, Placement

Wanted: TypeAlias = tuple[MigProfile, ...]

MAX_SLICES = 8
MAX_ORDERS = 720
"""Seven slices of four kinds have 420 to 840 orders; an order costs a driver a second at worst."""


def parse(text: str, profiles: Sequence[MigProfile]) -> Wanted:
    """The profiles of a layout in words, the largest first. Raises OutOfRange for what the GPU cannot have."""
    by_name = {each.name: each for each in profiles}
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = ", ".join(f"{each.name} (at most {each.max_count})" for each in profiles)
    if unknown := sorted(set(names) - by_name.keys()):
        raise OutOfRange(
            f"this GPU has no slice {', '.join(unknown)}; it can have {known}"
        )
    if not names or len(names) > MAX_SLICES:
        raise OutOfRange(
            f"a layout has 1 to {MAX_SLICES} slices, not {len(names)}; this GPU can have {known}"
        )
    return tuple(
        sorted(
            (by_name[name] for name in names),
            # Large slices have the fewest places, so they are placed before small ones lie in their way.
            key=lambda each: (-each.slice_count, -each.memory_mib),
        )
    )


def fits(wanted: Sequence[MigProfile], taken: tuple[Placement, ...] = ()) -> bool:
    """Whether all have a place next to one another."""
    # Depth-first with at most eight slices, so no bound is needed.
    if not wanted:
        return True
    free = (
        each
        for each in wanted[0].placements
        if not any(each.overlaps(other) for other in taken)
    )
    return any(fits(wanted[1:], (*taken, place)) for place in free)


def what_fits(wanted: Wanted, profiles: Sequence[MigProfile]) -> str:
    """The most of the wanted that fits, and what else there is room for next to it."""
    # From the largest part down, so that the first one that fits is a largest.
    largest_part = next(
        part
        for size in range(len(wanted), -1, -1)
        for part in combinations(wanted, size)
        if fits(part)
    )
    beside = room({each.name: _how_many(each, largest_part) for each in profiles})
    return f"{names_of(largest_part) or 'none of them'} would fit; besides that there is room for {beside}"


def room(counts: dict[str, int]) -> str:
    """How many of each kind, in words."""
    return (
        " or ".join(f"{count} x {name}" for name, count in counts.items() if count)
        or "nothing"
    )


def orders(wanted: Wanted) -> Iterator[Wanted]:
    """Every order once, the largest first at the beginning."""
    # Equal profiles make equal orders, of which only one is worth a try.
    return islice(_distinct(permutations(wanted)), MAX_ORDERS)


def names_of(profiles: Iterable[MigProfile]) -> str:
    """As an operator writes a layout."""
    return ",".join(each.name for each in profiles)


def is_same(wanted: Wanted, present: Iterable[int]) -> bool:
    """Whether slices of these profile ids are there, and no others."""
    return Counter(each.id for each in wanted) == Counter(present)


def _how_many(profile: MigProfile, beside: Sequence[MigProfile]) -> int:
    return next(
        count
        for count in range(profile.max_count, -1, -1)
        if fits((*beside, *[profile] * count))
    )


def _distinct(found: Iterable[Wanted]) -> Iterator[Wanted]:
    seen: set[tuple[int, ...]] = set()
    for each in found:
        key = tuple(profile.id for profile in each)
        if key not in seen:
            seen.add(key)
            yield each
