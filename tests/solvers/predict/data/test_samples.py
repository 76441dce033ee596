"""Samples in columns: rows by group."""

import numpy as np

from solvers.predict.data.samples import Group, Queries, make_queries


def queries_of(networks: list[str], gpu_types: list[str]) -> Queries:
    size = len(networks)
    return make_queries(
        networks, gpu_types, batch=np.arange(1.0, size + 1.0), sm_percent=[50.0] * size
    )


def test_rows_are_found_by_group_in_their_order_and_groups_sorted() -> None:
    groups = queries_of(
        ["b", "a", "b", "a", "b"], ["T4", "T4", "A10", "T4", "T4"]
    ).groups()
    assert {group: rows.tolist() for group, rows in groups.items()} == {
        Group("a", "T4"): [1, 3],
        Group("b", "A10"): [2],
        Group("b", "T4"): [0, 4],
    }
    assert list(groups) == sorted(groups)


def test_no_rows_have_no_groups() -> None:
    assert queries_of([], []).groups() == {}


def test_more_names_than_sixteen_bits_can_count_are_kept_apart() -> None:
    names = [f"{number:03}" for number in range(300)]
    at = queries_of(names, names[::-1])
    groups = at.groups()
    assert len(groups) == 300
    assert all(
        rows.tolist() == [int(group.network)] and at.gpu_type[rows[0]] == group.gpu_type
        for group, rows in groups.items()
    )
