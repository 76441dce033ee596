"""Verdicts: whether the operating points of a refit replace the profile in force, and why."""

import math
from dataclasses import dataclass

from app.learn.refit import RefitCandidate

UNCOMPARED_ERROR = 0.1
"""What may replace a profile that the samples do not speak of: twice the error of a good fit, a few samples' worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefitVerdict:
    """What became of the operating points for one GPU type."""

    gpu_type: str
    applied: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileInForce:
    """What a candidate is compared with."""

    is_estimated: bool
    """The network was never measured on the GPU type."""
    fit_error: float | None
    """Cross-validated error of the fit in force; None: the profile was not made by a fit, or no error is known."""


def judge(
    candidate: RefitCandidate, *, bar: float | None, is_alarmed: bool, apply: bool
) -> RefitVerdict:
    """Whether the candidate replaces the profile in force, whose error it must not exceed unless that one drifted."""
    gpu_type = candidate.performance.points.gpu_type
    figures = candidate.technique
    if not candidate.is_estimated:
        figures += (
            f", error {_percent(candidate.error)}, of {candidate.sample_count} samples"
        )

    if not apply:
        applied = False
        why = "applying it was not requested"
    elif candidate.is_estimated:
        applied = True
        why = "never measured there, so it is planned with extra headroom"
    else:
        applied, why = _compare(candidate, bar, is_alarmed=is_alarmed)
    return RefitVerdict(gpu_type=gpu_type, applied=applied, reason=f"{figures}: {why}")


def _compare(
    candidate: RefitCandidate, bar: float | None, *, is_alarmed: bool
) -> tuple[bool, str]:
    """Whether a fitted candidate is good enough, and why."""
    if not math.isfinite(candidate.error):
        return False, "there are too few samples to judge it"
    if bar is None:
        return True, "there was nothing to compare with"
    is_good = candidate.error <= bar
    # What drifted is wrong for what runs today, however well it once fitted.
    if is_alarmed and not is_good:
        return True, "the profile in force has drifted"
    if candidate.present_error is None:
        return is_good, (
            "the samples are at too few conditions of the profile in force to compare them; "
            f"an error up to {_percent(bar)} is taken"
        )
    if is_good:
        return True, f"no worse than the profile in force ({_percent(bar)})"
    return False, f"the profile in force is better ({_percent(bar)})"


def error_bar(
    candidate: RefitCandidate, profile: ProfileInForce | None
) -> float | None:
    """The error not to exceed; None: there is nothing that deserves to be kept.

    A profile that was fitted to these samples knew them: its held-out error counts, too.
    """
    if profile is None:
        return None
    if candidate.present_error is None:
        return None if profile.is_estimated else UNCOMPARED_ERROR
    if profile.fit_error is None:
        return candidate.present_error
    return max(candidate.present_error, profile.fit_error)


def _percent(error: float) -> str:
    return f"{100 * error:.1f} %" if math.isfinite(error) else "unknown"
