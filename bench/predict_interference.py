"""How far predicted latencies next to neighbours lie from measured ones that the fit has not seen.

    python -m bench.predict_interference [--shared ../shared]

igniter_v100: pairs on a V100, a quarter and two thirds of the pairs held out, with the latency alone as measured and
end to end (solo fit on solo_latency.csv × factor); and next to a network that no sample has as a neighbour. lucid:
training pairs next to such a network, where both have layer counts. Error = |predicted − measured| / measured.
(InSS, tables 2 and 3, of networks that were never alone: `bench.predict`.)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from app.catalogue.catalogue import load_layers
from bench.measured_sets import read_rows, shared_folder
from bench.report import Figures, print_table, write_results
from solvers.predict.data.fit import Coefficients
from solvers.predict.data.samples import (
    Indices,
    Neighbour,
    Queries,
    Reals,
    Samples,
    make_queries,
    make_samples,
)
from solvers.predict.data.techniques import TechniqueEntry
from solvers.predict.interference import (
    constant,
    layer_counts,
    pressure,
    response_surface,
)
from solvers.predict.latency.decomposition import NetworkFacts
from solvers.predict.learn.cross_validation import predict_groups

SEEDS = range(4)
SOLO = TechniqueEntry(
    name="hierarchical_kriging", package="solvers.predict.latency", is_pooled=True
)
LUCID_NAMES = {
    "EfficientNet": "efficientnet_b0",
    "MobileNetV2": "mobilenet_v2",
    "MobileNetV3": "mobilenet_v3_large",
    "ResNet18": "resnet18",
    "VGG": "vgg11",
}
"""Lucid's networks that were counted, by the name that they have there."""


class Technique(NamedTuple):
    """An interference technique; fits are asked for in turn, so that one may need more than samples."""

    name: str
    fit: Callable[[Samples, Reals], Coefficients]
    predict: Callable[[Coefficients, Queries, Reals], Reals]


class Row(NamedTuple):
    """One measured condition."""

    network: str
    batch: float
    sm_percent: float
    neighbours: tuple[Neighbour, ...]
    latency_ms: float


