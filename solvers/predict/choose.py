"""Choose: of several techniques' fits of one quantity, the one that foresees held-out samples best."""

from collections.abc import Sequence
from dataclasses import replace

from solvers.predict.fit import Fit


def choose(candidates: Sequence[Fit]) -> Fit:
    """The candidate with the least cross-validated error, the earlier of equals; it names the others, best first.

    At least one candidate. Where nothing could be held out all errors are infinite, and the first candidate wins.
    """
    ranked = sorted(candidates, key=lambda fit: fit.quality.cross_validated_error)
    rejected = tuple((fit.technique, fit.quality.cross_validated_error) for fit in ranked[1:])
    return replace(ranked[0], rejected=rejected)
