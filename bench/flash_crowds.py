"""Flash crowds: whether the SLOs hold when load jumps, and what that costs.

    python -m bench.flash_crowds --seeds 5

Half an hour of eight services on twelve V100 and twelve T4 that start a replica in 10 s, with a tick each 15 s and
measured truth. Each seed draws a trace of its own (`plimsoll trace generate flash-crowds` with its defaults): a slow
wave, noise that is half shared, and crowds of 1.5 to 5 times the rate that most services join. Next to `joint` with its
defaults stand other policies, and all of them with one room for all services at all times in place of what is learned.
One claim is ours: the worst service's attainment is at most 0.3 points below its percentile. `cost_to_uniform` compares
with `joint` at the cheapest uniform room that keeps it so, `cost_to_widest` with `joint` at the widest one,
`cost_to_other` with the cheapest run of another policy that keeps it; which ones these are is not known beforehand.
`perfect` is `joint` that knows the true rates until what it starts is ready, and the true times: a bound.
Prints a row for each policy and writes bench/results/flash_crowds.json; a part (`--policies`) is printed only.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.cli.common.files import write_csv
from app.simulate.report.report import estimate, violations
from app.simulate.run.build import shipped_catalogue
from app.simulate.run.results import RunResult
from app.simulate.run.run import SimulationRun, jobs_of
from app.simulate.run.runner import make_runner, simulate_all
from app.simulate.scenario.scenario import SimulationScenario
from app.simulate.traces.crowds import CrowdedLoad, FlashCrowds
from app.simulate.traces.files import trace_rows
from app.simulate.traces.generate import generate
from bench.report import Figures, print_table, write_results

DURATION_S = 1800
PERCENTILE = 0.98
SERVICES = {
    "classify": ("resnet50", 400.0, 60.0),
    "detect": ("inception_v3", 600.0, 40.0),
    "inspect": ("efficientnet_b4", 900.0, 20.0),
    "match": ("regnet_x_8gf", 1200.0, 15.0),
    "rank": ("resnet101", 500.0, 40.0),
    "filter": ("vgg16", 600.0, 25.0),
    "embed": ("densenet121", 500.0, 30.0),
    "tag": ("resnet18", 200.0, 100.0),
}
"""Network, SLO in ms and mean rate in rps without crowds."""
ROOMS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5)
"""Multiples of what is expected, of all services alike."""
MIN_POINTS = -0.3
"""By so much the worst service may miss its percentile."""
OURS = "joint"
Entry = dict[str, Any]
"""A policy as a scenario's file has it."""


def _entries(policy: str) -> tuple[Entry, ...]:
    """The policy with its defaults, and with each uniform room."""
    tuned = (
        {"policy": policy, "name": f"{policy}, room {room:g}", "room": room}
        for room in ROOMS
    )
    return ({"policy": policy, "name": policy}, *tuned)


POLICIES = (
    *(each for name in (OURS, "hetsev", "igniter") for each in _entries(name)),
    {"policy": OURS, "name": "perfect", "clairvoyant": True},
)


def write_trace(seed: int, folder: Path) -> Path:
    """A trace of all services, in a file of its own."""
    crowds = FlashCrowds(seed=seed)
    loads = [
        CrowdedLoad(mean_rps=mean_rps, crowds=crowds)
        for _, _, mean_rps in SERVICES.values()
    ]
    trace = generate(
        loads,
        names=tuple(SERVICES),
        duration_s=DURATION_S,
        seed=seed,
        draws=False,
        note="bench.flash_crowds",
    )
    file = folder / f"crowds-{seed}.csv"
    write_csv(file, trace_rows(trace), notes=trace.notes)
    return file


def scenario(
    seed: int, trace: Path, policies: Sequence[Entry] = POLICIES
) -> SimulationScenario:
    """The scenario of one seed, as `plimsoll simulate` would read it."""
    services = [
        {
            "name": name,
            "network": network,
            "slo": {"latency_ms": slo_ms, "percentile": PERCENTILE},
            "load": {"trace": {"file": trace.name, "column": name}},
        }
        for name, (network, slo_ms, _) in SERVICES.items()
    ]
    fleet = [
        {"name": name, "gpu_type": kind, "nodes": 6, "gpus_per_node": 2, "launch_s": 10}
        for name, kind in (("v100", "V100-32GB"), ("t4", "T4"))
    ]
    return SimulationScenario.model_validate(
        {
            "kind": "Scenario",
            "metadata": {"name": "flash-crowds"},
            "spec": {
                "duration_s": DURATION_S,
                "warm_up_s": 60,
                "step_s": 60,
                "seeds": [seed],
                "policies": list(policies),
                "loop": {"period_s": 15, "solve_work": 0.5},
                "fleet": fleet,
                "services": services,
            },
        }
    )


