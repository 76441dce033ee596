"""InSS's saturation: the highest load within the SLOs, whichever loads are tried on the way."""

import pytest

from bench.papers.inss import LOADS, Search, highest
from bench.papers.inss_stage import Played


def played_to(
    most: float, tried: list[float], *, except_at: float | None = None
) -> Played:
    """What is found where loads up to `most` keep the SLOs, but for one."""

    def at(load: float) -> Played:
        tried.append(load)
        is_kept = load <= most and load != except_at
        return Played(
            policy="p",
            load=load,
            seed=1,
            offered_rps=100.0 * load,
            goodput_rps=100.0 * load,
            late_percent=0.5 if is_kept else 5.0,
            gpus=4.0,
        )

    return highest(at, Search(seeds=(1,)))


@pytest.mark.parametrize(
    ("most", "load", "tried"),
    [
        (9.0, 2.4, [2.4]),
        (1.85, 1.8, [2.4, 2.0, 1.6, 1.9, 1.8]),
        (1.6, 1.6, [2.4, 2.0, 1.6, 1.9, 1.8, 1.7]),
        (0.5, 0.5, [*LOADS, 0.6, 0.5]),
    ],
)
def test_loads_are_tried_from_above_and_then_step_by_step(
    most: float, load: float, tried: list[float]
) -> None:
    seen: list[float] = []
    assert played_to(most, seen).load == load
    assert seen == tried


def test_where_no_load_is_within_the_slos_nothing_counts_as_served() -> None:
    seen: list[float] = []
    found = played_to(0.1, seen)
    assert (found.goodput_rps, found.load, seen) == (0.0, 0.0, list(LOADS))
