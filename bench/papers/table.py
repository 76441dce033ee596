"""The nouns of a reproduced table: one row per figure, with the paper's value, ours and where its truth comes from."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Literal

Truth = Literal["measured", "scaled", "synthetic"]
"""measured: every curve behind the row is measured; scaled: some are scaled from measured ones by a published ratio;
synthetic: some come from a checked-in script. A synthetic row never counts as a reproduced figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of one policy."""

    figure: str
    """What is compared, with its unit: `throughput over gpulets, %`."""
    policy: str
    """Whose figure it is: the paper's policy, a baseline or `joint`."""
    paper: float | None
    """What the paper states for it; None = nothing."""
    is_at_least: bool = True
    """Whether the demanded figure is a lower limit; else an upper one."""
    demanded: float | None = None
    """What we ask of ourselves; None = nothing: the row is there to compare."""
    values: tuple[float, ...]
    """One per seed."""
    truth: Truth

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return fmean(self.values)

    @property
    def half_interval(self) -> float | None:
        """Half of the 95 % confidence interval of the mean, by Student's t; None for a single seed."""
        if len(self.values) < 2:
            return None
        return t_95(len(self.values) - 1) * stdev(self.values) / sqrt(len(self.values))

    @property
    def holds(self) -> bool | None:
        """Whether the demanded figure is met; None where nothing is demanded."""
        if self.demanded is None:
            return None
        return (
            self.mean >= self.demanded
            if self.is_at_least
            else self.mean <= self.demanded
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One experiment of one paper."""

    system: str
    """`HetSev`, `InSS`, `Morak`, `Mudi` or `OLTunes`."""
    title: str
    scenario: str
    """The file, relative to the repository, or the function that builds it."""
    seeds: tuple[int, ...]
    rows: Sequence[Row]
    notes: tuple[str, ...] = ()
    """What differs from the paper's protocol or hardware, and why a figure is not reached; one sentence each."""


def t_95(freedom: int) -> float:
    """Student's two-sided 95 % quantile."""
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))
