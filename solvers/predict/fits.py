"""Fits: everything that was learned from one set of samples, and the predictions made from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from solvers.predict.fit import Fit, Quantity
from solvers.predict.samples import Group, Reals


@dataclass(frozen=True, kw_only=True, eq=False)
class Fits:
    """The chosen fit of every quantity and group; at most one each, sorted by quantity and group."""

    fits: tuple[Fit, ...]

    @cached_property
    def _by_key(self) -> Mapping[tuple[Quantity, Group], Fit]:
        return {(fit.quantity, fit.group): fit for fit in self.fits}

    def find(self, quantity: Quantity, group: Group) -> Fit | None:
        """The fit of a quantity of one group, or None when nothing was learned of it."""
        return self._by_key.get((quantity, group))

    def of(self, quantity: Quantity) -> tuple[Fit, ...]:
        """All fits of one quantity."""
        return tuple(fit for fit in self.fits if fit.quantity == quantity)

    def interference(self, gpu_type: str) -> Fit | None:
        """The interference fit of a GPU type, which is about all networks there."""
        return self.find("interference", interference_group(gpu_type))


def interference_group(gpu_type: str) -> Group:
    """The group under which a GPU type's interference fit is kept."""
    return Group(network="", gpu_type=gpu_type)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictions:
    """What fits say about N queries."""

    latency_ms: Reals
    """(N,) > 0."""
    latency_ms_low: Reals
    latency_ms_high: Reals
    """(N,) ends of the interval that holds the true value with the coverage that was asked for."""
    technique: tuple[str, ...]
    """(N,) of the latency fit; `A+B` where neighbours were reckoned with by technique B."""
