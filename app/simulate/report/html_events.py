"""Faults and spikes in the HTML report: what each one cost in requests, and how long it took to be over it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from app.simulate.figures import duration, number
from app.simulate.report.html_charts import MAX_FAULTS, Runs
from app.simulate.report.html_parts import FigureCell, paragraph, table
from app.simulate.report.html_sentences import fault_title
from app.simulate.run.results import RunResult, ServiceResult
from app.simulate.scenario.scenario import ScenarioSpec

_NOTE = (
    "Late or rejected: requests of the services concerned (by a fault: all) in the steps of the time series that it "
    "touches, mean over the seeds. In SLO again: from its beginning until the first step in which none of them was "
    "below its percentile, once one had been; the slowest seed. Never out: none was, in any step that it touches."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedEvent:
    """Something that happens to services."""

    title: str
    start_s: float
    end_s: float
    service: str | None
    """Whom it concerns; None: all."""


def events_section(spec: ScenarioSpec, runs: Runs) -> Iterator[str]:
    """A row for each one under each policy, of those that touch the time that counts; nothing where there are none."""
    touching = [
        each
        for each in _events(spec)
        if each.end_s > spec.warm_up_s and each.start_s < spec.duration_s
    ]
    rows = [
        (
            each.title,
            policy,
            number(fmean(_missed(run, each, spec.warm_up_s) for run in mine), 0),
            _over_it(mine, each, spec),
        )
        for each in touching[:MAX_FAULTS]
        for policy, mine in runs.items()
    ]
    if rows:
        yield "<h2>Faults and spikes</h2>"
        yield table(
            ("what", "policy", "late or rejected", "in SLO again after"), rows, lefts=2
        )
        yield paragraph(_NOTE, "faint")


def recovery_s(run: RunResult, event: ReportedEvent, begin_s: float) -> float:
    """How long after its beginning the services were in SLO again; 0: they always were; infinity: not to the end."""
    places = _places(run, event, begin_s)
    bad = [_is_bad(run, place, event) for place in range(len(run.series.power_w))]
    # The damage must begin while the event lasts, but may go on after it: queues that grew are served later.
    first = next((place for place in places if bad[place]), None)
    if first is None:
        return 0.0
    good = next((place for place in range(first, len(bad)) if not bad[place]), None)
    return (
        math.inf if good is None else begin_s + good * run.series.step_s - event.start_s
    )


def _events(spec: ScenarioSpec) -> Iterator[ReportedEvent]:
    for fault in spec.faults:
        end_s = spec.duration_s if fault.end_s is None else fault.end_s
        yield ReportedEvent(
            title=fault_title(fault),
            start_s=fault.start_s,
            end_s=end_s,
            service=None,
        )
    for service in spec.services:
        for spike in service.load.spikes:
            # With both ramps: the load differs from the usual one as soon as it climbs.
            yield ReportedEvent(
                title=f"{service.name}: {spike.factor:g} times the load from {duration(spike.start_s)} on",
                start_s=max(0.0, spike.start_s - spike.ramp_s),
                end_s=spike.start_s + spike.length_s + spike.ramp_s,
                service=service.name,
            )


def _places(run: RunResult, event: ReportedEvent, begin_s: float) -> range:
    """Positions of the steps that the event touches."""
    step_s = run.series.step_s
    steps = len(run.series.power_w)
    first = max(0, math.floor((event.start_s - begin_s) / step_s))
    return range(first, min(steps, math.ceil((event.end_s - begin_s) / step_s)))


def _missed(run: RunResult, event: ReportedEvent, begin_s: float) -> int:
    places = _places(run, event, begin_s)
    concerned = (run.series.services[each.service] for each in _concerned(run, event))
    return sum(sum(series.missed[places.start : places.stop]) for series in concerned)


def _is_bad(run: RunResult, place: int, event: ReportedEvent) -> bool:
    """Whether a service was below its percentile in that step."""
    shares = (
        (each, run.series.services[each.service].attainment[place])
        for each in _concerned(run, event)
    )
    return any(share is not None and share < each.percentile for each, share in shares)


def _concerned(run: RunResult, event: ReportedEvent) -> list[ServiceResult]:
    return [each for each in run.services if event.service in (None, each.service)]


def _over_it(
    mine: Sequence[RunResult],
    event: ReportedEvent,
    spec: ScenarioSpec,
) -> str | FigureCell:
    slowest_s = max(recovery_s(run, event, spec.warm_up_s) for run in mine)
    if slowest_s == math.inf:
        return FigureCell(text="not to the end", is_bad=True)
    return duration(round(slowest_s)) if slowest_s else "never out"