def igniter_rows(shared: Path, techniques: Sequence[Technique]) -> list[Figures]:
    pairs, alone_ms = load_igniter_pairs(shared)
    solo = load_igniter_solo(shared)
    fitted_ms = predict_groups(SOLO, SOLO.fit_groups(solo), pairs.at)
    by_share = {"quarter": 0.25, "two thirds": 0.65}
    figures = []
    for held, share in by_share.items():
        splits = list(_pair_splits(len(pairs) // 2, share))
        for technique in techniques:
            for known, reference_ms in (
                ("latency alone measured", alone_ms),
                ("end to end", fitted_ms),
            ):
                errors = [
                    _errors(technique, pairs, reference_ms, *split) for split in splits
                ]
                figures.append(
                    _figures(
                        f"igniter_v100, {held} of pairs held out, {known}",
                        technique.name,
                        errors,
                    )
                )
    return figures


def stranger_rows(
    name: str, samples: Samples, alone_ms: Reals, techniques: Sequence[Technique]
) -> list[Figures]:
    """Every network in turn is no one's neighbour among the samples, and everybody's among the held-out ones."""
    other = np.array([neighbours[0].network for neighbours in samples.at.neighbours])
    splits = [
        (np.flatnonzero(other != held), np.flatnonzero(other == held))
        for held in np.unique(other)
    ]
    return [
        _figures(
            name,
            technique.name,
            [_errors(technique, samples, alone_ms, *split) for split in splits],
        )
        for technique in techniques
    ]


def load_igniter_pairs(shared: Path) -> tuple[Samples, Reals]:
    """Both sides of every pair, one after the other, and their latency alone as measured."""
    rows, alone_ms = [], []
    for row in read_rows(shared / "data/igniter_v100/pair_interference.csv"):
        for own, other in ("ab", "ba"):
            near = Neighbour(
                row[f"model_{other}"],
                float(row[f"batch_{other}"]),
                float(row[f"sm_pct_{other}"]),
            )
            own_share = float(row[f"sm_pct_{own}"])
            latency_ms = float(row[f"latency_{own}_ms"])
            rows.append(
                Row(
                    row[f"model_{own}"],
                    float(row[f"batch_{own}"]),
                    own_share,
                    (near,),
                    latency_ms,
                )
            )
            alone_ms.append(float(row[f"solo_latency_{own}_ms"]))
    return _samples(rows, "V100"), np.array(alone_ms)


def load_igniter_solo(shared: Path) -> Samples:
    rows = read_rows(shared / "data/igniter_v100/solo_latency.csv")
    return _samples(
        [
            Row(
                row["model"],
                float(row["batch"]),
                float(row["sm_pct"]),
                (),
                float(row["latency_ms"]),
            )
            for row in rows
        ],
        "V100",
    )


def load_igniter_facts(shared: Path) -> Mapping[str, NetworkFacts]:
    """Kernels and bytes of the networks, as profiled."""
    return {
        row["model"]: NetworkFacts(
            kernels=float(row["kernels"]),
            input_bytes=float(row["input_bytes"]),
            output_bytes=float(row["output_bytes"]),
        )
        for row in read_rows(shared / "data/igniter_v100/model_coefficients.csv")
    }


def load_lucid(shared: Path) -> tuple[Samples, Reals]:
    """Training pairs on one data set; the share of each is not set, which counts as half of the GPU."""
    rows = []
    for row in read_rows(shared / "data/lucid_training/pair_colocation.csv"):
        if (
            row["dataset_a"] != row["dataset_b"]
            or not {row["model_a"], row["model_b"]} <= LUCID_NAMES.keys()
        ):
            continue
        for own, other in ("ab", "ba"):
            near = Neighbour(
                LUCID_NAMES[row[f"model_{other}"]], float(row[f"batch_{other}"]), 50.0
            )
            slowdown = 1.0 / float(row[f"rel_speed_{own}"])
            rows.append(
                Row(
                    LUCID_NAMES[row[f"model_{own}"]],
                    float(row[f"batch_{own}"]),
                    50.0,
                    (near,),
                    slowdown,
                )
            )
    return _samples(rows, "unknown"), np.ones(len(rows))


def load_inss(shared: Path) -> Samples:
    """All 28 rows of tables 2 and 3; a starred network has batch 4, and 30 % (table 2) or 18 % (table 3) of the SMs."""
    rows = []
    for row in read_rows(shared / "data/papers/inss_table2_latency_by_batch.csv"):
        names = [
            name.split("(")[0]
            for name in row["colocated_fixed_models"].split("+")
            if name
        ]
        neighbours = tuple(Neighbour(name, 4.0, 30.0) for name in names)
        rows.append(
            Row(
                row["measured_model"],
                float(row["batch"]),
                30.0,
                neighbours,
                float(row["observed_ms"]),
            )
        )
    for row in read_rows(shared / "data/papers/inss_table3_latency_by_sm.csv"):
        names = [
            name.split("(")[0].split(" ")[0]
            for name in row["colocated_models"].split("+")
            if name
        ]
        varied = float(row["sm_pct_varied"])
        is_fixed = "fixed" in row["measured_model"]
        own_share, other_share = (18.0, varied) if is_fixed else (varied, 18.0)
        neighbours = tuple(Neighbour(name, 4.0, other_share) for name in names)
        rows.append(
            Row(
                row["measured_model"].split("(")[0],
                4.0,
                own_share,
                neighbours,
                float(row["observed_ms"]),
            )
        )
    return _samples(rows, "RTX2060")


def _pair_splits(pairs: int, held_share: float) -> Iterator[tuple[Indices, Indices]]:
    """(learned, held-out) rows; both sides of a pair stay together."""
    for seed in SEEDS:
        order = np.random.default_rng(seed).permutation(pairs)
        held, learned = np.split(order, [round(held_share * pairs)])
        yield _both_sides(learned), _both_sides(held)


def _both_sides(pairs: Indices) -> Indices:
    return np.sort(np.concatenate((2 * pairs, 2 * pairs + 1)))


def _errors(
    technique: Technique,
    samples: Samples,
    alone_ms: Reals,
    learned: Indices,
    held: Indices,
) -> Reals:
    fit = technique.fit(samples.take(learned), alone_ms[learned])
    predicted = (
        technique.predict(fit, samples.at.take(held), alone_ms[held]) * alone_ms[held]
    )
    return np.abs(predicted / samples.latency_ms[held] - 1.0)


def _figures(name: str, technique: str, errors: Sequence[Reals]) -> Figures:
    together = np.concatenate(errors)
    return {
        "set": name,
        "technique": technique,
        "error_percent": 100.0 * float(np.mean(together)),
        "p90_percent": 100.0 * float(np.quantile(together, 0.9)),
        "worst_percent": 100.0 * float(np.max(together)),
    }


def _samples(rows: Sequence[Row], gpu_type: str) -> Samples:
    at = make_queries(
        [row.network for row in rows],
        [gpu_type] * len(rows),
        batch=[row.batch for row in rows],
        sm_percent=[row.sm_percent for row in rows],
        neighbours=[row.neighbours for row in rows],
    )
    return make_samples(at, [row.latency_ms for row in rows])


def main() -> None:
    shared = shared_folder(__doc__)
    if shared is None:
        return
    by_samples = [
        Technique("constant", constant.fit, constant.predict),
        Technique("pressure", pressure.fit, pressure.predict),
        Technique("response_surface", response_surface.fit, response_surface.predict),
    ]
    by_layers = Technique(
        "layer_counts",
        partial(layer_counts.fit, layers=load_layers()),
        layer_counts.predict,
    )
    with_facts = Technique(
        "pressure, measured facts",
        partial(pressure.fit, facts=load_igniter_facts(shared)),
        pressure.predict,
    )
    every = [*by_samples, by_layers]
    rows = [
        *igniter_rows(shared, [*every, with_facts]),
        *stranger_rows(
            "igniter_v100, never-seen neighbour", *load_igniter_pairs(shared), every
        ),
        *stranger_rows(
            "lucid_training, never-seen neighbour", *load_lucid(shared), every
        ),
    ]
    print_table(rows)
    write_results("predict_interference", rows)


if __name__ == "__main__":
    main()
