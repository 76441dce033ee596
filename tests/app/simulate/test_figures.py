"""Figures in words."""

import pytest

from app.simulate.figures import SeedMean, duration, estimate_texts, number


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
    ("seconds", "text"),
    [
        (0, "0 s"),
        (45, "45 s"),
        (60, "1 min"),
        (90.5, "90.5 s"),
        (3660, "1 h 1 min"),
        (86_400, "1 d"),
        (65, "1 min 5 s"),
    ],
)
def test_lengths_of_time_are_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text
