"""What a violation is, and how far a figure may be from its limit: what all files of the checker share."""

from solvers.types.outcome import Violation

PROMISES = frozenset({"capacity", "demand"})
"""A baseline may break these rules in a simulation; every other rule is physical, and no policy may break it."""

RELATIVE_TOLERANCE = 1e-6
"""Memory, power, capacity, demand and reported figures may exceed their limit by this share of it."""
SM_PERCENT_TOLERANCE = 1e-6
CLOCK_TOLERANCE_MHZ = 1e-3


def broken(rule: str, where: str, detail: str) -> Violation:
    """The violation of a rule, with the severity that the rule has."""
    return Violation(
        rule=rule,
        severity="promise" if rule in PROMISES else "physical",
        where=where,
        detail=detail,
    )


def exceeds(value: float, limit: float) -> bool:
    """Whether value > limit beyond the tolerance; NaN exceeds everything."""
    # Not written as `value > ...`, which is false of NaN.
    return not value <= limit + RELATIVE_TOLERANCE * abs(limit)
