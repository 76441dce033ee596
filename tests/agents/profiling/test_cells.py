"""What is to be measured, and in which order."""

import random

import pytest

from agents.base.device import OutOfRange
from agents.profiling.cells import (
    MeasurementCell,
    Member,
    at_most,
    by_bench_set,
    grid,
    make_cell,
    pairs,
)


def a_member(network: str = "a", batch: int = 1, sm_percent: float = 50.0) -> Member:
    return Member(network=network, batch=batch, sm_percent=sm_percent)


def test_a_grid_has_every_network_at_every_share_batch_and_clock() -> None:
    # 2 networks · 3 shares · 2 batches · 2 clocks = 24 cells, each of one member.
    cells = grid(["a", "b"], [10.0, 50.0, 100.0], [1, 8], [900.0, 1380.0])
    assert len(cells) == len(set(cells)) == 24
    assert make_cell([a_member("b", 8, 10.0)], 900.0) in cells
    assert {cell.clock_mhz for cell in grid(["a"], [10.0], [1])} == {None}


def test_pairs_are_of_all_networks_with_themselves_too_and_none_is_there_twice() -> (
    None
):
    # (a, a), (a, b), (b, b); 25:75 and 75:25 of a next to itself are the same cell.
    cells = pairs(["a", "b"], [(25.0, 75.0), (75.0, 25.0)], [1])
    assert len(cells) == 1 + 2 + 1
    assert make_cell([a_member("b", 1, 25.0), a_member("a", 1, 75.0)]) in cells


@pytest.mark.parametrize(
    ("members", "clock_mhz", "words"),
    [
        ([], None, "0 networks side by side"),
        (
            [a_member()] * 9,
            None,
            "9 networks side by side cannot be measured; 1 to 8 can",
        ),
        ([a_member(batch=0)], None, "batch 0 of a must be 1 to 4096"),
        ([a_member(batch=4097)], None, "batch 4097"),
        ([a_member(sm_percent=0.0)], None, "share 0 of a must be above 0"),
        ([a_member(sm_percent=100.5)], None, "at most 100 %"),
        ([a_member()], -5.0, "clock -5 MHz is none"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    members: list[Member], clock_mhz: float | None, words: str
) -> None:
    with pytest.raises(OutOfRange, match=words):
        make_cell(members, clock_mhz)


def test_cells_of_the_same_processes_follow_each_other() -> None:
    cells = grid(["a", "b"], [10.0, 50.0], [1, 2, 4])
    plan = by_bench_set(cells, seed=3)
    assert len(plan) == 4
    assert all(
        {tuple(each.bench for each in cell.members) for cell in group} == {bench_set}
        for bench_set, group in plan
    )
    assert sorted(map(str, (cell for _, group in plan for cell in group))) == sorted(
        map(str, cells)
    )


def test_the_order_is_the_seeds_and_not_the_inputs() -> None:
    cells = list(grid(["a", "b", "c"], [10.0, 50.0], [1, 2, 4, 8]))
    plan = by_bench_set(cells, seed=3)
    random.Random(0).shuffle(cells)
    assert by_bench_set(cells, seed=3) == plan
    assert by_bench_set(cells, seed=4) != plan
    # It is shuffled at all: batches do not simply ascend in every group.
    batches = [[cell.members[0].batch for cell in group] for _, group in plan]
    assert any(each != sorted(each) for each in batches)


def test_every_network_is_measured_alone_before_any_pair() -> None:
    cells = (*pairs(["a", "b"], [(50.0, 50.0)], [1]), *grid(["a", "b"], [50.0], [1]))
    sizes = [len(bench_set) for bench_set, _ in by_bench_set(cells, seed=1)]
    assert sizes == [1, 1, 2, 2, 2]


def test_a_draw_is_the_seeds_and_keeps_the_order() -> None:
    cells: list[MeasurementCell] = list(grid(["a"], [10.0], list(range(1, 51))))
    drawn = at_most(cells, 10, seed=1)
    assert len(set(drawn)) == 10
    assert [cell for cell in cells if cell in drawn] == list(drawn)
    assert drawn == at_most(cells, 10, seed=1) != at_most(cells, 10, seed=2)
    assert at_most(cells, 50, seed=1) == tuple(cells)
