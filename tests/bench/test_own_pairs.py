"""The law of pairs, fitted to rows that it made and to those of a GPU."""

from itertools import permutations

import pytest

from bench.own_pairs import Pair, fit, own_rows

SENSITIVITIES = {"a": 0.1, "b": 0.3, "c": 0.5}
PRESSURES = {"a": 1.5, "b": 1.0, "c": 0.5}


def made(*, exponent: float, differs: bool) -> list[Pair]:
    """Every ordered pair at three splits."""
    return [
        Pair(
            network=own,
            other=other,
            sm_percent=100.0 - percent,
            other_percent=percent,
            latency_ms=1.0,
            slowdown=1.0
            + SENSITIVITIES[own]
            * (PRESSURES[other] if differs else 1.0)
            * (percent / 50.0) ** exponent,
        )
        for own, other in permutations(SENSITIVITIES, 2)
        for percent in (25.0, 50.0, 75.0)
    ]


@pytest.mark.parametrize("exponent", [0.0, 0.7, 2.0])
def test_the_law_that_made_the_rows_is_found(exponent: float) -> None:
    law = fit(made(exponent=exponent, differs=False))
    assert law.exponent == pytest.approx(exponent)
    assert law.sensitivities == pytest.approx(list(SENSITIVITIES.values()))
    assert law.error_percent < 1e-6


def test_neighbours_that_differ_are_told_apart_only_by_a_pressure() -> None:
    pairs = made(exponent=1.0, differs=True)
    assert fit(pairs).error_percent > 2.0
    both = fit(pairs, tells_neighbours=True)
    assert (both.exponent, both.error_percent) == (
        pytest.approx(1.0),
        pytest.approx(0.0, abs=1e-3),
    )


def test_our_own_pairs_obey_a_law_of_victim_and_share() -> None:
    rows = {str(row["what"]): row["figure"] for row in own_rows()}
    errors = [figure for what, figure in rows.items() if "error" in what]
    assert len(errors) == 8
    assert all(isinstance(each, float) and 0.0 < each < 4.0 for each in errors)
    # The one law of all kinds, which the simulated truth is built on.
    assert max(errors[-2:]) < 3.0
    half, unlimited = (
        figure for what, figure in rows.items() if "99th percentile" in what
    )
    assert isinstance(half, float) and isinstance(unlimited, float)
    assert half < 0.2 * unlimited
