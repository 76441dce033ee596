"""Figures in words."""

import pytest

from app.simulate.figures import number


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
