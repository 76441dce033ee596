"""`plimsoll capacity-law`: one figure."""

from solvers.laws.capacity_law import max_utilisation
from tests.app.runner import cli


def law(percentile: str, batch: str, ratio: str) -> tuple[int, str, str]:
    result = cli(
        "capacity-law --percentile", percentile, "--batch", batch, "--ratio", ratio
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
