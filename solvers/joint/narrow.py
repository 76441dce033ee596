"""Pricing for a few services only: of what a neighbourhood leaves over, most candidates are worth nothing."""

from collections.abc import Sequence

import numpy as np

from solvers.joint.kernels.nouns import Effort
from solvers.joint.patterns import Pattern, Priced
from solvers.joint.pricing import Pricer
from solvers.joint.tables import Numbers, Tables, Worth, take


class NarrowPricer(Pricer):
    """A Pricer whose tables hold the candidates of some services; patterns bear the numbers of the whole tables.

    Its cells are narrower too, since they range over the pressure that just these services can have.
    """

    def __init__(self, tables: Tables, services: Numbers, *, like: Pricer | None = None) -> None:
        """`like`: on its threads, and late when it is late."""
        self._kept = [np.flatnonzero(np.isin(mode.service, services)) for mode in tables.modes]
        modes = tuple(take(mode, kept) for mode, kept in zip(tables.modes, self._kept, strict=True))
        slicing = tuple(
            None if one is None else one._replace(profile=one.profile[kept])
            for one, kept in zip(tables.slicing, self._kept, strict=False)
        )
        super().__init__(tables._replace(modes=modes, slicing=slicing))
        if like is not None:
            self._pool, self._is_late = like._pool, like._is_late

    def price(
        self, worth: Sequence[Worth], thresholds: Sequence[float], effort: Effort, *, watt_price: float = 0.0
    ) -> list[Priced]:
        """As Pricer.price, with worths of the whole tables."""
        own = [one._replace(bonus=one.bonus[kept]) for one, kept in zip(worth, self._kept, strict=True)]
        priced = super().price(own, thresholds, effort, watt_price=watt_price)
        return [
            Priced(bound=entry.bound, patterns=tuple(_renumbered(pattern, kept) for pattern in entry.patterns))
            for entry, kept in zip(priced, self._kept, strict=True)
        ]


def _renumbered(pattern: Pattern, kept: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Pattern:
    return Pattern(mode=pattern.mode, items=tuple(kept[list(pattern.items)].tolist()))
