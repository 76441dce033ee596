"""An embedded server that ends is started again, with growing pauses."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agents.base.backoff import BackOff
from app.postgres.files import DataDirLayout, try_flock
from app.postgres.keeper import LOOK_S, look_after
from app.postgres.process import StartFailed


@pytest.fixture
def layout(tmp_path: Path) -> DataDirLayout:
    found = DataDirLayout(root=tmp_path)
    found.cluster.mkdir()
    return found


@contextmanager
def a_server(layout: DataDirLayout) -> Iterator[None]:
    """What holds the lock lives."""
    held = try_flock(layout.alive_lock)
    assert held is not None
    yield
    os.close(held)


def pauses(
    layout: DataDirLayout, looks: int, *, starts: int = 0
) -> tuple[list[float], int]:
    """How long it waits in each of some waits, and how often it starts; the first `starts` fail."""
    waited: list[float] = []
    begun = 0

    def is_over(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) > looks

    def start() -> None:
        nonlocal begun
        begun += 1
        if begun <= starts:
            raise StartFailed("no room on the disk")

    look_after(layout, start, is_over)
    return waited[:-1], begun


def test_a_server_that_runs_is_left_alone(layout: DataDirLayout) -> None:
    with a_server(layout):
        assert pauses(layout, 3) == ([LOOK_S] * 3, 0)


def test_a_server_that_ends_again_and_again_is_started_with_growing_pauses(
    layout: DataDirLayout,
) -> None:
    waited, begun = pauses(layout, 18, starts=2)
    assert waited[::2] == [LOOK_S] * 9
    assert waited[1::2] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert begun == 9


def test_where_the_cluster_was_taken_away_none_is_made(layout: DataDirLayout) -> None:
    layout.cluster.rmdir()
    assert pauses(layout, 3) == ([LOOK_S] * 3, 0)


def test_what_ran_for_long_is_started_again_soon() -> None:
    back_off = BackOff()
    assert [back_off.after(ran_s) for ran_s in (900.0, 1.0, 1.0, 900.0, 1.0)] == [
        *(0.5, 1.0, 2.0),
        *(0.5, 1.0),
    ]
