"""Each latency technique by itself on measured sets: the figures of docs/predict.md.

    python -m bench.predict_techniques [--shared ../shared]

A random quarter of the rows is held out, or all but a few rows of every network; the technique learns from the rest
and there is no choice. Error = |predicted − measured| / measured over the held-out rows of all draws; `unanswered` is
the share of them in groups that the technique could not learn. (With the automatic choice: `bench.predict`.)
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.measured_sets import load_rapp, random_quarter, shared_folder
from bench.predict_interference import load_igniter_solo
from bench.report import Figures, print_table, write_results
from solvers.predict.data.samples import Indices, Reals, Samples
from solvers.predict.data.techniques import LEARNERS, TechniqueEntry
from solvers.predict.learn.cross_validation import predict_groups

NETWORK_STEP = 4
"""Of all quotas every fourth network is taken: each technique sees its 7,000 rows in a few seconds."""
WITHOUT_A_PLACE_HERE = ("throttling", "factorisation_machine")
"""Power limits are not in these sets; one pass over rows is `bench.predict_fm`'s."""

Split = tuple[Indices, Indices]
"""(learned, held-out) rows."""


class Task(NamedTuple):
    """A set, and how its rows are divided."""

    name: str
    load: Callable[[Path], Samples]
    split: Callable[[Samples, int], Split]
    draws: int


def held_quarter(samples: Samples, seed: int) -> Split:
    """A random quarter of the rows held out."""
    return random_quarter(len(samples), seed=seed)


def kept_few(samples: Samples, seed: int, *, count: int) -> Split:
    """`count` random rows of every network learned, the others held out."""
    random = np.random.default_rng(seed)
    learned = np.sort(
        np.concatenate(
            [random.permutation(rows)[:count] for rows in samples.at.groups().values()]
        )
    )
    return learned, np.setdiff1d(np.arange(len(samples)), learned)


def load_every_fourth(shared: Path) -> Samples:
    """rapp_v100 at all quotas, a quarter of the networks."""
    samples = load_rapp(shared, full_quota=False)
    chosen = sorted(set(samples.at.network))[::NETWORK_STEP]
    return samples.take(np.flatnonzero(np.isin(samples.at.network, chosen)))


TASKS = (
    Task("igniter solo", load_igniter_solo, held_quarter, 10),
    Task(
        "igniter solo, 16 per network",
        load_igniter_solo,
        partial(kept_few, count=16),
        10,
    ),
    Task("rapp full quota", partial(load_rapp, full_quota=True), held_quarter, 2),
    Task(
        "rapp full quota, 16 per network",
        partial(load_rapp, full_quota=True),
        partial(kept_few, count=16),
        2,
    ),
    Task(
        "rapp full quota, 8 per network",
        partial(load_rapp, full_quota=True),
        partial(kept_few, count=8),
        2,
    ),
    Task("rapp all quotas, every 4th network", load_every_fourth, held_quarter, 1),
)


def task_rows(
    task: Task, shared: Path, learners: Sequence[TechniqueEntry]
) -> list[Figures]:
    """A row for every technique that can learn from such rows."""
    samples = task.load(shared)
    splits = [task.split(samples, seed) for seed in range(task.draws)]
    rows = []
    for learner in learners:
        errors = np.concatenate([_errors(learner, samples, split) for split in splits])
        if np.isfinite(errors).any():
            rows.append(_figures(task.name, learner.name, errors))
    return rows


def _errors(learner: TechniqueEntry, samples: Samples, split: Split) -> Reals:
    """(held-out rows,) relative errors; NaN where the group was not learned."""
    learned, held = (samples.take(rows) for rows in split)
    predicted_ms = predict_groups(learner, learner.fit_groups(learned), held.at)
    return np.abs(predicted_ms / held.latency_ms - 1.0)


def _figures(task: str, technique: str, errors: Reals) -> Figures:
    answered = errors[np.isfinite(errors)]
    return {
        "task": task,
        "technique": technique,
        "mean_percent": 100.0 * float(np.mean(answered)),
        "p90_percent": 100.0 * float(np.quantile(answered, 0.9)),
        "unanswered_percent": 100.0 * (1.0 - len(answered) / len(errors)),
    }


def main() -> None:
    """Print the table and write bench/results/predict_techniques.json."""
    shared = shared_folder(__doc__)
    if shared is None:
        return
    learners = [
        learner
        for learner in LEARNERS["latency_ms"]
        if learner.name not in WITHOUT_A_PLACE_HERE
    ]
    rows = []
    for task in TASKS:
        rows += task_rows(task, shared, learners)
        print(f"  done: {task.name}", file=sys.stderr, flush=True)
    print_table(rows)
    write_results("predict_techniques", rows)


if __name__ == "__main__":
    main()
