"""What a row of the campaign is asked for and gives back."""

from dataclasses import dataclass

from bench.report import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """How much of a row is run."""

    seconds: float
    """No fault is made after so long."""
    kills: int
    """Nor after so many, where the row kills."""
    nodes: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutcome:
    """What was measured, and every "must" that was broken, in words."""

    figures: tuple[Figures, ...]
    violations: tuple[str, ...]
