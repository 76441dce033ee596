"""Fit: what one technique learned from samples, as data; and how wrong it is known to be.

A technique is a module with two functions:

    fit(samples) -> Coefficients                     from the samples of one group (network, GPU type), all alone
    predict(coefficients, queries) -> (N,) values    for queries of that group; their `neighbours` are not looked at

A *pooled* technique learns all groups at once, `fit_groups(samples) -> {group: Coefficients}`, and still leaves one
self-contained Coefficients per group. A technique that cannot learn from what it is given raises `TooFewSamples`; the
choice then passes it over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import Literal, Protocol

from solvers.predict.data.sampled_range import ANYWHERE, SampledRange
from solvers.predict.data.samples import Group, Queries, Reals, Samples

Quantity = Literal[
    "latency_ms", "interference", "stranger_interference", "power_w", "memory_mib"
]
"""`interference` is the factor by which neighbours stretch the latency, `stranger_interference` the same where one of
them was never sampled; both are of a GPU type (network "")."""

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Levels at which a Quality knows the quantile of measured / predicted."""
NORMAL_95 = NormalDist().inv_cdf(0.95)
"""Normal deviate of the 95 % quantile: 1.645 standard deviations, half the width of a 90 % interval."""


class TooFewSamples(ValueError):
    """The samples do not determine the technique's coefficients; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Coefficients:
    """Named arrays and names: all that a technique needs to predict. Nothing in it is code."""

    arrays: Mapping[str, Reals]
    """The arrays by name; a single number is an array of shape ()."""
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names, e.g. which network stands in which row of an array."""


def nest(coefficients: Coefficients, name: str) -> Mapping[str, Reals]:
    """Arrays of a technique that another one builds on, as they stand among that one's; they have no labels."""
    # A prefix instead of a tree: the JSON of a fit and its reader know flat names only.
    return {f"{name}.{key}": array for key, array in coefficients.arrays.items()}


def nested(coefficients: Coefficients, name: str) -> Coefficients:
    """The coefficients that were nested under that name."""
    prefix = f"{name}."
    return Coefficients(
        arrays={
            key.removeprefix(prefix): array
            for key, array in coefficients.arrays.items()
            if key.startswith(prefix)
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How far predictions are from measurements; errors are |predicted − measured| / measured."""

    training_error: float
    """Mean over the samples that the fit was made from."""
    cross_validated_error: float
    """Mean over samples that were held out in turn; infinite where there were too few to hold any out."""
    cross_validated_error_p90: float
    sample_count: int
    ratio_quantiles: tuple[float, ...]
    """(len(LEVELS),) quantiles of measured / predicted over held-out samples, ascending: the fit's uncertainty."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """One technique's coefficients for one quantity of one group, with their quality and origin."""

    quantity: Quantity
    group: Group
    technique: str
    coefficients: Coefficients
    quality: Quality
    sampled: SampledRange = ANYWHERE
    """Where the samples lay that it was made from."""
    source: str = ""
    rejected: tuple[tuple[str, float], ...] = ()
    """(technique, cross-validated error) of those that the choice passed over, best first."""


class FitTechnique(Protocol):
    """A module that learns each group by itself."""

    def fit(self, samples: Samples) -> Coefficients:
        """Coefficients from samples of one group; raises TooFewSamples."""
        ...

    def predict(self, coefficients: Coefficients, queries: Queries) -> Reals:
        """(N,) values for queries of that group."""
        ...


class PooledTechnique(Protocol):
    """A module that learns all groups together: what one network shows tells something about the others."""

    def fit_groups(self, samples: Samples) -> Mapping[Group, Coefficients]:
        """Coefficients of every group among the samples; raises TooFewSamples."""
        ...

    def predict(self, coefficients: Coefficients, queries: Queries) -> Reals:
        """(N,) values for queries of one group."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Fits:
    """The chosen fit of every quantity and group; at most one each, sorted by quantity and group."""

    # Without slots, since the cached index below needs a __dict__.
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
    # Interference is between two networks, so the fit is of all of them: "" is no network's name.
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
    """(N,) the latency fit's; `A+B` where neighbours were reckoned with by technique B."""
