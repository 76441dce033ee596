"""How many random examples a property is tried on: few for every change, many in the night.

    @settings(max_examples=examples(60))    # 30 in `make test`, 240 in `make test-nightly`

Where a test names no number it is 25 or 400. `PLIMSOLL_TESTS=nightly` chooses the night's.
"""

import os

from hypothesis import settings

IS_NIGHTLY = os.environ.get("PLIMSOLL_TESTS") == "nightly"

# Named, since where CI is set Hypothesis begins with a profile that tries the same examples every time. Without its
# deadline of 0.2 s: on a busy machine it fails whatever test is just interrupted.
_RANDOM = settings(settings.get_profile("default"), deadline=None)
settings.register_profile("fast", _RANDOM, max_examples=25)
settings.register_profile("nightly", _RANDOM, max_examples=400)


def examples(count: int) -> int:
    """A count for this run: half of it, or four times as many in the night."""
    return 4 * count if IS_NIGHTLY else max(1, count // 2)


def load_profile() -> None:
    """Make it the default of tests that name no number; before their modules are imported."""
    settings.load_profile("nightly" if IS_NIGHTLY else "fast")
