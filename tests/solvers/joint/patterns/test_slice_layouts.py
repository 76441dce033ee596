"""How GPUs may be cut into slices: exactly the combinations that NVIDIA's guide shows."""

import itertools

import numpy as np
import pytest

from solvers.joint.patterns.slice_layouts import (
    A100_40GB,
    A100_80GB,
    H100_80GB,
    MEMORY_SLICES,
    SliceProfile,
    make_layouts,
    place,
)

PLAIN = tuple(
    profile
    for profile in A100_40GB
    if profile.name in ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
)
PUBLISHED = {
    "7", "43", "421", "4111", "33", "321", "3111", "223", "2113", "1123", "11113",
    "2221", "21121", "11221", "211111", "112111", "111121", "1111111", "22111",
}  # fmt: skip
"""The guide's 19 configurations of an A100, as compute slices from left to right."""


def compute_slices(profile: SliceProfile) -> int:
    """Sevenths of the GPU's SMs, as its name says."""
    return int(profile.name[0])


def maximal_placements(profiles: tuple[SliceProfile, ...]) -> set[str]:
    """Compute slices from left to right of all placements to which nothing can be added, by trying all of them."""
    spots = [(profile, start) for profile in profiles for start in profile.starts]
    found = set()

    def taken(chosen: tuple[tuple[SliceProfile, int], ...]) -> set[int]:
        return {
            start + at
            for profile, start in chosen
            for at in range(profile.memory_slices)
        }

    def fits(
        chosen: tuple[tuple[SliceProfile, int], ...], profile: SliceProfile, start: int
    ) -> bool:
        return not taken(chosen) & set(range(start, start + profile.memory_slices))

    def grow(chosen: tuple[tuple[SliceProfile, int], ...], start: int) -> None:
        if start == MEMORY_SLICES:
            if not any(fits(chosen, *spot) for spot in spots):
                found.add(
                    "".join(str(compute_slices(profile)) for profile, _ in chosen)
                )
            return
        grow(chosen, start + 1)
        for profile, at in spots:
            if at == start and fits(chosen, profile, at):
                grow((*chosen, (profile, at)), start + 1)

    grow((), 0)
    return found


def test_the_placements_of_an_a100_are_the_19_of_the_guide() -> None:
    assert maximal_placements(PLAIN) == PUBLISHED


def test_the_possible_multisets_are_the_parts_of_those_19() -> None:
    by_compute = {
        str(compute_slices(profile)): number for number, profile in enumerate(PLAIN)
    }
    parts = {
        tuple(
            np.bincount(
                [by_compute[one] for one in some], minlength=len(PLAIN)
            ).tolist()
        )
        for whole in PUBLISHED
        for size in range(len(whole) + 1)
        for some in itertools.combinations(whole, size)
    }
    assert set(map(tuple, make_layouts(PLAIN, 7).counts.tolist())) == parts


@pytest.mark.parametrize("profiles", [A100_40GB, A100_80GB, H100_80GB])
def test_every_multiset_has_places_without_overlap(
    profiles: tuple[SliceProfile, ...],
) -> None:
    known = {profile.name: profile for profile in profiles}
    for counts in make_layouts(profiles, 7).counts:
        placed = place(profiles, counts.tolist())
        assert all(one.start in known[one.profile].starts for one in placed)
        slices = [
            one.start + at
            for one in placed
            for at in range(known[one.profile].memory_slices)
        ]
        assert len(set(slices)) == len(slices) and all(
            one < MEMORY_SLICES for one in slices
        )
        assert sum(compute_slices(known[one.profile]) for one in placed) <= 7
        assert sorted(one.profile for one in placed) == sorted(
            profile.name
            for profile, count in zip(profiles, counts, strict=True)
            for _ in range(count)
        )


@pytest.mark.parametrize(
    "counts",
    [
        (8, 0, 0, 0, 0, 0, 0),
        (0, 0, 0, 0, 1, 2, 0),
        (1, 0, 0, 0, 0, 0, 1),
        (0, 0, 0, 4, 0, 0, 0),
    ],
)
def test_more_than_fits_has_no_place(counts: tuple[int, ...]) -> None:
    assert counts not in set(map(tuple, make_layouts(A100_40GB, 7).counts.tolist()))
    with pytest.raises(ValueError, match="no GPU can be cut into"):
        place(A100_40GB, counts)


def test_only_one_slice_has_media_extensions() -> None:
    assert make_layouts(A100_80GB, 7).counts[:, 1].max() == 1


def test_one_slice_less_is_a_possible_multiset() -> None:
    layouts = make_layouts(H100_80GB, 7)
    for at, counts in enumerate(layouts.counts):
        for number, count in enumerate(counts):
            less = layouts.less[at, number]
            assert (less >= 0) == (count > 0)
            if less >= 0:
                expected = counts.copy()
                expected[number] -= 1
                assert (layouts.counts[less] == expected).all()


def test_no_multiset_has_more_slices_than_replicas_are_allowed() -> None:
    assert make_layouts(A100_40GB, 3).counts.sum(axis=1).max() == 3
