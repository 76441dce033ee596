"""Figures in words: as many digits as mean something, means with their intervals, lengths of time."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedMean:
    """A mean over seeds."""

    mean: float
    half_width: float | None
    """Half of the 95 % confidence interval, by Student's t; None with one seed."""


def number(value: float, digits: int | None = None) -> str:
    """A figure with thousands set apart; without `digits` with three that count, or two below 0.1."""
    text = f"{value:,.{_digits(abs(value)) if digits is None else digits}f}"
    # A small negative number that is rounded to 0 has no sign.
    if any(digit in text for digit in "123456789"):
        return text.replace("-", "−")
    return text.removeprefix("-")


def _digits(size: float) -> int:
    """Decimals by which three digits count, or two below 0.1."""
    if size >= 100 or size == 0:
        return 0
    if size >= 10:
        return 1
    if size >= 1:
        return 2
    # The decimal place of the second digit that is not 0.
    return max(3, 1 - math.floor(math.log10(size)))


def estimate_texts(
    value: SeedMean | None,
    *,
    digits: int | None = None,
    scale: float = 1.0,
    is_share: bool = False,
) -> tuple[str, str]:
    """A mean, and its interval in as many digits, or nothing where there is none; `–` where nothing is known.

    The interval is half its width, e.g. `±0.30`. A share is shown in percent; where its interval would go below 0 or
    beyond 100 it is what is left of it, e.g. `88–100`, in whole percents where it is wide.
    """
    if value is None:
        return "–", ""
    scale = 100.0 if is_share else scale
    mean = number(scale * value.mean, digits)
    if value.half_width is None:
        return mean, ""
    # As many decimals as the mean shows: more would claim a precision that it does not have.
    places = len(mean.partition(".")[2])
    half = scale * value.half_width
    low = scale * value.mean - half
    high = scale * value.mean + half
    # Student's interval knows nothing of shares; what lies outside of 0 to 100 % is cut off.
    if is_share and half and (low < 0.0 or high > 100.0):
        if half > 1.0:
            low, high, places = math.floor(low), math.ceil(high), 0
        lower = "0" if low <= 0.0 else number(low, places)
        upper = "100" if high >= 100.0 else number(high, places)
        return mean, f"{lower}–{upper}"
    return mean, f"±{number(half, places)}"


def describe_estimate(
    value: SeedMean | None,
    *,
    digits: int | None = None,
    scale: float = 1.0,
) -> str:
    """Mean and interval, without a blank between them: a line must fit a terminal of 80 columns."""
    return "".join(estimate_texts(value, digits=digits, scale=scale))


def describe_share(value: SeedMean | None, *, digits: int) -> str:
    """In percent; an interval that is not even to both sides stands in brackets."""
    mean, spread = estimate_texts(value, digits=digits, is_share=True)
    return (
        f"{mean}({spread})" if spread and not spread.startswith("±") else mean + spread
    )


def duration(seconds: float) -> str:
    """A length of time in words, e.g. `11 min` or `2 h 30 min`."""
    rounded = round(seconds)
    if seconds < 60 or rounded != seconds:
        return f"{seconds:g} s"
    parts = (
        (rounded // 86_400, "d"),
        (rounded // 3600 % 24, "h"),
        (rounded // 60 % 60, "min"),
        (rounded % 60, "s"),
    )
    return " ".join(f"{count} {unit}" for count, unit in parts if count)
