"""Figures in words: as many digits as mean something, means with their intervals, lengths of time, counts."""

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
    if digits is None:
        size = abs(value)
        digits = (
            0
            if size >= 100 or size == 0
            else 1
            if size >= 10
            else 2
            if size >= 1
            else max(3, _second_place(size))
        )
    text = f"{value:,.{digits}f}"
    return (
        text.replace("-", "−")
        if any(digit in text for digit in "123456789")
        else text.removeprefix("-")
    )


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
    places = len(mean.partition(".")[2])
    half = scale * value.half_width
    low, high = scale * value.mean - half, scale * value.mean + half
    if is_share and half and (low < 0.0 or high > 100.0):
        if half > 1.0:
            low, high, places = math.floor(low), math.ceil(high), 0
        return (
            mean,
            f"{'0' if low <= 0.0 else number(low, places)}–{'100' if high >= 100.0 else number(high, places)}",
        )
    return mean, f"±{number(half, places)}"


def estimate_words(
    value: SeedMean | None, *, digits: int | None = None, scale: float = 1.0
) -> str:
    """Mean and interval, without a blank between them: a line must fit a terminal of 80 columns."""
    return "".join(estimate_texts(value, digits=digits, scale=scale))


def share_words(value: SeedMean | None, *, digits: int) -> str:
    """In percent; an interval that is not even to both sides stands in brackets."""
    mean, spread = estimate_texts(value, digits=digits, is_share=True)
    return (
        f"{mean}({spread})" if spread and not spread.startswith("±") else mean + spread
    )


def duration(seconds: float) -> str:
    """A length of time in words, e.g. `11 min` or `2 h 30 min`."""
    whole = round(seconds)
    if seconds < 60 or whole != seconds:
        return f"{seconds:g} s"
    parts = (
        (whole // 86_400, "d"),
        (whole // 3600 % 24, "h"),
        (whole // 60 % 60, "min"),
        (whole % 60, "s"),
    )
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


def counted(count: int, word: str) -> str:
    """`1 seed`, `2 seeds`, `3 policies`."""
    plural = word[:-1] + "ies" if word.endswith("y") else word + "s"
    return f"{count:,} {word if count == 1 else plural}"


def _second_place(size: float) -> int:
    """The decimal place of the second digit that is not 0, of a size below 1."""
    return 1 - math.floor(math.log10(size))
