"""Water-filling: a budget of watts shared among GPUs by what the next watt brings.

    sets        GPUs i, each on one node n
    parameters  W           budget of all; inf = none
                W_n         cap of each node; inf = none
                l_i, u_i    what GPU i draws at least, and what it may draw at most, l_i <= u_i
                f_i(w)      throughput of GPU i at w watts: concave and piecewise linear
    variables   w_i         watts of GPU i
    objective   max Σ_i f_i(w_i)
    constraints Σ_i w_i <= W                  the cluster's budget
                Σ_{i on n} w_i <= W_n         each node's cap
                l_i <= w_i <= u_i             the least that its plan needs, the most that the GPU may

Every GPU gets its least; then the segments of all f_i in falling order of their slope, as far as node and cluster have
watts. The sets of constraints are nested (GPU, node, cluster), so that this greedy is exact (Federgruen and Groenevelt,
Operations Research 34(6), 1986). What is left when no segment is left goes to all in equal steps up to u_i: head-room
that costs nothing.

Source: caps per GPU from a cluster's by marginal throughput are ours; Morak has one cap per GPU. f_i comes from the
operating points (`throughput_curve`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_MIN_W = 1e-9
"""Fewer watts count as none."""


Curve = tuple[tuple[float, float], ...]
"""(watts, throughput)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taker:
    """One GPU that gets a share."""

    id: str
    node: str
    min_w: float
    max_w: float
    curve: Curve = ()
    """Ascending and concave, from `min_w` on; empty = nothing is known."""


def fill(
    takers: Sequence[Taker],
    *,
    budget_w: float = math.inf,
    node_caps_w: Mapping[str, float] | None = None,
) -> dict[str, float] | None:
    """Watts by GPU; None where not even what they draw at least is there. The order of `takers` changes nothing.

    O(s log s) in all segments.
    """
    ordered = sorted(takers, key=lambda taker: taker.id)
    given = {taker.id: taker.min_w for taker in ordered}
    left = _left_on_nodes(ordered, node_caps_w or {})
    min_w = sum(given.values())
    total_w = budget_w - min_w
    # Rounding: a plan that was found to fit draws the whole budget and a little less, or a little more.
    if min((total_w, *left.values())) < -1e-6 * min_w:
        return None
    total_w = _share_by_slope(ordered, given, left, total_w)
    _share_rest(ordered, given, left, total_w)
    return given


def _left_on_nodes(
    takers: Sequence[Taker], caps_w: Mapping[str, float]
) -> dict[str, float]:
    """What each node's cap leaves beyond what its GPUs draw at least."""
    left = {taker.node: caps_w.get(taker.node, math.inf) for taker in takers}
    for taker in takers:
        left[taker.node] -= taker.min_w
    return left


def _share_by_slope(
    takers: Iterable[Taker],
    given: dict[str, float],
    left: dict[str, float],
    total_w: float,
) -> float:
    """Give out the watts that bring something, and return what remains; changes `given` and `left`."""
    # Steepest first; a concave curve gives its own segments in their order, since their slopes fall.
    for _, taker_id, node, watts in sorted(
        _segments(takers), key=lambda segment: (-segment[0], *segment[1:])
    ):
        more_w = max(0.0, min(watts, left[node], total_w))
        given[taker_id] += more_w
        left[node] -= more_w
        total_w -= more_w
    return total_w


def _segments(takers: Iterable[Taker]) -> list[tuple[float, str, str, float]]:
    """(slope, GPU, node, watts) of every segment up to what the GPU may draw; rising ones only."""
    found = []
    for taker in takers:
        for (start_w, start), (end_w, end) in zip(
            taker.curve, taker.curve[1:], strict=False
        ):
            watts = min(end_w, taker.max_w) - max(start_w, taker.min_w)
            if watts > _MIN_W and end > start:
                found.append(
                    ((end - start) / (end_w - start_w), taker.id, taker.node, watts)
                )
    return found


def _share_rest(
    takers: Sequence[Taker],
    given: dict[str, float],
    left: dict[str, float],
    total_w: float,
) -> None:
    """Raise all alike until they are full, or their node, or the cluster is; changes `given`."""
    open_takers = [taker for taker in takers if taker.max_w - given[taker.id] > _MIN_W]
    while open_takers and total_w > _MIN_W:
        # The longest step that overfills nothing: each step fills a GPU, a node or the cluster, so that they end.
        counts = Counter(taker.node for taker in open_takers)
        step_w = min(
            total_w / len(open_takers),
            *(taker.max_w - given[taker.id] for taker in open_takers),
            *(left[node] / count for node, count in counts.items()),
        )
        step_w = max(0.0, step_w)
        for taker in open_takers:
            given[taker.id] += step_w
            left[taker.node] -= step_w
        total_w -= step_w * len(open_takers)
        open_takers = [
            taker
            for taker in open_takers
            if taker.max_w - given[taker.id] > _MIN_W and left[taker.node] > _MIN_W
        ]


def throughput_curve(points: Iterable[tuple[float, float]]) -> Curve:
    """The concave hull of (watts, throughput) points, ascending; of what draws more and brings less nothing is left."""
    hull: list[tuple[float, float]] = []
    for watts, value in sorted(set(points), key=lambda point: (point[0], -point[1])):
        if hull and (watts - hull[-1][0] <= _MIN_W or value <= hull[-1][1]):
            continue
        # A point below the line between its neighbours is not on the hull: a mixture of the two draws as much and
        # brings more.
        while len(hull) >= 2 and _slope(hull[-1], (watts, value)) >= _slope(
            hull[-2], hull[-1]
        ):
            hull.pop()
        hull.append((watts, value))
    return tuple(hull)


def _slope(start: tuple[float, float], end: tuple[float, float]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])
