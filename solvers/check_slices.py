"""Whether a GPU can be cut into slices of given profiles, found by trying where each may begin.

Part of the checker: the solvers count layouts in another way (`solvers.types.slices`).
"""

from collections.abc import Sequence

from solvers.types.slices import SliceProfile


def can_be_cut(wanted: Sequence[SliceProfile]) -> bool:
    """Whether all slices have a place on one GPU."""
    # The largest first: there are fewest places for them.
    return _has_places(sorted(wanted, key=lambda one: -one.memory_slices), 0)


def _has_places(wanted: Sequence[SliceProfile], taken: int) -> bool:
    """The same next to the memory slices that are taken, a bit each."""
    if not wanted:
        return True
    first = wanted[0]
    places = [((1 << first.memory_slices) - 1) << start for start in first.starts]
    return any(
        not taken & place and _has_places(wanted[1:], taken | place) for place in places
    )
