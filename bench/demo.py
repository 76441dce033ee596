"""The demo's result without its clock, against fair opponents: cost and attainment over seeds, on the same requests.

Run: `python -m bench.demo [--seeds N] [--jobs N]`; five minutes a seed on two idle cores. Prints four tables and writes
bench/results/demo.json (headline), demo_policies.json, demo_curve.json, demo_services.json and demo_pods.json.

The demo's cluster, services and load (app/demo/scenario.py), other requests with each seed, as other days have.
Handovers are billed for everybody. Opponents:

* `k8s_hpa, another day`, what an operator can do: tuned on the requests of one seed (`bench.tune_kubernetes`), with the
  highest of SAFETIES on all targets that keeps every SLO on all other seeds, and run on the next one;
* `k8s_hpa`, tuned with hindsight on the very requests: a bound, which cannot be set up beforehand;
* `k8s_hpa, as attained`: the same, the cheapest whose worst service is served as well as that of `joint`;
* `igniter` and `hetsev`, as they are registered;
* `perfect`: `joint` that knows the true rates until what it starts is ready, and the true times.

The headline is what `joint` saves of the cheapest opponent that keeps every SLO, over all seeds, and of the cheapest of
those whose worst service the seeds do not show to attain less than ours. Differences are taken within each seed, then
averaged, with Student's 95 % interval. Bounds are no rivals; each has a line below.

Attainment against cost is a curve: `joint` at each of ATTAINMENTS, `k8s_hpa, another day` at each of CURVE_SAFETIES.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from statistics import fmean

from app.demo.scenario import DURATION_S, demo_cluster
from app.simulate.figures import SeedMean
from app.simulate.report.report import estimate
from bench.closed_runs import ClosedRun, run_closed
from bench.report import Figures, print_table, write_results
from bench.tune_kubernetes import Pods, TunedPods, run_pods, search

OURS = "joint"
BASELINE = "k8s_hpa"
AS_ATTAINED = "k8s_hpa, as attained"
OTHER_DAY = "k8s_hpa, another day"
PERFECT = "perfect"
REGISTERED = ("igniter", "hetsev")
SAFETIES = (1.0, 0.9, 0.8, 0.7, 0.6)
"""Factors on the targets."""
ATTAINMENTS = (0.0, 0.99, 0.995)
"""Target attainments of all services; 0: what their SLOs ask for."""
CURVE_SAFETIES = (1.0, 0.8, 0.6)
SEEDS = 5
BOUNDS = (BASELINE, AS_ATTAINED, PERFECT)
"""They know what is not known beforehand."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSeed:
    """All policies on the requests of one seed."""

    seed: int
    runs: dict[str, ClosedRun]
    pods: dict[str, TunedPods]


def run_seed(seed: int) -> DemoSeed:
    """Every policy, here and now: most of it are the trials of `k8s_hpa`."""
    runs = {
        policy: run_closed(demo_cluster(policy, seed), DURATION_S)
        for policy in (OURS, *REGISTERED)
    }
    runs[PERFECT] = run_closed(
        demo_cluster(OURS, seed), DURATION_S, is_clairvoyant=True
    )
    kubernetes = search(demo_cluster(BASELINE, seed), DURATION_S)
    slos = runs[OURS].percentiles
    # Without the allowance a rival that attains exactly as much could fall short by rounding.
    as_attained = {
        name: max(share, runs[OURS].worst - _ROUNDING) for name, share in slos.items()
    }
    # In this order: the second search begins with what the first one tried.
    pods = {
        BASELINE: kubernetes.best(slos),
        AS_ATTAINED: kubernetes.best(as_attained),
    }
    runs.update({name: tuned.run for name, tuned in pods.items()})
    return DemoSeed(seed=seed, runs=runs, pods=pods)


def run_other_day(seeds: Sequence[int], place: int, pods: Pods) -> ClosedRun:
    """The seed after that at `place`, under what was tuned there, with the safety that all others need."""
    others = [*seeds[place + 1 :], *seeds[:place]]
    for safety in SAFETIES:
        careful = _careful(pods, safety)
        # One after the other, so that a safety that is too small is given up soon.
        runs = []
        for seed in others:
            runs.append(run_pods(demo_cluster(BASELINE, seed), DURATION_S, careful))
            if runs[-1].missed:
                break
        else:
            return runs[0]
    # The last one missed somewhere, and stands for what it is.
    return run_pods(demo_cluster(BASELINE, others[0]), DURATION_S, careful)


