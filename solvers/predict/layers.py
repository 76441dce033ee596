"""Layer counts: what a network is made of, known before anything of it was measured."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCounts:
    """How many layers of each kind one network has, and its size."""

    network: str
    counts: Mapping[str, int]
    """Layer kind (e.g. `conv`, `linear`, `norm`) → number of such layers, ≥ 0; a kind that is absent counts 0."""
    parameters_millions: float
    gmacs: float | None = None
    """Billions of multiply-adds of one forward pass at batch 1; None = not known."""
