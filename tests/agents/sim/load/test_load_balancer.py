"""To whom the door gives requests: the table against the search that it stands for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agents.sim.load.load_balancer import find_places


@given(
    weights=st.lists(
        st.sampled_from([0.0, 0.1, 1.0, 7.0, 1e6]) | st.floats(0.0, 1.0),
        min_size=1,
        max_size=40,
    ),
    shares=st.lists(st.floats(0.0, 1.0, exclude_max=True), max_size=50),
)
def test_each_share_finds_the_place_that_a_binary_search_finds(
    weights: list[float], shares: list[float]
) -> None:
    heights = np.array(weights if sum(weights) > 0.0 else [1.0] * len(weights))
    cumulative = np.cumsum(heights)
    # Shares at the very edges of the places too, where rounding decides.
    drawn = np.array(
        [*shares, *np.minimum(cumulative / cumulative[-1], np.nextafter(1.0, 0.0))]
    )
    searched = np.searchsorted(cumulative, drawn * cumulative[-1], side="right")
    assert (
        find_places(drawn, cumulative) == np.minimum(searched, len(weights) - 1)
    ).all()
