"""Pairs: rows and neighbours side by side."""

import numpy as np

from solvers.predict.data.interference_factor import networks_in, pairs_of, positions
from solvers.predict.data.samples import Neighbour
from tests.solvers.predict.neighbour_sets import colocated

B, C = Neighbour("b", 2.0, 20.0), Neighbour("c", 4.0, 30.0)


def test_every_neighbour_of_every_row_is_a_pair() -> None:
    pairs = pairs_of(
        colocated(
            [("a", 1.0, 10.0, [C, B]), ("a", 1.0, 10.0, []), ("b", 1.0, 10.0, [C])]
        )
    )
    assert pairs.row.tolist() == [0, 0, 2]
    assert pairs.network == ("b", "c", "c")
    assert pairs.batch.tolist() == [2.0, 4.0, 4.0]
    assert pairs.sum_per_row(pairs.sm_percent).tolist() == [50.0, 0.0, 30.0]
    assert pairs.sum_per_row(
        np.column_stack((pairs.batch, pairs.sm_percent))
    ).tolist() == [[6, 50], [0, 0], [4, 30]]


def test_nobody_has_neighbours() -> None:
    pairs = pairs_of(colocated([("a", 1.0, 10.0, [])]))
    assert (len(pairs.row), pairs.sum_per_row(pairs.batch).tolist()) == (0, [0.0])


def test_an_unknown_network_has_the_position_after_the_last() -> None:
    known = networks_in(["b", "a"], ["b"])
    assert known == ("a", "b")
    assert positions(["b", "z", "a"], known).tolist() == [1, 2, 0]
