"""`plimsoll capacity-law`: one figure."""

import pytest

from solvers.laws.capacity_law import max_utilisation
from tests.app.runner import cli


def law(percentile: str, batch: str, ratio: str, *more: str) -> tuple[int, str, str]:
    result = cli(
        "capacity-law --percentile",
        percentile,
        "--batch",
        batch,
        "--ratio",
        ratio,
        *more,
    )
    return result.code, result.out, result.err


def test_the_law_is_printed_with_six_decimals() -> None:
    assert law("0.98", "16", "2") == (
        0,
        f"{max_utilisation(16, percentile=0.98, slo_ratio=2.0):.6f}\n",
        "",
    )
    assert law("0.98", "16", "2")[1] == "0.718032\n"
    assert law("0.98", "16", "0.5")[1] == "0.000000\n"


@pytest.mark.parametrize(
    ("times", "share"), [("0.5", 0.0), ("1", 0.0088), ("1.5", 0.16), ("2", 0.36)]
)
def test_beyond_the_promise_what_is_refused_is_printed(
    times: str, share: float
) -> None:
    code, printed, _ = law("0.98", "8", "2.5", "--times", times)
    assert code == 0
    assert float(printed) == pytest.approx(share, abs=0.002)


def test_a_replica_that_can_promise_nothing_refuses_all() -> None:
    assert law("0.98", "16", "0.5", "--times", "1")[1] == "1.000000\n"
