"""Clusters of points by L1 distance: a small, deterministic k-means whose centres are medians."""

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

_MOST_ROUNDS = 100
"""Far beyond need: each round lowers the summed distance or ends, and small inputs settle within ten."""


def cluster(points: Reals, clusters: int) -> Labels:
    """(N,) the cluster of each of the (N, D) points, 0 to at most `clusters` − 1; every cluster has a point.

    Medians, not means, make the L1 distance within a cluster least, so each round lowers it and the rounds end. The
    first centre is the point nearest to the overall median, each further one the point farthest from all centres;
    ties go to the first point. Fewer different points than clusters: one cluster for each. O(N · clusters · D) a round.
    """
    if len(points) == 0:
        return np.zeros(0, dtype=np.int64)
    centres = _first_centres(points, clusters)
    labels = _nearest(points, centres)
    for _ in range(_MOST_ROUNDS):
        centres = np.array([np.median(points[labels == label], axis=0) for label in np.unique(labels)])
        moved = _nearest(points, centres)
        if np.array_equal(moved, labels):
            break
        labels = moved
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _first_centres(points: Reals, clusters: int) -> Reals:
    distance = np.abs(points - np.median(points, axis=0)).sum(axis=1)
    chosen = [int(np.argmin(distance))]
    nearest = np.abs(points - points[chosen[0]]).sum(axis=1)
    while len(chosen) < clusters and nearest.max() > 0.0:
        chosen.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, np.abs(points - points[chosen[-1]]).sum(axis=1))
    return points[chosen]


def _nearest(points: Reals, centres: Reals) -> Labels:
    distances = np.abs(points[:, None, :] - centres[None, :, :]).sum(axis=2)
    nearest: Labels = np.argmin(distances, axis=1)
    return nearest