def run_curve(seed: int, pods: Pods) -> dict[tuple[str, float], ClosedRun]:
    """By policy and setting; pods: tuned on another seed."""
    ours = demo_cluster(OURS, seed)
    return {
        **{
            (OURS, share): run_closed(
                replace(ours, settings=replace(ours.settings, target_attainment=share)),
                DURATION_S,
            )
            for share in ATTAINMENTS
        },
        **{
            (OTHER_DAY, safety): run_pods(
                demo_cluster(BASELINE, seed), DURATION_S, _careful(pods, safety)
            )
            for safety in CURVE_SAFETIES
        },
    }


def _careful(pods: Pods, safety: float) -> Pods:
    """The settings with so much of their targets."""
    return {
        name: replace(each, target=safety * each.target) for name, each in pods.items()
    }


def curve(seeds: Sequence[Mapping[tuple[str, float], ClosedRun]]) -> list[Figures]:
    """One row per policy and setting: means over the seeds."""
    rows: list[Figures] = []
    for policy, setting in seeds[0]:
        runs = [each[policy, setting] for each in seeds]
        rows.append(
            {
                "policy": policy,
                "setting": setting,
                "cost_usd": fmean(run.cost_usd for run in runs),
                "worst_service_percent": fmean(100.0 * run.worst for run in runs),
                "late_percent": fmean(run.late_percent for run in runs),
                "slos_missed": sum(len(run.missed) for run in runs),
            }
        )
    return rows


def policies(seeds: Sequence[DemoSeed]) -> list[Figures]:
    """One row per policy: means over the seeds."""
    return [_policy_row(policy, seeds) for policy in seeds[0].runs]


def _policy_row(policy: str, seeds: Sequence[DemoSeed]) -> Figures:
    runs = [each.runs[policy] for each in seeds]
    saving = _saving(seeds, policy)
    cost_usd = estimate([run.cost_usd for run in runs])
    worst_percent = estimate([100.0 * run.worst for run in runs])
    return {
        "policy": policy,
        "cost_usd": cost_usd.mean,
        "cost_half_interval": cost_usd.half_width,
        "worst_service_percent": worst_percent.mean,
        "worst_half_interval": worst_percent.half_width,
        "slos_missed": sum(len(run.missed) for run in runs),
        "joint_saves_percent": saving.mean,
        "saving_half_interval": saving.half_width,
        "used_memory_usd": fmean(sum(run.bill.memory_usd.values()) for run in runs),
        "starts_per_hour": fmean(run.starts for run in runs) * 3600.0 / DURATION_S,
    }


def headline(seeds: Sequence[DemoSeed]) -> list[Figures]:
    """What `joint` saves of the cheapest opponent that attains as much, of the cheapest that keeps every SLO, and of
    the bounds."""
    keeping = [
        name
        for name in seeds[0].runs
        if name not in (OURS, *BOUNDS)
        and not any(each.runs[name].missed for each in seeds)
    ]
    # A difference that the seeds do not show is none: a rival must not drop out by chance.
    equal = [name for name in keeping if not _is_shown(_gain(seeds, name))]
    return [
        *_against("as well attained", equal, seeds),
        *_against("SLOs kept", keeping, seeds),
        *(
            row
            for name in BOUNDS
            if name in seeds[0].runs
            for row in _against("bound", [name], seeds)
        ),
    ]


def _against(
    among: str, rivals: Sequence[str], seeds: Sequence[DemoSeed]
) -> list[Figures]:
    """One row; none where no rival qualifies."""
    if not rivals:
        return []
    # One rival for all seeds: the cheapest of each seed would be chosen by chance.
    rival = min(rivals, key=lambda name: fmean(_cost_usd(each, name) for each in seeds))
    saving = _saving(seeds, rival)
    gain = _gain(seeds, rival)
    return [
        {
            "rivals": among,
            "cheapest": rival,
            "joint_saves_percent": saving.mean,
            "saving_half_interval": saving.half_width,
            "joint_attains_more_points": gain.mean,
            "gain_half_interval": gain.half_width,
            "seeds": len(seeds),
        }
    ]


