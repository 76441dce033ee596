"""Figures in words."""

import pytest

from app.simulate.figures import SeedMean, estimate_texts, number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.00042, "0.00042"),
        (0.037, "0.037"),
        (0.874, "0.874"),
        (1.028, "1.03"),
        (-12.34, "−12.3"),
        (1234.5, "1,234"),
    ],
)
def test_figures_have_the_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert (number(-0.04, 1), number(-0.06, 1)) == ("0.0", "−0.1")


@pytest.mark.parametrize(
    ("mean", "half_width", "as_share", "texts"),
    [
        (12.34, 0.04, False, ("12.3", "±0.0")),
        (5.0, None, False, ("5.00", "")),
        (0.98, 0.001, True, ("98.00", "±0.10")),
        # The interval of a share stays a share.
        (0.9919, 0.1030, True, ("99.19", "88–100")),
        (0.02, 0.05, True, ("2.00", "0–7")),
        (0.9999, 0.0003, True, ("99.99", "99.96–100")),
        (0.6, 0.8, True, ("60.00", "0–100")),
    ],
)
def test_an_interval_has_the_digits_of_its_mean(
    mean: float, half_width: float | None, as_share: bool, texts: tuple[str, str]
) -> None:
    found = SeedMean(mean=mean, half_width=half_width)
    digits = {"digits": 2} if as_share else {}
    assert estimate_texts(found, is_share=as_share, **digits) == texts
