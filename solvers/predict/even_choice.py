"""Even choice: a few of many sorted rows, for work that grows faster than their number."""

import numpy as np

from solvers.predict.samples import Indices


def even_choice(count: int, *, most: int) -> Indices:
    """Positions of at most `most` of `count` rows, ascending, evenly spread, both ends among them."""
    positions: Indices = np.linspace(0, count - 1, min(count, most)).round().astype(np.intp)
    return positions
