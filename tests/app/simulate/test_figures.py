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


def test_an_interval_has_the_digits_of_its_mean() -> None:
    assert estimate_texts(SeedMean(mean=12.34, half_width=0.04)) == ("12.3", "±0.0")
    assert estimate_texts(
        SeedMean(mean=0.98, half_width=0.001), digits=2, is_share=True
    ) == ("98.00", "±0.10")
    assert estimate_texts(SeedMean(mean=5.0, half_width=None), digits=0) == ("5", "")
    assert estimate_texts(None) == ("–", "")


@pytest.mark.parametrize(
    ("mean", "half_width", "texts"),
    [
        (0.9919, 0.1030, ("99.19", "88–100")),
        (0.02, 0.05, ("2.00", "0–7")),
        (0.9999, 0.0003, ("99.99", "99.96–100")),
        (0.6, 0.8, ("60.00", "0–100")),
        (1.0, 0.0, ("100.00", "±0.00")),
    ],
)
def test_the_interval_of_a_share_stays_a_share(
    mean: float, half_width: float, texts: tuple[str, str]
) -> None:
    assert (
        estimate_texts(
            SeedMean(mean=mean, half_width=half_width), digits=2, is_share=True
        )
        == texts
    )
