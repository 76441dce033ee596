"""How far predicted watts and MiB lie from measured ones that the fit has not seen.

    python -m bench.predict_power [--shared ../shared]

igniter_v100: inference by batch and SM share; one row left out, four random parts, random halves, and a whole network
of which only latencies are known. zeus_power: average watts of training and time per epoch by power limit and batch,
four random parts and halves, with the data set as part of the network's name and without. miso_mig: memory of training
by batch, one row left out, with the share of rows above the upper estimate (the other sets have fewer than three
batches of a network). Error = |predicted − measured| / measured.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench.measured_sets import numbers, read_rows, shared_folder
from bench.report import Figures, print_table, write_results
from solvers.predict.data.samples import (
    Indices,
    Reals,
    Samples,
    make_queries,
    make_samples,
)
from solvers.predict.data.techniques import TechniqueEntry
from solvers.predict.learn.cross_validation import predict_groups
from solvers.predict.resources import memory

SEEDS = (0, 1)
PARTS = 4

ROOFLINE = TechniqueEntry(
    name="roofline", package="solvers.predict.resources", is_pooled=True
)
DUTY_CYCLE = TechniqueEntry(name="duty_cycle", package="solvers.predict.resources")
THROTTLING = TechniqueEntry(name="throttling", package="solvers.predict.latency")
MEMORY = TechniqueEntry(name="memory", package="solvers.predict.resources")

Hide = Callable[[Samples, Indices], Samples]
"""Samples without what is held out of these rows."""


def drop_rows(samples: Samples, rows: Indices) -> Samples:
    """The samples without the rows."""
    return samples.take(np.setdiff1d(np.arange(len(samples)), rows))


def hide_watts(samples: Samples, rows: Indices) -> Samples:
    """The samples, the rows with their latencies but without their watts."""
    watts = samples.power_w.copy()
    watts[rows] = np.nan
    return make_samples(samples.at, samples.latency_ms, power_w=watts)


def held_out_errors(
    learner: TechniqueEntry,
    samples: Samples,
    parts: Sequence[Indices],
    *,
    hide: Hide = drop_rows,
) -> tuple[Reals, Reals]:
    """Errors of held-out and of learned rows, over all parts; NaN where a group could not be learned."""
    held, learned = [], []
    for rows in parts:
        kept = hide(samples, rows)
        fits = learner.fit_groups(kept)
        held.append(
            np.abs(
                predict_groups(learner, fits, samples.at.take(rows))
                / _measured(learner, samples)[rows]
                - 1.0
            )
        )
        learned.append(
            np.abs(
                predict_groups(learner, fits, kept.at) / _measured(learner, kept) - 1.0
            )
        )
    return np.concatenate(held), np.concatenate(learned)


def _measured(learner: TechniqueEntry, samples: Samples) -> Reals:
    return samples.latency_ms if learner is THROTTLING else samples.power_w


def power_rows(name: str, learner: TechniqueEntry, samples: Samples) -> list[Figures]:
    """Figures of one set: random parts, and half of the rows against the other half."""
    return [
        _figures(
            f"{name}, {PARTS} random parts",
            learner,
            samples,
            _random_parts(samples, PARTS),
        ),
        _figures(f"{name}, random halves", learner, samples, _random_parts(samples, 2)),
    ]


def igniter_rows(shared: Path) -> list[Figures]:
    samples = load_igniter(shared)
    single = [np.array([row], np.intp) for row in range(len(samples))]
    rows = [_figures("igniter_v100, one row left out", ROOFLINE, samples, single)]
    rows += power_rows("igniter_v100", ROOFLINE, samples)
    for group, own in samples.at.groups().items():
        name = f"igniter_v100, {group.network} known by latency only"
        rows.append(_figures(name, ROOFLINE, samples, [own], hide=hide_watts))
    return rows


def zeus_rows(shared: Path) -> list[Figures]:
    by_dataset = load_zeus(shared, by_dataset=True)
    return [
        *power_rows("zeus_power", DUTY_CYCLE, by_dataset),
        *power_rows(
            "zeus_power, data sets mixed",
            DUTY_CYCLE,
            load_zeus(shared, by_dataset=False),
        ),
        *power_rows("zeus_power", ROOFLINE, by_dataset),
        *power_rows("zeus_power, time per epoch", THROTTLING, by_dataset),
    ]


def memory_row(name: str, samples: Samples) -> Figures:
    """Leave one out, where three samples at two batches remain: error, and how often the upper estimate was too low."""
    errors, is_above = [], []
    for own in samples.at.groups().values():
        for row in own:
            rest = samples.take(own[own != row])
            if len(rest) < 3 or len(np.unique(rest.at.batch)) < 2:
                continue
            coefficients = memory.fit(rest)
            asked = samples.take(np.array([row], np.intp))
            errors.append(
                np.abs(memory.predict(coefficients, asked.at) / asked.memory_mib - 1.0)
            )
            is_above.append(
                asked.memory_mib > memory.predict_upper(coefficients, asked.at)
            )
    return {
        "set": f"{name}, one row left out",
        "technique": "memory",
        "rows": len(errors),
        "error_percent": 100.0 * float(np.mean(errors)),
        "p90_percent": 100.0 * float(np.quantile(errors, 0.9)),
        "above_upper_percent": 100.0 * float(np.mean(is_above)),
    }


def load_igniter(shared: Path) -> Samples:
    rows = read_rows(shared / "data/igniter_v100/power_clock.csv")
    at = make_queries(
        [row["model"] for row in rows],
        ["V100"] * len(rows),
        batch=numbers(rows, "batch"),
        sm_percent=numbers(rows, "sm_pct"),
    )
    return make_samples(
        at, numbers(rows, "gpu_latency_ms"), power_w=numbers(rows, "gpu_power_w")
    )


def load_zeus(shared: Path, *, by_dataset: bool) -> Samples:
    rows = read_rows(shared / "data/zeus_power/epoch_time_power.csv")
    at = make_queries(
        [
            f"{row['network']}/{row['dataset']}" if by_dataset else row["network"]
            for row in rows
        ],
        [row["gpu"] for row in rows],
        batch=numbers(rows, "batch"),
        sm_percent=np.full(len(rows), 100.0),
        power_limit_w=numbers(rows, "power_limit_w"),
    )
    return make_samples(
        at,
        1000.0 * numbers(rows, "time_per_epoch_s"),
        power_w=numbers(rows, "avg_power_w"),
    )


def load_miso_memory(shared: Path) -> Samples:
    rows = read_rows(shared / "data/miso_mig/full_gpu_utilisation.csv")
    at = make_queries(
        [row["model"] for row in rows],
        ["A100"] * len(rows),
        batch=numbers(rows, "batch"),
        sm_percent=np.full(len(rows), 100.0),
    )
    return make_samples(
        at, np.full(len(rows), np.nan), memory_mib=numbers(rows, "gpu_mem_mib")
    )


def _figures(
    name: str,
    learner: TechniqueEntry,
    samples: Samples,
    parts: Sequence[Indices],
    *,
    hide: Hide = drop_rows,
) -> Figures:
    held, learned = held_out_errors(learner, samples, parts, hide=hide)
    return {
        "set": name,
        "technique": learner.name,
        "rows": len(samples),
        "error_percent": 100.0 * float(np.nanmean(held)),
        "p90_percent": 100.0 * float(np.nanquantile(held, 0.9)),
        "training_error_percent": 100.0 * float(np.nanmean(learned)),
        "not_predicted_percent": 100.0 * float(np.mean(np.isnan(held))),
    }


def _random_parts(samples: Samples, count: int) -> list[Indices]:
    orders = [np.random.default_rng(seed).permutation(len(samples)) for seed in SEEDS]
    return [part for order in orders for part in np.array_split(order, count)]


def main() -> None:
    shared = shared_folder(__doc__)
    if shared is None:
        return
    power = [*igniter_rows(shared), *zeus_rows(shared)]
    print_table(power)
    memories = [memory_row("miso_mig", load_miso_memory(shared))]
    print_table(memories)
    write_results("predict_power", [*power, *memories])


if __name__ == "__main__":
    main()
