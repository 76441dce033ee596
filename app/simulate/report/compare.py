"""Comparison of policies seed by seed: what a report may claim at the top, and no more.

All policies of a scenario face the same requests in a seed, so their differences are taken within each seed and then
averaged: a paired comparison, with Student's interval over the seeds. Chance that hits both policies alike (a heavy
burst, say) drops out, so this shows differences that the policies' own intervals, side by side, would hide. Its
limit is the number of seeds: with two, the interval is 12.7 standard errors wide to either side.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.simulate.figures import SeedMean
from app.simulate.report.report import (
    PolicySummary,
    SimulationReport,
    estimate,
    violations,
)
from app.simulate.run.results import RunResult

ROUNDING = 1e-9
"""Shares that are nearer to each other than this are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyComparison:
    """One policy next to another one, in the seeds that both have."""

    rival: str
    saving: SeedMean | None
    """1 - cost / rival's cost; negative where it costs more. None where one did not do its work in some seed."""
    attainment_gain: SeedMean
    """Share of requests in SLO less the rival's."""


def compare(
    report: SimulationReport,
    policy: str,
    rival: str,
) -> PolicyComparison | None:
    """The two, seed by seed; None without a common seed."""
    mine = _by_seed(report, policy)
    theirs = _by_seed(report, rival)
    pairs = [(mine[seed], theirs[seed]) for seed in sorted(mine.keys() & theirs.keys())]
    if not pairs:
        return None
    # Seeds that only one of them has would bring the chance back that the pairs take out.
    idle = not all(works(run) for pair in pairs for run in pair)
    return PolicyComparison(
        rival=rival,
        saving=None
        if idle
        else estimate([1.0 - one.cost_usd / other.cost_usd for one, other in pairs]),
        attainment_gain=estimate(
            [violations(other) - violations(one) for one, other in pairs]
        ),
    )


def works(run: RunResult) -> bool:
    """Whether it used a GPU and served at least half of what was asked: to do less is always cheaper."""
    judged = sum(service.judged for service in run.services)
    return (
        run.cost_usd > 0.0
        and 2 * sum(service.served for service in run.services) >= judged
    )


def is_shown(difference: SeedMean) -> bool:
    """Whether the seeds show that there is a difference at all: its interval has one, and leaves out 0."""
    return (
        difference.half_width is not None
        and abs(difference.mean) > difference.half_width + ROUNDING
    )


def favourite(report: SimulationReport, candidates: Sequence[str]) -> str:
    """The cheapest of these policies that keeps every SLO on average.

    Where none does: the cheapest of those that the seeds cannot tell from what misses least. A policy that left most
    requests unserved in some seed is only chosen where all did.
    """
    lazy = {run.policy for run in report.runs if not works(run)}
    eligible = [name for name in candidates if name not in lazy] or candidates
    known = [summary for summary in report.policies if summary.policy in eligible]
    good = [summary for summary in known if not missed(report, summary)]
    # The one that misses least may be the most expensive by far, for a difference that is chance.
    if not good:
        best = min(known, key=lambda summary: summary.violations.mean).policy
        good = [
            summary for summary in known if _misses_alike(report, summary.policy, best)
        ]
    return min(good, key=lambda summary: summary.cost_usd.mean).policy


def missed(report: SimulationReport, summary: PolicySummary) -> list[str]:
    """Services whose mean attainment is below their percentile; unknown attainment misses nothing."""
    percentiles = {
        service.service: service.percentile for service in report.runs[0].services
    }
    return [
        each.service
        for each in summary.services
        if each.attainment is not None
        and each.attainment.mean < percentiles[each.service]
    ]


def _misses_alike(report: SimulationReport, policy: str, best: str) -> bool:
    """Whether chance may explain that it misses more; one seed explains nothing."""
    comparison = compare(report, policy, best)
    if policy == best or comparison is None:
        return policy == best
    gain = comparison.attainment_gain
    return abs(gain.mean) < ROUNDING if gain.half_width is None else not is_shown(gain)


def _by_seed(report: SimulationReport, policy: str) -> dict[int, RunResult]:
    return {run.seed: run for run in report.runs if run.policy == policy}
