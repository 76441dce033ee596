"""Multilinear interpolation between the nodes of a mesh: how a kriging surface becomes a small table.

A surface is learned once at the nodes and read off between them, so that a prediction costs a few look-ups, however
many samples the surface was learned from, and the table is all that has to be kept.
"""

from typing import NamedTuple

import numpy as np

from solvers.predict.samples import Indices, Reals

_SAME = 1e-9  # Logarithms nearer than this are one node.


class Corners(NamedTuple):
    """(N, 2^d) positions in the flattened table and their weights, which sum to 1 along each row."""

    positions: Indices
    weights: Reals


def make_nodes(values: Reals, *, most: int) -> Reals:
    """The distinct values, ascending; of more than `most` (>= 2) those that leave small gaps, both ends among them."""
    ordered = np.sort(values)
    nodes: Reals = ordered[np.append(True, np.diff(ordered) > _SAME)]
    while len(nodes) > most:
        nodes = np.delete(nodes, 1 + np.argmin(nodes[2:] - nodes[:-2]))
    return nodes


def find_corners(axes: tuple[Reals, ...], points: Reals) -> Corners:
    """The corners of the cell around each of (N, d) points; beyond the ends of an axis its end counts."""
    count = len(points)
    positions = np.zeros((count, 1), dtype=np.intp)
    weights = np.ones((count, 1))
    for nodes, values in zip(axes, points.T, strict=True):
        lower, fraction = _bracket(nodes, values)
        upper = np.minimum(lower + 1, len(nodes) - 1)
        positions = positions[:, :, None] * len(nodes) + np.stack([lower, upper], axis=1)[:, None, :]
        weights = weights[:, :, None] * np.stack([1.0 - fraction, fraction], axis=1)[:, None, :]
        corners = 2 * positions.shape[1]
        positions, weights = positions.reshape(count, corners), weights.reshape(count, corners)
    return Corners(positions, weights)


def interpolate(axes: tuple[Reals, ...], table: Reals, points: Reals) -> Reals:
    """(N,) values of the table, whose shape is the axes' lengths, at (N, d) points."""
    corners = find_corners(axes, points)
    values: Reals = np.einsum("nc,nc->n", table.ravel()[corners.positions], corners.weights)
    return values


def _bracket(nodes: Reals, values: Reals) -> tuple[Indices, Reals]:
    """(N,) node below each value and (N,) the way from it to the next, 0 to 1."""
    if len(nodes) == 1:
        return np.zeros(len(values), dtype=np.intp), np.zeros(len(values))
    lower = np.clip(np.searchsorted(nodes, values, side="right") - 1, 0, len(nodes) - 2)
    fraction = (values - nodes[lower]) / (nodes[lower + 1] - nodes[lower])
    return lower, np.clip(fraction, 0.0, 1.0)