def _is_shown(gain: SeedMean) -> bool:
    """Whether we attain more, beyond what chance explains."""
    return gain.mean > (gain.half_width or 0.0) + _ROUNDING


def _cost_usd(seed: DemoSeed, policy: str) -> float:
    return seed.runs[policy].cost_usd


def _saving(seeds: Sequence[DemoSeed], rival: str) -> SeedMean:
    """Percent of the rival's cost."""
    return estimate(
        [
            100.0 * (1.0 - _cost_usd(each, OURS) / _cost_usd(each, rival))
            for each in seeds
        ]
    )


def _gain(seeds: Sequence[DemoSeed], rival: str) -> SeedMean:
    """Percent of the worst service's requests in SLO, ours less the rival's."""
    return estimate(
        [100.0 * (each.runs[OURS].worst - each.runs[rival].worst) for each in seeds]
    )


def services(seeds: Sequence[DemoSeed]) -> list[Figures]:
    """One row per policy, seed and service."""
    return [
        {
            "policy": policy,
            "seed": each.seed,
            "service": totals.service,
            "requests": totals.arrivals,
            "in_slo_percent": 100.0 * run.attained[totals.service],
            "rejected": totals.rejected,
            "usd": run.bill.whole_gpu_usd.get(totals.service, 0.0),
        }
        for each in seeds
        for policy, run in each.runs.items()
        for totals in run.totals
    ]


def pods(seeds: Sequence[DemoSeed]) -> list[Figures]:
    """What `k8s_hpa` was set up with: one row per seed, search and service."""
    return [
        {
            "policy": policy,
            "seed": each.seed,
            "service": service,
            "gpu_type": option.gpu_type,
            "parts": option.parts,
            "target": option.target,
            "trials": tuned.runs,
            "is_complete": tuned.is_complete,
        }
        for each in seeds
        for policy, tuned in each.pods.items()
        for service, option in sorted(tuned.pods.items())
    ]


def main() -> None:
    """Simulate all policies, print the tables, write the JSON."""
    options = _options()
    numbers = range(1, options.seeds + 1)
    seeds = []
    # Spawned: a child that was forked with compiled kernels may hang.
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for found in pool.map(run_seed, numbers):
            seeds.append(found)
            trials = found.pods[AS_ATTAINED].runs
            print(f"seed {found.seed}: {trials} trials of {BASELINE}", flush=True)
        tuned = [each.pods[BASELINE].pods for each in seeds]
        places = range(len(seeds))
        days = pool.map(run_other_day, [list(numbers)] * len(seeds), places, tuned)
        for place, run in enumerate(days):
            seeds[(place + 1) % len(seeds)].runs[OTHER_DAY] = run
        # Each under what was tuned on the one before.
        points = list(pool.map(run_curve, numbers, [tuned[-1], *tuned[:-1]]))
    print(f"\nDemo, {DURATION_S / 60:.0f} minutes of load, seeds 1 to {options.seeds}")
    print_table(policies(seeds))
    print("\nAttainment against cost")
    print_table(curve(points))
    print("\nSettings of k8s_hpa")
    print_table(pods(seeds))
    print("\nHeadline: joint against the cheapest of the others")
    print_table(headline(seeds))
    settings = {"seeds": options.seeds}
    write_results("demo", headline(seeds), settings=settings)
    write_results("demo_policies", policies(seeds), settings=settings)
    write_results("demo_curve", curve(points), settings=settings)
    write_results("demo_services", services(seeds), settings=settings)
    write_results("demo_pods", pods(seeds), settings=settings)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.demo")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="2 to 100")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="seeds at a time"
    )
    options = parser.parse_args()
    if not 2 <= options.seeds <= 100:
        parser.error(f"--seeds must be from 2 to 100, not {options.seeds}")
    return options


if __name__ == "__main__":
    main()
