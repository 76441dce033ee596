"""Patterns, and what pricing says of them."""

from dataclasses import dataclass
from typing import NamedTuple


class Pattern(NamedTuple):
    """What one GPU runs: candidates of a mode."""

    mode: int
    items: tuple[int, ...]
    """Ascending."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Priced:
    """What pricing says of one mode."""

    bound: float
    """No pattern of the mode is worth more."""
    patterns: tuple[Pattern, ...]
