"""How well latencies are predicted, against what was promised and what published or simple methods reach.

    python -m bench.predict [--shared ../shared]

Only the public way is taken: `make_fits` with the automatic choice, then `predict_latency`. Error = |predicted −
measured| / measured over held-out rows; `covered` is the share of them inside the 90 % interval.

* igniter_v100 solo and pairs: a random quarter of the rows (of the pairs, both sides together) held out, three draws.
* our own sets (bench/measured, where there are any): a random quarter of the rows held out, three draws.
* rapp_v100, full quota and all quotas: a random quarter of the rows held out.
* rapp_v100, new networks: a quarter of the networks held out at a time, of each of which 8 samples are allowed, chosen
  at random or by `make_profiling_plan`; judged on all their other rows at full quota.
* rapp_v100, never measured: each network from its layers and the fits of all others. (Techniques that learn all
  networks together have seen the network when they drew the population's prior, one of 63.)
* outside the sampled range: learned without the shares below a limit or the batches above one, judged on those; of
  igniter_v100 and of every sixth network of rapp_v100. What counts is `covered`.
* InSS, tables 2 and 3: in sample, where the worst row counts, and every row left out in turn.

Then: each technique's cross-validated error, the noise floor, and the speed, as it is on this machine.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from app.catalogue.catalogue import load_layers
from bench.measured_sets import (
    Outcome,
    forecast,
    joined_samples,
    load_own,
    load_rapp,
    own_sets,
    pooled,
    random_quarter,
    rotating_groups,
    shared_folder,
    technique_mix,
)
from bench.noise_floor import noise_rows
from bench.predict_interference import load_igniter_pairs, load_igniter_solo, load_inss
from bench.report import Figures, print_table, write_results
from solvers.predict.data.fit import Fits
from solvers.predict.data.samples import Indices, LayerCounts, Samples, make_queries
from solvers.predict.estimate.predict import predict_latency
from solvers.predict.learn.fit_samples import make_fits
from solvers.predict.learn.profiling_plan import make_profiling_plan

SEEDS = range(3)
NEW_NETWORK_GROUPS = 4
ALLOWED = 8
"""Samples of a network that was not seen before."""
IGNITER_LIMITS = ((30.0, np.inf), (60.0, np.inf), (0.0, 16.0))
RAPP_LIMITS = ((10.0, np.inf), (20.0, np.inf), (50.0, np.inf), (0.0, 4.0), (0.0, 2.0))
"""(least share, largest batch) that are learned from, for what lies outside."""
SPEED_POINTS = 100_000
SPEED_SAMPLES = 400
REPETITIONS = 5

Layers = Mapping[str, LayerCounts]
Plan = Callable[[Samples, Indices], Indices]
"""The rows of one network that are measured, out of all its rows."""


class Task(NamedTuple):
    """One row of the table, but for what we reach."""

    name: str
    must: str
    published: str


class Result(NamedTuple):
    """A task, what was said of its held-out rows, and fits whose cross-validation is worth a table."""

    task: Task
    outcome: Outcome
    fits: Fits | None = None


def igniter_solo(shared: Path, layers: Layers) -> Iterator[Result]:
    samples = load_igniter_solo(shared)
    outcomes = [_held_out_quarter(samples, layers, seed=seed)[0] for seed in SEEDS]
    yield Result(Task("igniter solo", "2.0, p90 5", "2.35 iGniter"), pooled(outcomes))


def own_measured(_: Path, layers: Layers) -> Iterator[Result]:
    """Sets of bench/measured, as far as there are any."""
    for folder in own_sets():
        samples = load_own(folder)
        outcomes = [_held_out_quarter(samples, layers, seed=seed)[0] for seed in SEEDS]
        yield Result(Task(f"{folder.name} (own)", "-", "-"), pooled(outcomes))


def igniter_pairs(shared: Path, layers: Layers) -> Iterator[Result]:
    solo, (pairs, _) = load_igniter_solo(shared), load_igniter_pairs(shared)
    outcomes = []
    for seed in SEEDS:
        # Both sides of a pair are measured at once, one after the other in the file.
        learned, held = (
            np.sort(np.append(2 * part, 2 * part + 1))
            for part in random_quarter(len(pairs) // 2, seed=seed)
        )
        known = joined_samples(solo, pairs.take(learned))
        outcomes.append(
            forecast(
                make_fits(known, layers=layers),
                pairs.take(held),
                learned=len(known),
                layers=layers,
            )
        )
    yield Result(
        Task("igniter pairs, end to end", "3.0", "4.0 iGniter"), pooled(outcomes)
    )


def rapp_rows(shared: Path, layers: Layers, *, full_quota: bool) -> Iterator[Result]:
    samples = load_rapp(shared, full_quota=full_quota)
    task = (
        Task("rapp full quota", "4.0, R2 .99", "7.6 interpol.")
        if full_quota
        else Task("rapp all quotas", "4.0, R2 .99", "4.4 forest")
    )
    outcome, fits = _held_out_quarter(samples, layers, seed=0)
    yield Result(task, outcome, fits)
    if full_quota:
        yield Result(
            Task("rapp never measured, layers", "-", "-"),
            _never_measured(samples, fits, layers),
        )


def _held_out_quarter(
    samples: Samples, layers: Layers, *, seed: int
) -> tuple[Outcome, Fits]:
    learned, held = random_quarter(len(samples), seed=seed)
    fits = make_fits(samples.take(learned), layers=layers)
    return forecast(fits, samples.take(held), learned=len(learned), layers=layers), fits


def _never_measured(samples: Samples, fits: Fits, layers: Layers) -> Outcome:
    outcomes = []
    for group, rows in samples.at.groups().items():
        others = Fits(fits=tuple(fit for fit in fits.fits if fit.group != group))
        outcomes.append(forecast(others, samples.take(rows), learned=0, layers=layers))
    return pooled(outcomes)


def rapp_new_networks(shared: Path, layers: Layers) -> Iterator[Result]:
    samples = load_rapp(shared, full_quota=True)
    for name, plan in (("random", _at_random), ("planned", _as_planned)):
        outcomes = [
            _new_networks(samples, group, plan, layers)
            for group in rotating_groups(samples, NEW_NETWORK_GROUPS)
        ]
        yield Result(
            Task(f"rapp new network, {ALLOWED} {name}", "10", "-"), pooled(outcomes)
        )


def _new_networks(
    samples: Samples, new: tuple[str, ...], plan: Plan, layers: Layers
) -> Outcome:
    is_new = np.isin(samples.at.network, new)
    groups = samples.at.groups()
    allowed = [
        plan(samples, rows) for group, rows in groups.items() if group.network in new
    ]
    learned = np.sort(np.concatenate([np.flatnonzero(~is_new), *allowed]))
    held = np.setdiff1d(np.arange(len(samples)), learned)
    fits = make_fits(samples.take(learned), layers=layers)
    return forecast(fits, samples.take(held), learned=len(learned), layers=layers)


def _at_random(samples: Samples, rows: Indices) -> Indices:  # noqa: ARG001  a Plan
    return np.random.default_rng(0).permutation(rows)[:ALLOWED]


def _as_planned(samples: Samples, rows: Indices) -> Indices:
    grid = samples.at.take(rows)
    plan = make_profiling_plan(
        grid, done=grid.take(np.zeros(0, dtype=np.intp)), count=ALLOWED
    )
    row_of = dict(zip(zip(grid.batch, grid.sm_percent, strict=True), rows, strict=True))
    return np.array(
        [row_of[key] for key in zip(plan.batch, plan.sm_percent, strict=True)],
        dtype=np.intp,
    )


def inss(shared: Path, layers: Layers) -> Iterator[Result]:
    samples = load_inss(shared)
    fits = make_fits(samples, layers=layers)
    in_sample = forecast(fits, samples, learned=len(samples), layers=layers)
    yield Result(
        Task("InSS tables 2+3, in sample", "worst 4.0", "worst 4 InSS"), in_sample
    )
    every = np.arange(len(samples))
    left_out = [
        forecast(
            make_fits(samples.take(np.delete(every, row)), layers=layers),
            samples.take(every[[row]]),
            learned=len(samples) - 1,
            layers=layers,
        )
        for row in every
    ]
    yield Result(Task("InSS tables 2+3, one left out", "-", "-"), pooled(left_out))


def outside_sampled_range(shared: Path, layers: Layers) -> Iterator[Result]:
    solo, rapp = load_igniter_solo(shared), load_rapp(shared, full_quota=True)
    sixth = rapp.take(
        np.flatnonzero(np.isin(rapp.at.network, sorted(set(rapp.at.network))[::6]))
    )
    for name, samples, limits in (
        ("igniter", solo, IGNITER_LIMITS),
        ("rapp", sixth, RAPP_LIMITS),
    ):
        outcomes = []
        for min_share, largest_batch in limits:
            is_known = (samples.at.sm_percent >= min_share) & (
                samples.at.batch <= largest_batch
            )
            known, held = (
                samples.take(np.flatnonzero(rows)) for rows in (is_known, ~is_known)
            )
            outcomes.append(
                forecast(
                    make_fits(known, layers=layers),
                    held,
                    learned=len(known),
                    layers=layers,
                )
            )
        yield Result(
            Task(f"{name} outside sampled range", "covered 85", "-"), pooled(outcomes)
        )


TASKS: tuple[Callable[[Path, Layers], Iterator[Result]], ...] = (
    igniter_solo,
    own_measured,
    igniter_pairs,
    partial(rapp_rows, full_quota=True),
    partial(rapp_rows, full_quota=False),
    rapp_new_networks,
    outside_sampled_range,
    inss,
)


def accuracy_figures(result: Result) -> Figures:
    """A row of results: everything in full."""
    task, outcome = result.task, result.outcome
    errors = outcome.errors[np.isfinite(outcome.errors)]
    return {
        "task": task.name,
        "must_percent": task.must,
        "published_percent": task.published,
        "mean_percent": 100.0 * float(errors.mean()),
        "p90_percent": 100.0 * float(np.quantile(errors, 0.9)),
        "worst_percent": 100.0 * float(errors.max()),
        "r2": outcome.r2,
        "covered_percent": 100.0 * outcome.covered,
        "learned_samples": outcome.learned,
        "judged_rows": len(outcome.measured_ms),
        "unanswered_rows": len(outcome.measured_ms) - len(errors),
        "techniques": technique_mix(outcome),
    }


def shown(figures: Figures) -> Figures:
    """The row as it is printed, in at most 120 columns."""
    mix = str(figures["techniques"])
    return {
        "task": figures["task"],
        "must %": figures["must_percent"],
        "published %": figures["published_percent"],
        "mean": figures["mean_percent"],
        "p90": figures["p90_percent"],
        "worst": figures["worst_percent"],
        "R2": f"{figures['r2']:.4f}",
        "covered": f"{figures['covered_percent']:.1f}",
        "samples": f"{figures['learned_samples']}/{figures['judged_rows']}",
        "techniques": " ".join(_initials(entry) for entry in mix.split(", ")[:3]),
    }


def _initials(entry: str) -> str:
    """`locally_weighted+response_surface 62` → `LW+RS:62`."""
    name, percent = entry.rsplit(" ", 1)
    words = [part.split("_") for part in name.split("+")]
    return (
        "+".join("".join(word[0] for word in each).upper() for each in words)
        + f":{percent}"
    )


def technique_rows(result: Result) -> list[Figures]:
    """The mean cross-validated error over networks of every technique that was tried, and how often it was chosen."""
    assert result.fits is not None
    errors: dict[str, list[float]] = {}
    chosen: dict[str, int] = {}
    for fit in result.fits.of("latency_ms"):
        chosen[fit.technique] = chosen.get(fit.technique, 0) + 1
        for name, error in (
            (fit.technique, fit.quality.cross_validated_error),
            *fit.rejected,
        ):
            errors.setdefault(name, []).append(error)
    return [
        {
            "cross-validated": result.task.name,
            "technique": name,
            "networks": len(values),
            "chosen": chosen.get(name, 0),
            "mean_percent": 100.0 * float(np.mean(values)),
        }
        for name, values in sorted(errors.items(), key=lambda item: np.mean(item[1]))
    ]


def speed_rows(shared: Path) -> list[Figures]:
    """Milliseconds of one thread, the median of a few repetitions, as measured here."""
    rapp = load_rapp(shared, full_quota=True)
    many = rapp.take(np.arange(SPEED_SAMPLES))
    quotas = load_rapp(shared, full_quota=False)
    single = quotas.take(np.flatnonzero(np.array(quotas.at.network) == "resnet50"))
    single = single.take(
        np.sort(np.random.default_rng(0).permutation(len(single))[:SPEED_SAMPLES])
    )
    fits = make_fits(many)
    networks = [fit.group.network for fit in fits.of("latency_ms")]
    random = np.random.default_rng(0)
    queries = make_queries(
        [
            networks[number]
            for number in random.integers(0, len(networks), SPEED_POINTS)
        ],
        ["V100-16GB"] * SPEED_POINTS,
        batch=random.integers(1, 9, SPEED_POINTS).astype(np.float64),
        sm_percent=random.uniform(5.0, 100.0, SPEED_POINTS),
    )
    return [
        _speed(
            f"{SPEED_POINTS:,} points predicted, {len(networks)} networks",
            100.0,
            lambda: predict_latency(fits, queries),
        ),
        _speed(
            f"fit of {SPEED_SAMPLES} samples, {len(set(many.at.network))} networks",
            1000.0,
            lambda: make_fits(many),
        ),
        _speed(
            "the same, hierarchical_kriging alone",
            1000.0,
            lambda: make_fits(many, technique="hierarchical_kriging"),
        ),
        _speed(
            f"fit of {SPEED_SAMPLES} samples, one network",
            1000.0,
            lambda: make_fits(single),
        ),
    ]


def _speed(name: str, must_ms: float, work: Callable[[], object]) -> Figures:
    work()
    seconds = []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return {"speed": name, "must_ms": must_ms, "ms": 1000.0 * float(np.median(seconds))}


def main() -> None:
    """Print the tables and write bench/results/predict.json."""
    shared = shared_folder(__doc__)
    if shared is None:
        return
    layers, results = load_layers(), []
    for task in TASKS:
        for result in task(shared, layers):
            results.append(result)
            print(f"  done: {result.task.name}", file=sys.stderr, flush=True)
    accuracy = [accuracy_figures(result) for result in results]
    print_table([shown(row) for row in accuracy])
    print(
        "Initials of techniques, with their share of the rows in percent; samples = learned from / judged.\n"
    )
    techniques = [
        row
        for result in results
        if result.fits is not None
        for row in technique_rows(result)
    ]
    print_table(techniques)
    print()
    noise = [
        *noise_rows("rapp full quota", load_rapp(shared, full_quota=True)),
        *noise_rows("rapp all quotas", load_rapp(shared, full_quota=False)),
    ]
    print_table(noise)
    print()
    speed = speed_rows(shared)
    print_table(speed)
    write_results("predict", [*accuracy, *techniques, *noise, *speed])


if __name__ == "__main__":
    main()
