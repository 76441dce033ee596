"""What an exceeded budget does to services, as stores keep it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """How far down one budget went."""

    budget: str
    project: str | None
    """None: the whole cluster."""
    step: int
    """>= 0; 0 = everybody gets all."""
    protected_priority: float
    """Services of this priority and above are never touched."""
