"""The techniques that the automatic choice tries, in the order of preference between equals.

Each is a module of its own; it is imported when it is first used.
"""

import importlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import numpy as np

from solvers.predict.data.fit import (
    LEVELS,
    Coefficients,
    Fit,
    FitTechnique,
    PooledTechnique,
    Quality,
    Quantity,
    TooFewSamples,
    nested,
)
from solvers.predict.data.interference_factor import InterferenceTechnique
from solvers.predict.data.samples import Group, Queries, Reals, Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class TechniqueEntry:
    """One technique, called alike whether it learns each group by itself or all of them together."""

    name: str
    """The technique's name, which is that of its module, too."""
    package: str
    is_pooled: bool = False
    min_groups: int = 1
    """Below this number of groups the automatic choice does not try it."""
    within: str = ""
    """The technique in whose coefficients this one's are nested, under its name: both are learned at once."""

    def fit_groups(self, samples: Samples) -> Mapping[Group, Coefficients]:
        """Coefficients of every group that has enough samples."""
        if self.is_pooled:
            try:
                return cast(PooledTechnique, self._module).fit_groups(samples)
            except TooFewSamples:
                return {}
        technique = cast(FitTechnique, self._module)
        learned = {}
        # A group without enough samples is passed over, so that it does not cost the others their fits.
        for group, rows in samples.at.groups().items():
            with suppress(TooFewSamples):
                learned[group] = technique.fit(samples.take(rows))
        return learned

    def predict(self, coefficients: Coefficients, queries: Queries) -> Reals:
        """(N,) values for queries of one group."""
        return cast(FitTechnique, self._module).predict(coefficients, queries)

    @property
    def _module(self) -> object:
        return importlib.import_module(f"{self.package}.{self.name}")


Family = tuple[TechniqueEntry, ...]
"""Techniques that are learned at once: the coefficients of the last one hold the others'."""


def families(learners: tuple[TechniqueEntry, ...]) -> tuple[Family, ...]:
    """The learners, those together that can be learned at once."""
    names = {learner.name for learner in learners}
    return tuple(
        (*(inner for inner in learners if inner.within == outer.name), outer)
        for outer in learners
        if outer.within not in names
    )


def learn_family(
    family: Family, samples: Samples
) -> tuple[Mapping[Group, Coefficients], ...]:
    """Per learner the coefficients of every group that has enough samples."""
    *inner, outer = family
    learned = outer.fit_groups(samples)
    inner_learned = (
        {group: nested(found, learner.name) for group, found in learned.items()}
        for learner in inner
    )
    return (*inner_learned, learned)


def _learners(
    package: str, *names: str, pooled: tuple[str, ...] = ()
) -> tuple[TechniqueEntry, ...]:
    return tuple(
        TechniqueEntry(name=name, package=package, is_pooled=name in pooled)
        for name in names
    )


_LATENCY = "solvers.predict.latency"

LEARNERS: Mapping[Quantity, tuple[TechniqueEntry, ...]] = {
    "latency_ms": (
        *_learners(
            _LATENCY,
            "hierarchical_kriging",
            "gaussian_process",
            pooled=("hierarchical_kriging",),
        ),
        TechniqueEntry(
            name="linear_fractional", package=_LATENCY, within="locally_weighted"
        ),
        *_learners(_LATENCY, "locally_weighted", "piecewise_linear", "throttling"),
        # All that it knows of one network comes from others; alone it only takes the time of all the rest together.
        TechniqueEntry(
            name="factorisation_machine",
            package=_LATENCY,
            is_pooled=True,
            min_groups=10,
        ),
    ),
    "power_w": _learners(
        "solvers.predict.resources", "roofline", "duty_cycle", pooled=("roofline",)
    ),
    "memory_mib": _learners("solvers.predict.resources", "memory"),
}

INTERFERENCE = ("response_surface", "pressure", "constant")
"""For neighbours that were sampled."""
UNKNOWN_NEIGHBOURS = ("layer_counts", "pressure", "constant")
"""For a neighbour of which there is no sample."""


def technique_names(quantity: Quantity) -> tuple[str, ...]:
    """The names of all techniques for a quantity."""
    if quantity == "interference":
        return INTERFERENCE
    if quantity == "stranger_interference":
        return UNKNOWN_NEIGHBOURS
    return tuple(learner.name for learner in LEARNERS[quantity])


def find_interference(name: str) -> InterferenceTechnique:
    """The interference technique of that name."""
    module = importlib.import_module(f"solvers.predict.interference.{name}")
    return cast(InterferenceTechnique, module)


def find_learner(quantity: Quantity, name: str) -> TechniqueEntry:
    """The technique of that name. Raises KeyError."""
    for learner in LEARNERS[quantity]:
        if learner.name == name:
            return learner
    raise KeyError(name)


def predict_fit(fit: Fit, queries: Queries) -> Reals:
    """(N,) what one fit says of queries of its group, neighbours not looked at."""
    return find_learner(fit.quantity, fit.technique).predict(fit.coefficients, queries)


def ratio_quantile(quality: Quality, level: float) -> float:
    """The quantile of measured / predicted at a level; between the known levels its logarithm is interpolated."""
    return float(np.exp(np.interp(level, LEVELS, np.log(quality.ratio_quantiles))))
