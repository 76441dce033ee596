"""What papers claim next to what the simulator finds: HetSev's three experiments, and forecasts against foresight.

Run: `make bench-compare`, or `python -m bench.compare [NAMES] [--jobs N]`; NAMES are files of bench/scenarios without
their ending. Every scenario states what the paper fixes and what is assumed. All policies of a scenario face the same
requests with the production loop (app.simulate). Prints one table per scenario and writes bench/results/compare.json.

A row says where its truth comes from. Only V100s are measured; other GPU types are scaled from them, so a row of a
cluster that has any is `scaled`, and a scaled row reproduces nothing: `holds` says on which side of the figure it is.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from app.cli.simulation.scenario_files import read_scenario
from app.simulate.report.report import SimulationReport, make_report, violations
from app.simulate.run.build import Catalogue, shipped_catalogue
from app.simulate.run.results import RunResult
from app.simulate.run.run import jobs_of
from app.simulate.run.runner import make_runner, simulate_all
from app.simulate.scenario.scenario import SimulationScenario
from bench.report import Figures, print_table, write_results

SCENARIOS = Path(__file__).parent / "scenarios"
MEASURED_TYPES = frozenset({"V100-16GB", "V100-32GB"})
SPIKE_S = 3500
"""When the load of section 6.1 jumps."""

Pair = Callable[[RunResult, RunResult], tuple[float, float, float]]
"""Ours and the baseline's run, same seed → our figure, ours and the baseline's own amounts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One figure of a paper or a demand of ours, and how it is read from two runs with the same seed."""

    figure: str
    stated: float
    unit: str
    is_at_least: bool
    policy: str
    baseline: str
    read: Pair
    is_papers: bool = True
    """Whether the paper states the figure; else it is what we ask of ourselves."""

    def values(
        self, report: SimulationReport, *, policy: str | None = None
    ) -> tuple[tuple[float, float, float], ...]:
        """Figure, ours and the baseline's amounts by seed, of the seeds that both have. `policy`: in place of ours."""
        ours = {
            run.seed: run
            for run in report.runs
            if run.policy == (policy or self.policy)
        }
        rivals = {run.seed: run for run in report.runs if run.policy == self.baseline}
        return tuple(
            self.read(ours[seed], rivals[seed])
            for seed in sorted(ours.keys() & rivals.keys())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Scenarios that are read alike."""

    title: str
    scenarios: tuple[str, ...]
    claims: tuple[Claim, ...]
    note: str = ""


def throughput(ours: RunResult, rival: RunResult) -> tuple[float, float, float]:
    """Most of the ratios of served requests per second, step by step from the spike on, and both means there."""
    mine, theirs = _served_rps(ours), _served_rps(rival)
    return _most(mine, theirs), fmean(mine), fmean(theirs)


def mean_throughput(ours: RunResult, rival: RunResult) -> tuple[float, float, float]:
    """Ratio of the means of served requests per second from the spike on, and both."""
    mine, theirs = fmean(_served_rps(ours)), fmean(_served_rps(rival))
    return mine / theirs, mine, theirs


def _utilisation(ours: RunResult, rival: RunResult) -> tuple[float, float, float]:
    """Most of the ratios of busy GPUs, step by step from the spike on, and both means there."""
    mine, theirs = (
        run.series.busy_gpus[round(SPIKE_S / run.series.step_s) :]
        for run in (ours, rival)
    )
    return _most(mine, theirs), fmean(mine), fmean(theirs)


def _response(ours: RunResult, rival: RunResult) -> tuple[float, float, float]:
    """The rival's mean response time over ours, and both in ms; over the time that counts, by Little's law."""
    mine, theirs = response_ms(ours), response_ms(rival)
    return theirs / mine, mine, theirs


def _worst_response(ours: RunResult, rival: RunResult) -> tuple[float, float, float]:
    """Most of the ratios of the 99th percentiles, step by step from the spike on, over services; and the worst ones."""
    mine, theirs = _p99_ms(ours), _p99_ms(rival)
    return _most(theirs, mine), max(mine), max(theirs)


def _late_percent(ours: RunResult, rival: RunResult) -> tuple[float, float, float]:
    return 100.0 * violations(ours), 100.0 * violations(ours), 100.0 * violations(rival)


def _worst_late_percent(
    ours: RunResult, rival: RunResult
) -> tuple[float, float, float]:
    mine, theirs = worst_late_percent(ours), worst_late_percent(rival)
    return mine, mine, theirs


def _best_cost_ratio(ours: RunResult, rival: RunResult) -> tuple[float, float, float]:
    return max(paper_cost_ratios(ours, rival)), ours.memory_usd, rival.cost_usd


def _mean_cost_ratio(ours: RunResult, rival: RunResult) -> tuple[float, float, float]:
    return fmean(paper_cost_ratios(ours, rival)), ours.memory_usd, rival.cost_usd


def _whole_cost_ratio(ours: RunResult, rival: RunResult) -> tuple[float, float, float]:
    return rival.cost_usd / ours.cost_usd, ours.cost_usd, rival.cost_usd


def _own_cost_ratio(ours: RunResult, rival: RunResult) -> tuple[float, float, float]:
    return ours.cost_usd / rival.cost_usd, ours.cost_usd, rival.cost_usd


def _saving_percent(ours: RunResult, rival: RunResult) -> tuple[float, float, float]:
    return 100.0 * (1.0 - ours.cost_usd / rival.cost_usd), ours.cost_usd, rival.cost_usd


def _attainment_gain(ours: RunResult, rival: RunResult) -> tuple[float, float, float]:
    mine, theirs = 100.0 - 100.0 * violations(ours), 100.0 - 100.0 * violations(rival)
    return mine - theirs, mine, theirs


def _worst_attainment_gain(
    ours: RunResult, rival: RunResult
) -> tuple[float, float, float]:
    mine, theirs = 100.0 - worst_late_percent(ours), 100.0 - worst_late_percent(rival)
    return mine - theirs, mine, theirs


def paper_cost_ratios(ours: RunResult, rival: RunResult) -> tuple[float, ...]:
    """By service: whole GPUs of the rival over used memory of ours, HetSev's accounting (its section 6.3)."""
    return tuple(
        theirs.cost_usd / mine.memory_usd
        for mine, theirs in zip(ours.services, rival.services, strict=True)
    )


def worst_late_percent(run: RunResult) -> float:
    """Of the service that is worst off."""
    return 100.0 * max(
        1.0 - each.attainment for each in run.services if each.attainment is not None
    )


def response_ms(run: RunResult) -> float:
    """Mean time of a request in the system, rejected ones included, whose time there counts as well; sound where
    hardly anything waits at the beginning and the end."""
    done = sum(each.served + each.rejected for each in run.services)
    return 1000.0 * sum(each.sojourn_s for each in run.services) / done


def _served_rps(run: RunResult) -> list[float]:
    """Served requests per second in each step from the spike on; clients whose requests are rejected try again, so
    that more arrive."""
    steps = zip(
        *(each.served_rps for each in run.series.services.values()), strict=True
    )
    return [sum(rates_rps) for rates_rps in steps][round(SPIKE_S / run.series.step_s) :]


def _p99_ms(run: RunResult) -> list[float]:
    begin = round(SPIKE_S / run.series.step_s)
    steps = list(
        zip(*(each.p99_ms for each in run.series.services.values()), strict=True)
    )[begin:]
    return [
        max((value for value in step if value is not None), default=0.0)
        for step in steps
    ]


def _most(above: Sequence[float], below: Sequence[float]) -> float:
    """The largest ratio, where neither is 0."""
    return max(
        (one / other for one, other in zip(above, below, strict=True) if one and other),
        default=1.0,
    )


def _claim(
    figure: str,
    stated: float,
    unit: str,
    read: Pair,
    *,
    at_least: bool,
    policy: str = "hetsev",
    baseline: str = "k8s_hpa",
    is_papers: bool = True,
) -> Claim:
    return Claim(
        figure=figure,
        stated=stated,
        unit=unit,
        read=read,
        is_at_least=at_least,
        policy=policy,
        baseline=baseline,
        is_papers=is_papers and policy == "hetsev",
    )


_RESPONSES = (
    _claim("response time, baseline / ours, mean", 2.3, "x", _response, at_least=True),
    _claim(
        "response time, baseline / ours, p99 at most",
        2.3,
        "x",
        _worst_response,
        at_least=True,
    ),
)
COSTS = (
    _claim(
        "cost ratio, used memory, best service",
        2.15,
        "x",
        _best_cost_ratio,
        at_least=True,
    ),
    _claim("cost ratio, used memory, mean", 1.79, "x", _mean_cost_ratio, at_least=True),
    _claim(
        "cost ratio, whole GPUs",
        1.0,
        "x",
        _whole_cost_ratio,
        at_least=True,
        is_papers=False,
    ),
    _claim(
        "requests in violation",
        1.12,
        "%",
        _late_percent,
        at_least=False,
        is_papers=False,
    ),
    _claim(
        "saving of joint",
        15.0,
        "%",
        _saving_percent,
        at_least=True,
        policy="joint",
        baseline="hetsev",
    ),
    _claim(
        "attainment gain of joint, worst service",
        0.0,
        "points",
        _worst_attainment_gain,
        at_least=True,
        policy="joint",
        baseline="hetsev",
    ),
    _claim(
        "attainment gain of joint, all requests",
        0.0,
        "points",
        _attainment_gain,
        at_least=True,
        policy="joint",
        baseline="hetsev",
    ),
)
_FORESIGHT = (
    _claim(
        "late, all",
        1.0,
        "%",
        _late_percent,
        at_least=False,
        policy="joint",
        baseline="clairvoyant",
    ),
    _claim(
        "late, worst service",
        2.0,
        "%",
        _worst_late_percent,
        at_least=False,
        policy="joint",
        baseline="clairvoyant",
    ),
    _claim(
        "cost / clairvoyant, next hour",
        1.10,
        "x",
        _own_cost_ratio,
        at_least=False,
        policy="joint",
        baseline="clairvoyant-hour",
    ),
    _claim(
        "cost / clairvoyant, next decision",
        1.10,
        "x",
        _own_cost_ratio,
        at_least=False,
        policy="joint",
        baseline="clairvoyant",
    ),
)

_ONE_PER_GPU = (
    "The spike asks for more than the cluster has, and a GPU can serve only so much more when two networks share it:\n"
    "by its Figure 1 the paper's servers fill little of a GPU alone (three serve 1.85 times as much as one), those\n"
    "that the measured curves come from fill it at the batches of this load."
)
_CHEAP_T4 = (
    "Most of the ratio is the choice of T4s, which the scaled truth has nearly as fast as V100s at batch 8; and a\n"
    "replica uses little of a GPU's memory."
)

EXPERIMENTS = (
    Experiment(
        title="HetSev 6.1, clients in a closed loop",
        scenarios=("hetsev_6_1",),
        claims=(
            _claim("throughput, at most", 2.21, "x", throughput, at_least=True),
            _claim(
                "throughput, mean from the spike on",
                1.0,
                "x",
                mean_throughput,
                at_least=True,
                is_papers=False,
            ),
            _claim("GPU utilisation, at most", 2.56, "x", _utilisation, at_least=True),
            *_RESPONSES,
            _claim(
                "throughput, at most, joint",
                2.21,
                "x",
                throughput,
                at_least=True,
                policy="joint",
            ),
        ),
        note=_ONE_PER_GPU,
    ),
    Experiment(
        title="HetSev 6.1, open loop",
        scenarios=("hetsev_6_1_open",),
        claims=(
            *_RESPONSES,
            _claim(
                "requests in violation",
                1.12,
                "%",
                _late_percent,
                at_least=False,
                is_papers=False,
            ),
            _claim(
                "requests in violation, joint",
                1.12,
                "%",
                _late_percent,
                at_least=False,
                policy="joint",
            ),
        ),
        note=_ONE_PER_GPU,
    ),
    Experiment(
        title="HetSev 6.2, 18 replicas, open loop",
        scenarios=("hetsev_6_2",),
        claims=(
            _claim("requests in violation", 1.12, "%", _late_percent, at_least=False),
            _claim(
                "late, worst service", 4.0, "%", _worst_late_percent, at_least=False
            ),
        ),
        note="Nothing runs when the requests begin: what comes until the first launches are over counts as late.",
    ),
    Experiment(
        title="HetSev 6.3, clients in a closed loop",
        scenarios=("hetsev_6_3",),
        claims=COSTS,
        note=_CHEAP_T4,
    ),
    Experiment(
        title="HetSev 6.3, open loop",
        scenarios=("hetsev_6_3_open",),
        claims=COSTS,
        note=_CHEAP_T4,
    ),
    Experiment(
        title="Forecast against foresight, bursts",
        scenarios=("foresight_azure",),
        claims=_FORESIGHT,
        note=(
            "Late are `code` bursts: they climb tenfold within seconds, sooner than telemetry, decision and launch.\n"
            "What is kept for them costs more than foresight of the next decision, and less than that of an hour."
        ),
    ),
    Experiment(
        title="Forecast against foresight, spikes",
        scenarios=("foresight_spike",),
        claims=_FORESIGHT,
    ),
)


def main() -> None:
    """Run what is asked for, print the tables, write the JSON."""
    options = _options()
    rows: list[Figures] = []
    for experiment in EXPERIMENTS:
        for name in [
            name
            for name in experiment.scenarios
            if name in (options.names or experiment.scenarios)
        ]:
            begun = time.perf_counter()
            report, truth = simulated(
                read_scenario(SCENARIOS / f"{name}.yaml"), options.jobs
            )
            found = rows_of(experiment, report, scenario=name, truth=truth)
            print(f"\n{experiment.title} ({name}, {time.perf_counter() - begun:.0f} s)")
            print_table(
                [
                    {key: value for key, value in row.items() if key != "scenario"}
                    for row in found
                ]
            )
            if experiment.note:
                print(experiment.note)
            rows.extend(found)
    write_results("compare", rows, settings={"names": " ".join(options.names)})


def rows_of(
    experiment: Experiment, report: SimulationReport, *, scenario: str, truth: str
) -> list[Figures]:
    """One row per claim: means over the seeds that both policies have."""
    return [
        _row(claim, report, scenario=scenario, truth=truth)
        for claim in experiment.claims
    ]


def _row(
    claim: Claim, report: SimulationReport, *, scenario: str, truth: str
) -> Figures:
    figure, mine, theirs = (
        fmean(values) for values in zip(*claim.values(report), strict=True)
    )
    return {
        "scenario": scenario,
        "figure": claim.figure,
        "stated": claim.stated,
        "found": figure,
        "unit": claim.unit,
        "holds": "yes"
        if (figure >= claim.stated if claim.is_at_least else figure <= claim.stated)
        else "NO",
        "ours": mine,
        "baseline": theirs,
        "policies": f"{claim.policy} : {claim.baseline}",
        "truth": truth,
    }


def provenance(scenario: SimulationScenario) -> str:
    """Where the latencies of the fleet come from: the least certain of its GPU types."""
    types = {pool.gpu_type for pool in scenario.spec.fleet}
    if scenario.spec.truth == "planned":
        return "planned"
    return "measured" if types <= MEASURED_TYPES else "scaled"


def simulated(
    scenario: SimulationScenario, processes: int, catalogue: Catalogue | None = None
) -> tuple[SimulationReport, str]:
    """The report of all its runs, and where its truth comes from. Raises SystemExit where a run failed."""
    jobs = jobs_of(scenario, catalogue or shipped_catalogue(scenario), SCENARIOS)
    report = make_report(scenario, simulate_all(jobs, make_runner(processes)))
    if report.failed:
        name = scenario.metadata.name
        raise SystemExit(
            f"{name}: {len(report.failed)} of {len(jobs)} runs failed: {report.failed[0]}"
        )
    return report, provenance(scenario)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=__doc__
    )
    known = [name for experiment in EXPERIMENTS for name in experiment.scenarios]
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help=", ".join(known))
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time"
    )
    options = parser.parse_args()
    if unknown := sorted({*options.names} - {*known}):
        parser.error(
            f"no scenario is called {', '.join(unknown)}; there are {', '.join(known)}"
        )
    return options


if __name__ == "__main__":
    main()