def jobs(
    seeds: int, folder: Path, policies: Sequence[Entry] = POLICIES
) -> tuple[SimulationRun, ...]:
    """Every policy with `seeds` seeds."""
    made: list[SimulationRun] = []
    for seed in range(1, seeds + 1):
        wanted = scenario(seed, write_trace(seed, folder), policies)
        made.extend(jobs_of(wanted, shipped_catalogue(wanted), folder))
    return tuple(made)


def rows_of(runs: Sequence[RunResult]) -> list[Figures]:
    """One row per policy: means over the seeds with Student's 95 % interval."""
    labels = tuple(dict.fromkeys(run.policy for run in runs))
    of_policy = {
        label: [run for run in runs if run.policy == label] for label in labels
    }
    entries = {entry["name"]: entry for entry in POLICIES}
    keeping = {
        label: estimate([run.cost_usd for run in mine]).mean
        for label, mine in of_policy.items()
        if estimate([_margin_points(run) for run in mine]).mean >= MIN_POINTS
    }
    uniform_usd = _min_usd(
        usd
        for label, usd in keeping.items()
        if entries[label]["policy"] == OURS and "room" in entries[label]
    )
    widest = of_policy.get(f"{OURS}, room {max(ROOMS):g}", ())
    widest_usd = estimate([run.cost_usd for run in widest]).mean if widest else None
    other_usd = _min_usd(
        usd for label, usd in keeping.items() if entries[label]["policy"] != OURS
    )
    rivals = {
        "cost_to_uniform": uniform_usd,
        "cost_to_widest": widest_usd,
        "cost_to_other": other_usd,
    }
    return [_row(mine, rivals) for mine in of_policy.values()]


def _min_usd(costs_usd: Iterable[float]) -> float | None:
    return min(costs_usd, default=None)


def _row(runs: Sequence[RunResult], rivals: Mapping[str, float | None]) -> Figures:
    margin = estimate([_margin_points(run) for run in runs])
    cost_usd = estimate([run.cost_usd for run in runs])
    return {
        "policy": runs[0].policy,
        "worst_minus_percentile_points": margin.mean,
        "margin_half_interval": margin.half_width,
        "late_percent": 100.0 * estimate([violations(run) for run in runs]).mean,
        "cost_usd": cost_usd.mean,
        "cost_half_interval": cost_usd.half_width,
        **{name: cost_usd.mean / usd if usd else None for name, usd in rivals.items()},
        "seeds": len(runs),
    }


def _margin_points(run: RunResult) -> float:
    """By how much the service that is worst off is above its percentile; below it where negative."""
    return min(
        100.0 * ((each.attainment or 0.0) - each.percentile) for each in run.services
    )


def main() -> int:
    """Simulate, print, write; 1 where a run failed."""
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = simulate_all(
            jobs(options.seeds, Path(folder), options.policies),
            make_runner(options.jobs),
        )
    runs = [each for each in outcomes if isinstance(each, RunResult)]
    failed = [each for each in outcomes if not isinstance(each, RunResult)]
    rows = rows_of(runs)
    print_table(rows)
    for each in failed:
        print(each, file=sys.stderr)
    # A part must not take the place of the whole.
    if options.policies == POLICIES:
        write_results("flash_crowds", rows, settings={"seeds": options.seeds})
    return 1 if failed else 0


def chosen(words: str) -> tuple[Entry, ...]:
    """Every run of the policies of these names, which commas separate. Raises ArgumentTypeError on others."""
    names = {word.strip() for word in words.split(",")}
    known = {entry["policy"] for entry in POLICIES}
    if unknown := names - known:
        raise argparse.ArgumentTypeError(
            f"no runs of {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}"
        )
    return tuple(entry for entry in POLICIES if entry["policy"] in names)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.flash_crowds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seeds", type=int, default=5, help="traces (default: %(default)s)"
    )
    parser.add_argument(
        "--policies",
        type=chosen,
        default=POLICIES,
        help="a part, e.g. joint,hetsev: learned and uniform room (default: all)",
    )
    parser.add_argument(
        "-j",
        "--jobs",
        type=int,
        default=1,
        help="runs at a time (default: %(default)s)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
