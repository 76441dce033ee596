"""Slices: how a GPU may be cut into parts that share nothing (NVIDIA's MIG), and which cuts are possible.

A GPU has eight memory slices. A profile takes some of them from certain first ones on, and no two slices may overlap;
that alone says which profiles fit together, for seven compute slices are never exceeded then. What matters to a plan is
how many slices of each profile a GPU has, not where they are: a *multiset* is possible when some placement has it.
Parts of possible multisets are possible, so that pricing may put slices on a GPU one after the other.

Source: NVIDIA Multi-Instance GPU User Guide, "Supported MIG Profiles"; first slices as `nvidia-smi mig -lgipp` lists
them, memory and most instances as `nvidia-smi mig -lgip` does (the A100-80GB's memory for the H100-80GB too, which
has a little more). Drivers differ by some MiB.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MEMORY_SLICES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceProfile:
    """One kind of slice, such as `3g.20gb`."""

    name: str
    memory_slices: int
    memory_mib: float
    starts: tuple[int, ...]
    """Memory slices that it may begin at."""
    most: int
    """On one GPU, whatever else is on it."""


class PlacedSlice(NamedTuple):
    """A slice at its place."""

    profile: str
    start: int
    """First memory slice."""


class Layouts(NamedTuple):
    """All ways to cut a GPU, as multisets over its P profiles; the first one is empty, and parts come before wholes."""

    counts: npt.NDArray[np.int32]
    """(X, P) slices of each profile."""
    less: npt.NDArray[np.int32]
    """(X, P) the multiset with one slice of the profile less; -1 where it has none."""


class Slicing(NamedTuple):
    """How the GPUs of a mode are cut, and which slice each of its candidates takes."""

    layouts: Layouts
    profile: npt.NDArray[np.int32]
    """(C,) position among the profiles."""


def _profiles(gib: Sequence[float], names: Sequence[str]) -> tuple[SliceProfile, ...]:
    """gib: of one, two, four and eight memory slices."""
    memory = dict(zip((1, 2, 4, 8), gib, strict=True))
    shapes = (
        (1, tuple(range(7)), 7),
        (1, tuple(range(7)), 1),
        (2, (0, 2, 4, 6), 4),
        (2, (0, 2, 4), 3),
        (4, (0, 4), 2),
        (4, (0,), 1),
        (8, (0,), 1),
    )
    return tuple(
        SliceProfile(
            name=name,
            memory_slices=slices,
            memory_mib=1024.0 * memory[slices],
            starts=starts,
            most=most,
        )
        for name, (slices, starts, most) in zip(names, shapes, strict=True)
    )


_80GB = ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
A100_40GB = _profiles(
    (4.75, 9.75, 19.62, 39.25),
    ("1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
)
A100_80GB = H100_80GB = _profiles((9.5, 19.5, 39.25, 78.75), _80GB)


@cache
def make_layouts(profiles: tuple[SliceProfile, ...], max_slices: int) -> Layouts:
    """All possible multisets of at most so many slices."""
    found: list[set[tuple[int, ...]]] = [set() for _ in range(MEMORY_SLICES + 1)]
    found[0].add((0,) * len(profiles))
    for start in range(MEMORY_SLICES):
        for counts in found[start]:
            found[start + 1].add(counts)
            for number, profile in enumerate(profiles):
                if start in profile.starts and counts[number] < profile.most:
                    grown = (
                        *counts[:number],
                        counts[number] + 1,
                        *counts[number + 1 :],
                    )
                    found[start + profile.memory_slices].add(grown)
    ordered = sorted(
        (one for one in found[-1] if sum(one) <= max_slices),
        key=lambda one: (sum(one), one),
    )
    position = {counts: at for at, counts in enumerate(ordered)}
    less = [
        [position.get(_one_less(counts, number), -1) for number in range(len(profiles))]
        for counts in ordered
    ]
    return Layouts(
        counts=np.array(ordered, dtype=np.int32), less=np.array(less, dtype=np.int32)
    )


def _one_less(counts: tuple[int, ...], number: int) -> tuple[int, ...]:
    return (*counts[:number], counts[number] - 1, *counts[number + 1 :])


def place(
    profiles: Sequence[SliceProfile], counts: Sequence[int]
) -> tuple[PlacedSlice, ...]:
    """Places for so many slices of each profile, by first memory slice. Raises ValueError when there are none."""
    placed = _place(profiles, tuple(counts), 0)
    if placed is None:
        wanted = ", ".join(
            f"{count} {one.name}"
            for one, count in zip(profiles, counts, strict=True)
            if count
        )
        raise ValueError(f"no GPU can be cut into {wanted}")
    return placed


def _place(
    profiles: Sequence[SliceProfile], counts: tuple[int, ...], start: int
) -> tuple[PlacedSlice, ...] | None:
    if not any(counts):
        return ()
    if start >= MEMORY_SLICES:
        return None
    # Large slices first: they have the fewest places.
    for number in sorted(
        range(len(profiles)), key=lambda one: -profiles[one].memory_slices
    ):
        profile = profiles[number]
        fits = (
            start in profile.starts and start + profile.memory_slices <= MEMORY_SLICES
        )
        if counts[number] > 0 and fits:
            rest = _place(
                profiles, _one_less(counts, number), start + profile.memory_slices
            )
            if rest is not None:
                return (PlacedSlice(profile.name, start), *rest)
    return _place(profiles, counts, start + 1)
