"""Sentences of the HTML report: what was simulated, what the figures say, and what they do not. Plain text."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from agents.base.plurals import counted
from agents.sim.spec import BUSIEST
from app.simulate.figures import SeedMean, duration, number
from app.simulate.report.compare import (
    ROUNDING,
    PolicyComparison,
    compare,
    favourite,
    is_shown,
    missed,
)
from app.simulate.report.report import PolicySummary, SimulationReport
from app.simulate.scenario.load import ServiceLoad
from app.simulate.scenario.parts import FaultSpec
from app.simulate.scenario.scenario import ScenarioSpec

TRUTHS = {
    "measured": "Truth: measured. Simulated GPUs replay raw measurements, with their noise and with the slowdown of "
    "measured neighbours, which no predictor sees; so wrong predictions show in the figures below.",
    "planned": "Truth: planned. Everything takes exactly as long as the planner reckons with, so these figures judge "
    "decisions alone: a real GPU would differ from its predictions.",
}
_MEASURED = (
    "Execution times were measured on a V100 (RaPP, Apache-2.0; iGniter, published figures) and read between the "
    "measured SM percents and batches. Other GPU types are scaled by published ratios. Shares below the "
    "measured ones, more than five replicas on a GPU and speeds beyond a V100's are extrapolated by rule: synthetic."
)
_PLANNED = (
    "Execution times are the catalogue's operating points, each measured, scaled or estimated as the catalogue says; "
    "no noise is added."
)
_TRAINING = (
    "Steps of training were measured on whole V100s (Gavel), T4s, A100s and 2080 Tis (Sia), and what training and "
    "inference do to each other without limits on SM percent (Tally). Steps on other GPU types are scaled; all under a "
    "limit or a lower clock is synthetic."
)
_SIMULATED = (
    "Simulated means: no GPU was used. The production loop (observe, forecast, plan, check, bind) and the production "
    "agents ran on a virtual clock; requests, queues, executions, watts, launches and faults are computed, request by "
    "request. Not simulated: the network between clients and GPUs, and the time that decisions take."
)
_USELESS = 0.5
"""Share of requests out of SLO beyond which not even the best policy is worth choosing."""
_PAIRED = "Compared seed by seed, under the same requests. Intervals: 95 % confidence over the seeds"
_FAULTS = {
    "gpu_lost": "lost",
    "node_lost": "node lost",
    "launch_failure": "launches fail",
    "straggler": "slow",
    "silent": "silent",
    "stale": "late telemetry",
}


def scenario_sentence(spec: ScenarioSpec) -> str:
    """The scenario in one sentence."""
    gpus: Counter[str] = Counter()
    for pool in spec.fleet:
        gpus[pool.gpu_type] += pool.nodes * pool.gpus_per_node
    fleet = ", ".join(f"{count} × {name}" for name, count in sorted(gpus.items()))
    loads = Counter(_kind(service.load) for service in spec.services)
    warm_up = (
        f", the first {duration(spec.warm_up_s)} of which does not count"
        if spec.warm_up_s
        else ""
    )
    tasks = "".join(f" and {tasks}" for tasks in _describe_tasks(spec))
    faults = f", with {counted(len(spec.faults), 'fault')}" if spec.faults else ""
    return (
        f"{fleet} serve {counted(len(spec.services), 'service')} "
        f"({', '.join(f'{count} under {kind}' for kind, count in sorted(loads.items()))}){tasks} "
        f"for {duration(spec.duration_s)} of simulated time{warm_up}{faults}; "
        f"{counted(len(spec.policies), 'policy')}, {counted(len(spec.seeds), 'seed')}"
        f"{' each' if len(spec.policies) > 1 else ''}."
    )


def headline(report: SimulationReport, *, clairvoyant: Sequence[str] = ()) -> list[str]:
    """What the figures say: the best policy next to each other one, with intervals; the best comes first."""
    names = [summary.policy for summary in report.policies]
    # No one can run a policy that knows the future: it is a bound for the others, and never the best.
    best = favourite(
        report, [name for name in names if name not in clairvoyant] or names
    )
    found = (compare(report, best, name) for name in names if name != best)
    return [
        _promise(report, next(each for each in report.policies if each.policy == best)),
        *(_sentence(each, each.rival in clairvoyant) for each in found if each),
    ]


def interval_note(report: SimulationReport) -> str:
    """How far the comparison can be trusted."""
    seeds = len({run.seed for run in report.runs})
    if seeds == 1:
        return "There is one seed: nothing tells how much of a difference is chance. Give at least three."
    few = "; two seeds make them very wide" if seeds == 2 else ""
    return f"{_PAIRED}{few}."


def fault_titles(faults: Sequence[FaultSpec], limit: int) -> list[str]:
    """A title for each fault, in the order given, and how many are left out beyond the limit."""
    left_out = len(faults) - limit
    return [
        *(fault_title(fault) for fault in faults[:limit]),
        *([f"{left_out} more"] if left_out > 0 else []),
    ]


def fault_title(fault: FaultSpec) -> str:
    """One fault in words."""
    node = "busiest node" if fault.node == BUSIEST else fault.node
    place = node if fault.gpu is None else f"{node}, GPU {fault.gpu}"
    end = "the end" if fault.end_s is None else duration(fault.end_s)
    size = ""
    if fault.kind == "straggler":
        size = f" (× {fault.factor:g})"
    elif fault.kind == "stale" and fault.delay_s:
        size = f" (by {fault.delay_s:g} s)"
    problem = f"{_FAULTS[fault.kind]}{size}"
    return f"{place}: {problem} from {duration(fault.start_s)} to {end}"


def origins(spec: ScenarioSpec) -> list[str]:
    """What is measured, scaled or made up, and what simulated means."""
    lines = [_SIMULATED, _MEASURED if spec.truth == "measured" else _PLANNED]
    lines.append(
        "Costs are the prices of the used GPUs in the shipped catalogue; its SOURCES.md says where each is from."
    )
    kinds = {
        *(task.kind for task in spec.tasks),
        *(entry.kind for entry in spec.task_lists),
    }
    if spec.truth == "measured" and "training" in kinds:
        lines.append(_TRAINING)
    if any(service.load.bursts for service in spec.services):
        lines.append(
            "Bursts are resampled from the Azure LLM inference trace 2023 "
            "(© Microsoft, CC BY 4.0; Patel et al., Splitwise, ISCA 2024)."
        )
    return lines


def _describe_tasks(spec: ScenarioSpec) -> Iterator[str]:
    if spec.tasks:
        yield counted(len(spec.tasks), "task")
    if spec.task_lists:
        yield f"the tasks of {counted(len(spec.task_lists), 'job list')}"


def _kind(load: ServiceLoad) -> str:
    if load.trace is not None:
        return "a trace"
    if load.levels is not None:
        return "random levels"
    if load.clients is not None:
        return "clients in a closed loop"
    shapes = (
        "a day's curve" if load.day else "",
        "spikes" if load.spikes else "",
        "bursts" if load.bursts else "",
    )
    return "Poisson requests" + "".join(
        f" {word} {shape}" for word, shape in _joined([s for s in shapes if s])
    )


def _joined(shapes: Sequence[str]) -> Iterator[tuple[str, str]]:
    return zip(("with", *("and",) * len(shapes)), shapes, strict=False)


def _promise(report: SimulationReport, summary: PolicySummary) -> str:
    """Whether a policy kept the SLOs."""
    # Without requests every policy keeps every SLO, and the cheapest one would look like a winner.
    if not any(service.judged for run in report.runs for service in run.services):
        return "There were no requests, so no policy is better than another."
    if not any(service.served for run in report.runs for service in run.services):
        return "No policy served a single request, so none is better than another."
    broken = missed(report, summary)
    in_slo = f"{number(100.0 * (1.0 - summary.violations.mean), 2)} % of all requests were in SLO"
    if broken:
        names = ", ".join(islice(broken, 3)) + (
            f" and {len(broken) - 3} more" if len(broken) > 3 else ""
        )
        return f"{_failure(report, summary)}: {in_slo}; it failed {names}."
    return f"{_success(report, summary)}: {in_slo}."


def _success(report: SimulationReport, summary: PolicySummary) -> str:
    """Who kept the SLOs: one alone, several at one price, or one cheaper than others."""
    others = [
        each for each in report.policies if each != summary and not missed(report, each)
    ]
    if not others:
        return f"{summary.policy} kept the SLO of every service"
    min_usd = summary.cost_usd.mean
    tied = [
        each.policy
        for each in others
        if abs(each.cost_usd.mean - min_usd) <= ROUNDING * min_usd
    ]
    if tied:
        return f"{summary.policy} kept the SLO of every service, at the same cost as {' and '.join(tied)}"
    return f"{summary.policy} is the cheapest that kept the SLO of every service"


def _failure(report: SimulationReport, summary: PolicySummary) -> str:
    """That none kept the SLOs, and whether the least bad policy is worth a word of praise."""
    if len(report.policies) == 1:
        return (
            f"{summary.policy}, the only policy, did not keep the SLO of every service"
        )
    if summary.violations.mean > _USELESS:
        return (
            f"No policy kept the SLO of every service, and none is of use: with {summary.policy}, which missed no more "
            "than the others"
        )
    return f"No policy kept the SLO of every service. {summary.policy} is the cheapest of those that missed least"


def _sentence(found: PolicyComparison, is_bound: bool) -> str:
    rival = f"{found.rival}, which knows the future" if is_bound else found.rival
    cost = _describe_saving(found.saving)
    gain = _describe_gain(found.attainment_gain)
    return f"Against {rival}: {cost}; {gain}."


def _describe_saving(saving: SeedMean | None) -> str:
    if saving is None:
        return "no comparison of cost, since one of them used no GPU or left most requests unserved"
    if _is_nothing(saving):
        return "the same cost"
    # A mean within its own interval is no finding, and is not worded as one.
    if saving.half_width is not None and not is_shown(saving):
        return f"no difference in cost that these seeds can show ({_signed(-saving.mean, 1)} %{_spread(saving, 1)})"
    word = "less" if saving.mean > 0 else "more"
    return (
        f"costs {number(100.0 * abs(saving.mean), 1)} % {word}{_bracketed(saving, 1)}"
    )


def _describe_gain(gain: SeedMean) -> str:
    if _is_nothing(gain):
        return "as many requests in SLO"
    if gain.half_width is not None and not is_shown(gain):
        shown = f"{_signed(gain.mean, 2)}{_spread(gain, 2)} points"
        return f"no difference in requests in SLO that these seeds can show ({shown})"
    word = "more" if gain.mean > 0 else "fewer"
    return f"{number(100.0 * abs(gain.mean), 2)} points {word} of the requests in SLO{_bracketed(gain, 2)}"


def _is_nothing(difference: SeedMean) -> bool:
    """Whether there is none in any seed."""
    return abs(difference.mean) < ROUNDING and (difference.half_width or 0.0) < ROUNDING


def _bracketed(value: SeedMean, digits: int) -> str:
    return (
        ""
        if value.half_width is None
        else f" ({_spread(value, digits).strip()} points)"
    )


def _spread(value: SeedMean, digits: int) -> str:
    return f" ± {number(100.0 * (value.half_width or 0.0), digits)}"


def _signed(share: float, digits: int) -> str:
    return f"{100.0 * share:+.{digits}f}".replace("-", "−")
