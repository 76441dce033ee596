"""Multilinear interpolation between the nodes of a mesh: how a kriging surface becomes a small table.

A surface is learned once at the nodes and read off between them, so that a prediction costs a few look-ups, however
many samples the surface was learned from, and the table is all that has to be kept.
"""

from typing import NamedTuple

import numpy as np

from solvers.predict.data.samples import Indices, Reals

_SAME = 1e-9  # Logarithms nearer than this are one node.
# Widths that are tried: down to a hundredth of the widest gap.
_NARROWING, _NARROWINGS = 0.85, 30


class Corners(NamedTuple):
    """(N, 2^d) positions in the flattened table and their weights, which sum to 1 along each row."""

    positions: Indices
    weights: Reals


def make_nodes(values: Reals, *, max_nodes: int) -> Reals:
    """The distinct values, ascending; at most `max_nodes` (>= 2), those that leave small gaps, both ends among them."""
    ordered = np.sort(values)
    nodes: Reals = ordered[np.append(True, np.diff(ordered) > _SAME)]
    # The node whose neighbours are nearest to each other is missed least.
    while len(nodes) > max_nodes:
        nodes = np.delete(nodes, 1 + np.argmin(nodes[2:] - nodes[:-2]))
    return nodes


def limit_nodes(axes: tuple[Reals, ...], *, max_nodes: int) -> tuple[Reals, ...]:
    """The axes of a table of at most `max_nodes` nodes: the longest are thinned."""
    limited = list(axes)
    lengths = [len(axis) for axis in limited]
    while np.prod(lengths) > max_nodes:
        longest = int(np.argmax(lengths))
        lengths[longest] -= 1
        limited[longest] = make_nodes(limited[longest], max_nodes=lengths[longest])
    return tuple(limited)


def refine(
    axes: tuple[Reals, ...], *, scales: Reals, max_nodes: int
) -> tuple[Reals, ...]:
    """The axes with nodes added in wide gaps, as many as `max_nodes` of the table allow.

    Gaps are measured in units of their axis: distance times its scale (d,). All end up about equally wide.
    """
    gaps = [np.diff(axis) * scale for axis, scale in zip(axes, scales, strict=True)]
    widest = max((float(gap.max(initial=0.0)) for gap in gaps), default=0.0)
    if not widest:
        return axes
    refined = axes
    for width in widest * _NARROWING ** np.arange(1, _NARROWINGS + 1):
        parts = [np.maximum(np.ceil(gap / width), 1.0) for gap in gaps]
        if np.prod([1.0 + part.sum() for part in parts]) > max_nodes:
            break
        # From the axes as they were, so that every node stays one and gaps are divided evenly.
        refined = tuple(map(_divide, axes, parts))
    return refined


def mesh_points(axes: tuple[Reals, ...]) -> Reals:
    """(M, d) every node of the table, in the order of its flattened values."""
    return np.stack(
        [axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1
    )


def find_corners(axes: tuple[Reals, ...], points: Reals) -> Corners:
    """The corners of the cell around each of (N, d) points; beyond the ends of an axis its end counts."""
    corners = _corners(axes, points)
    positions, weights = zip(*corners, strict=True)
    return Corners(np.stack(positions, axis=1), np.stack(weights, axis=1))


def interpolate(axes: tuple[Reals, ...], table: Reals, points: Reals) -> Reals:
    """(N,) values of the table, whose shape is the axes' lengths, at (N, d) points."""
    flat = table.ravel()
    values = np.zeros(len(points))
    for positions, weights in _corners(axes, points):
        values += flat[positions] * weights
    return values


def _divide(nodes: Reals, parts: Reals) -> Reals:
    """The nodes, with each gap between them divided into `parts` equal parts."""
    ends = np.append(0.0, np.cumsum(parts))
    return np.interp(np.arange(1.0 + ends[-1]), ends, nodes)


def _corners(axes: tuple[Reals, ...], points: Reals) -> list[tuple[Indices, Reals]]:
    """(N,) positions in the flattened table and weights of every corner in turn; the last axis changes fastest."""
    count = len(points)
    corners = [(np.zeros(count, dtype=np.intp), np.ones(count))]
    for nodes, values in zip(axes, points.T, strict=True):
        lower, fraction = _bracket(nodes, values)
        # An axis of one node has it on both sides, the second time with weight 0.
        upper = np.minimum(lower + 1, len(nodes) - 1)
        ends = ((lower, 1.0 - fraction), (upper, fraction))
        corners = [
            (positions * len(nodes) + end, weights * share)
            for positions, weights in corners
            for end, share in ends
        ]
    return corners


def _bracket(nodes: Reals, values: Reals) -> tuple[Indices, Reals]:
    """(N,) node below each value and (N,) the way from it to the next, 0 to 1."""
    if len(nodes) == 1:
        return np.zeros(len(values), dtype=np.intp), np.zeros(len(values))
    lower = np.clip(np.searchsorted(nodes, values, side="right") - 1, 0, len(nodes) - 2)
    fraction = (values - nodes[lower]) / (nodes[lower + 1] - nodes[lower])
    return lower, np.clip(fraction, 0.0, 1.0)
