"""What those who pay ask of the HTML report: what the policies are, what they cost in the long run, how many GPUs."""

from collections.abc import Iterable, Iterator, Sequence

from app.simulate.figures import SeedMean, number
from app.simulate.report.html_charts import Runs
from app.simulate.report.html_parts import (
    FigureCell,
    bullets,
    estimate_cell,
    paragraph,
    table,
)
from app.simulate.report.report import estimate
from app.simulate.run.results import RunResult
from app.simulate.scenario.parts import PolicyRun
from app.simulate.scenario.scenario import ScenarioSpec
from solvers.policies.registry import policy

HOURS_PER_MONTH = 730.0
"""8760 / 12."""
_NOTE = (
    "Per month: if the time that counts went on for 730 hours. Per million: of the requests in SLO. Most GPUs: the "
    "highest mean over a step of the time series, of any seed."
)


def policies_section(spec: ScenarioSpec, runs: Runs) -> Iterator[str]:
    """A line on each policy that ran."""
    yield bullets(described(run) for run in spec.policies if run.label in runs)


def budgets_section(runs: Runs) -> Iterator[str]:
    """A table of what goes into a budget."""
    types = sorted(
        {name for mine in runs.values() for run in mine for name in run.series.gpus}
    )
    # With one type the column would repeat the one before it.
    by_type = types if len(types) > 1 else []
    headings = (
        "policy",
        "USD per month",
        "USD per million in SLO",
        "most GPUs at once",
        *(f"of these {t}" for t in by_type),
    )
    yield table(headings, (_row(label, mine, by_type) for label, mine in runs.items()))
    yield paragraph(_NOTE, "faint")


def described(run: PolicyRun) -> str:
    """What a policy is, and in what it differs from the scenario's `loop`."""
    settings = [f"{name} {value}" for name, value in sorted(run.settings.items())]
    if run.clairvoyant:
        ahead = "" if run.foresight_s is None else f" of the next {run.foresight_s:g} s"
        settings.append(f"told the true rates{ahead} and times")
    if run.launch_s is not None:
        settings.append(f"replicas ready after {run.launch_s:g} s")
    name = run.label if run.label == run.policy else f"{run.label} ({run.policy})"
    return f"{name}: {summary_of(run.policy)}" + (
        f" Here: {', '.join(settings)}." if settings else ""
    )


def summary_of(name: str) -> str:
    """The first line of what a policy's module says of it."""
    return (policy(name).__doc__ or "").partition("\n")[0].partition(": ")[2]


def _row(
    label: str,
    mine: Sequence[RunResult],
    by_type: Sequence[str],
) -> tuple[str | FigureCell, ...]:
    monthly = estimate(
        [run.cost_usd * 3600.0 * HOURS_PER_MONTH / run.counted_s for run in mine]
    )
    # The sum has its maximum in a step of its own: it may be less than the maxima of the types together.
    together = max(_max_total(run.series.gpus.values()) for run in mine)
    each = (
        max(_max_total([run.series.gpus.get(name, [])]) for run in mine)
        for name in by_type
    )
    return (
        label,
        estimate_cell(monthly),
        estimate_cell(_per_million(mine)),
        *map(_count, (together, *each)),
    )


def _per_million(mine: Sequence[RunResult]) -> SeedMean | None:
    """None where no request was in SLO in some run."""
    in_slo = [sum(service.in_slo for service in run.services) for run in mine]
    return (
        estimate([run.cost_usd * 1e6 / n for run, n in zip(mine, in_slo, strict=True)])
        if all(in_slo)
        else None
    )


def _max_total(courses: Iterable[Sequence[float]]) -> float:
    """The maximum over the steps of the sum over these types."""
    return max(map(sum, zip(*courses, strict=True)), default=0.0)


def _count(gpus: float) -> str:
    # A mean over a step: 3.5 where a GPU was used for half of it.
    return number(gpus, 0 if gpus == round(gpus) else 1)
