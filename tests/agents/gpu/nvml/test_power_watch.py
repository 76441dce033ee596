"""Peaks of power between two looks."""

import pytest

from agents.base.device import GpuLost
from agents.gpu.nvml.power_watch import PowerWatch
from agents.gpu.nvml.types import GpuIdentity
from tests.waiting import until

GPU = GpuIdentity(index=0, uuid="GPU-0", name="a", memory_mib=1000.0)
OTHER = GpuIdentity(index=1, uuid="GPU-1", name="a", memory_mib=1000.0)


class Board:
    """Draws what it is told; counts how often it is asked."""

    def __init__(self) -> None:
        self.watts, self.asked, self.is_lost = 100.0, 0, False

    def power_w(self, gpu: GpuIdentity) -> float:
        self.asked += 1
        if self.is_lost:
            raise GpuLost("the GPU fell off the bus")
        return self.watts


def asked_again(board: Board) -> None:
    seen = board.asked
    until(lambda: board.asked > seen + 1)


def test_a_peak_between_two_looks_is_seen_once() -> None:
    board = Board()
    with PowerWatch(board.power_w, period_s=0.001) as watch:
        assert watch.peak_w(GPU) == 100.0
        board.watts = 260.0
        asked_again(board)
        board.watts = 90.0
        asked_again(board)
        assert watch.peak_w(GPU) == 260.0
        assert watch.peak_w(GPU) == 90.0


def test_the_present_moment_counts_for_a_gpu_at_which_nobody_has_looked() -> None:
    board = Board()
    with PowerWatch(board.power_w, period_s=0.001) as watch:
        watch.peak_w(GPU)
        board.watts = 200.0
        assert watch.peak_w(OTHER) == 200.0


def test_a_gpu_that_is_lost_says_so_to_whoever_looks_and_the_watch_goes_on() -> None:
    board = Board()
    with PowerWatch(board.power_w, period_s=0.001) as watch:
        watch.peak_w(GPU)
        board.is_lost = True
        asked_again(board)
        with pytest.raises(GpuLost):
            watch.peak_w(GPU)
        board.is_lost = False
        assert watch.peak_w(GPU) == 100.0
