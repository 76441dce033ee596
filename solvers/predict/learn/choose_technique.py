"""Choose: of several techniques' fits of one quantity, the one that foresees held-out samples best.

The least cross-validated error of a group with few samples is largely luck. So the technique that does best over all
groups keeps a group unless another one's error there is lower by more than two standard errors of the paired
differences: the standard-error rule of Breiman, Friedman, Olshen and Stone ("Classification and Regression Trees",
1984, section 3.4.3, with one), made stricter since several rivals are tried.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.predict.data.fit import Fit
from solvers.predict.data.samples import Group, Reals

FAILED = 1.0
"""The relative error that a group counts with where a technique could not be cross-validated."""
STANDARD_ERRORS = 2.0
"""By this number another technique must be better to displace the one that does best over all groups."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TechniqueCandidate:
    """One technique's fit of a group, and how far off it was on each sample when that was held out."""

    fit: Fit
    errors: Reals
    """(N,) relative errors, of the same samples for all candidates of a group; infinite where nothing was predicted."""


def choose(candidates: Mapping[Group, Sequence[TechniqueCandidate]]) -> tuple[Fit, ...]:
    """The chosen fit of every group, by group; it names the other techniques, least error first.

    At least one candidate per group. Where nothing could be held out, the technique that does best elsewhere wins, and
    of equals the one that stands first.
    """
    standing = _standing(candidates)

    def by_standing(entry: TechniqueCandidate) -> int:
        return standing.index(entry.fit.technique)

    return tuple(
        _choose_one(sorted(candidates[group], key=by_standing))
        for group in sorted(candidates)
    )


def _standing(candidates: Mapping[Group, Sequence[TechniqueCandidate]]) -> list[str]:
    """Techniques by their error over all samples, best first."""
    total = {
        entry.fit.technique: 0.0 for entries in candidates.values() for entry in entries
    }
    for entries in candidates.values():
        errors = {
            entry.fit.technique: entry.fit.quality.cross_validated_error
            for entry in entries
        }
        size = max(len(entry.errors) for entry in entries)
        for name in total:
            # A technique that could not learn a group must not win by the groups that it left out.
            total[name] += size * min(errors.get(name, FAILED), FAILED)
    # `sorted` keeps equals in their order, which is that of the candidates.
    return sorted(total, key=total.__getitem__)


def _choose_one(entries: Sequence[TechniqueCandidate]) -> Fit:
    """The first of the entries, best standing first, that no other beats clearly."""
    best = min(entries, key=lambda entry: entry.fit.quality.cross_validated_error)
    chosen = next(
        entry
        for entry in entries
        if entry is best or _is_as_good(entry.errors, best.errors)
    )
    others = [entry.fit for entry in entries if entry is not chosen]
    ranked = sorted(others, key=lambda fit: fit.quality.cross_validated_error)
    rejected = tuple(
        (fit.technique, fit.quality.cross_validated_error) for fit in ranked
    )
    return replace(chosen.fit, rejected=rejected)


def _is_as_good(errors: Reals, best: Reals) -> bool:
    """Whether the mean paired difference may be luck; never where a prediction is missing."""
    if len(errors) < 2 or not (np.isfinite(errors).all() and np.isfinite(best).all()):
        return False
    difference = errors - best
    allowed = STANDARD_ERRORS * difference.std(ddof=1) / np.sqrt(len(difference))
    return bool(difference.mean() <= allowed)
