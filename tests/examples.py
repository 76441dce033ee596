"""How many random examples a property is tried on: few before every commit, more in `make test-all`.

    @settings(max_examples=examples(60))            # 30 in `make test`, 120 in `make test-all`
    @pytest.mark.parametrize("seed", seeds(20))     # 0 to 9 in `make test`, all in `make test-all`
    @pytest.mark.seeded                             # a loop of a test that `make test-all` repeats:
    ... for seed in range(tried(20)):               # 0 to 9 in `make test`, all in `make test-all`

Where a property names no number it is 25 or 100. `PLIMSOLL_TESTS=all` chooses the second.
"""

import os
from collections.abc import Sequence

import pytest
from hypothesis import settings

IS_THOROUGH = os.environ.get("PLIMSOLL_TESTS") == "all"

# Named, since where CI is set Hypothesis begins with a profile that tries the same examples every time. Without its
# deadline of 0.2 s: on a busy machine it fails whatever test is just interrupted.
_RANDOM = settings(settings.get_profile("default"), deadline=None)
settings.register_profile("few", _RANDOM, max_examples=25)
settings.register_profile("all", _RANDOM, max_examples=100)


def examples(count: int) -> int:
    """A count for this run: half of it, or twice as many in `make test-all`."""
    return 2 * count if IS_THOROUGH else max(1, count // 2)


def tried(count: int) -> int:
    """How many of `count` cases a test that is marked `seeded` goes through: half, or all in `make test-all`."""
    return count if IS_THOROUGH else max(1, count // 2)


def seeds(count: int, *, first: int = 0) -> Sequence[pytest.ParameterSet]:
    """`count` seeds from `first` on, the second half of them only in `make test-all`."""
    in_both = max(1, count // 2)
    return [
        pytest.param(
            first + number, marks=() if number < in_both else pytest.mark.thorough
        )
        for number in range(count)
    ]


def load_profile() -> None:
    """Make it the default of tests that name no number; before their modules are imported."""
    settings.load_profile("all" if IS_THOROUGH else "few")
