"""The simulator's truth and the planner's belief of partners, held against measured pairs and against each other.

    python -m bench.partners [--shared ../shared/data]

Errors are means of |predicted / measured factor − 1|, in percent. Rows that the truth reads off its own tables
(iGniter's pairs, ResNet-50 next to itself) are left out one by one; Abacus, ParvaGPU and the copies are held against
laws that saw none of them. Then: how much partners differ, what the best law of one number per network leaves, and how
far the catalogue's belief lies from the truth on pairs that were not profiled. Pairs of our own are in `own_pairs`.
"""

import argparse
import csv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np

from agents.sim.truth.curves import FloatArray
from agents.sim.truth.partners import Partner, fair_factors, memory_factor
from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.tables import read_partners
from agents.sim.truth.truth import Truth, load_truth
from bench.catalogue.make_catalogue import BYTES_PER_ITEM, LAUNCH_MS_PER_KERNEL
from bench.catalogue.measured import (
    DEFAULT_SHARED,
    CatalogueType,
    NetworkFacts,
    read_networks,
    read_types,
)
from bench.catalogue.partner_belief import BATCH, profile, profiled_sets
from bench.own_pairs import fit_rank_one, own_rows
from bench.report import Figures, print_table, write_results

_FLOOR_DUTY = 0.3
"""Duty, at the largest batch, of a network whose time did not grow up to it: its host is the limit."""
_SAME_UNCAPPED = 1.08
"""What identical processes lose beyond fair sharing, as in the truth."""
_WHERE = (("V100-16GB", 50.0), ("A100-40GB", 50.0), ("A100-40GB", 100.0))
"""GPU types and the SM percent of both partners; at 100 % nothing limits them."""

Row = Mapping[str, str]


def data_rows(shared: Path) -> Iterator[Figures]:
    """The truth against each measured set that is there."""
    sets = {
        "igniter_v100/pair_interference.csv": (
            _igniter_pairs,
            "pairs, capped, V100",
            2.0,
        ),
        "resnet50_pairs_mps/pairs.csv": (
            _resnet50_pairs,
            "ResNet-50 next to itself, capped, A100",
            3.0,
        ),
        "abacus_a100/pair_makespan.csv": (_abacus_pairs, "pairs, uncapped, A100", 8.0),
        "parvagpu_mig/profile.csv": (
            _parvagpu_sets,
            "two and three identical, A100 slices",
            12.0,
        ),
    }
    for file, (read, what, must) in sets.items():
        if (shared / file).is_file():
            factors = np.array(list(read(shared / file)))
            yield _error_row(what, factors, must)
    copies = memory_factor(1.0, (0.75, 0.75))
    yield {
        "what": "copies at half of the SMs each: factor (measured 1.54 to 1.86)",
        "figure": copies,
        "a constant": None,
        "must": "1.5 to 1.9",
    }


def _error_row(what: str, factors: FloatArray, must: float) -> Figures:
    """`factors`: (N, 2) predicted and measured."""
    predicted, measured = factors.T
    return {
        "what": f"{what}: error, % ({len(factors)} rows)",
        "figure": _error(predicted, measured),
        "a constant": _error(np.median(measured), measured),
        "must": f"<= {must:g}",
    }


def _error(predicted: FloatArray | float, measured: FloatArray) -> float:
    return float(100.0 * np.mean(np.abs(predicted / measured - 1.0)))


def _rows(file: Path) -> Iterator[Row]:
    with file.open(newline="") as lines:
        yield from csv.DictReader(lines)


def _igniter_pairs(file: Path) -> Iterator[tuple[float, float]]:
    for row in _rows(file):
        for ours, other in (("a", "b"), ("b", "a")):
            names = (f"{row[f'model_{ours}']}-trt", f"{row[f'model_{other}']}-trt")
            measured = float(row[f"latency_{ours}_ms"]) / float(
                row[f"solo_latency_{ours}_ms"]
            )
            yield _without_itself(names, row, ours, other), measured


def _resnet50_pairs(file: Path) -> Iterator[tuple[float, float]]:
    for row in _rows(file):
        for ours, other in (("a", "b"), ("b", "a")):
            measured = float(row[f"p95_{ours}_ms"]) / float(row[f"solo_p95_{ours}_ms"])
            yield (
                _without_itself(("resnet50", "resnet50"), row, ours, other),
                measured,
            )


def _without_itself(names: tuple[str, str], row: Row, ours: str, other: str) -> float:
    """The factor by the pair's table, without the row in question if it is there."""
    pairs = read_partners().measured[names]
    own, neighbour = (
        Partner(
            network=name,
            sm_percent=float(row[f"sm_pct_{side}"]),
            batch=int(row[f"batch_{side}"]),
            duty=1.0,
            memory_bound=0.0,
        )
        for name, side in zip(names, (ours, other), strict=True)
    )
    wanted = np.log2([neighbour.sm_percent, own.batch, neighbour.batch])
    others = np.abs(pairs.conditions - wanted).max(axis=1) > 1e-9
    kept = replace(
        pairs, conditions=pairs.conditions[others], excesses=pairs.excesses[others]
    )
    return 1.0 + kept.excess(own, neighbour)


def _abacus_pairs(file: Path) -> Iterator[tuple[float, float]]:
    """Both start a batch at once, and what is measured is when the later one ends."""
    times_ms = {
        (row["model"], row["seq_len"], int(row["batch"])): float(row["latency_ms"])
        for row in _rows(file.with_name("solo_latency.csv"))
    }
    for row in _rows(file):
        sides = [
            (row[f"model_{side}"], row[f"seq_len_{side}"], int(row[f"batch_{side}"]))
            for side in ("a", "b")
        ]
        alone_ms = [float(row[f"solo_{side}_ms"]) for side in ("a", "b")]
        duties = [
            _duty(times_ms, *side, time_ms)
            for side, time_ms in zip(sides, alone_ms, strict=True)
        ]
        factors = fair_factors(duties, (100.0, 100.0))
        yield _overlap(alone_ms, factors), 1.0 + float(row["excess"])


def _duty(
    times_ms: Mapping[tuple[str, str, int], float],
    model: str,
    seq_len: str,
    batch: int,
    time_ms: float,
) -> float:
    """Kernel time over time, if the largest batch keeps the GPU busy throughout."""
    own = {
        key[2]: each for key, each in times_ms.items() if key[:2] == (model, seq_len)
    }
    if not own:
        # Of a network that is only in pairs nothing is known alone but this.
        return 1.0
    largest = max(own)
    per_item_ms = min(each / size for size, each in own.items())
    is_flat = own[largest] < 1.1 * min(own.values())
    duty = batch * per_item_ms / time_ms * (_FLOOR_DUTY if is_flat else 1.0)
    return min(1.0, duty)


def _overlap(alone_ms: list[float], factors: tuple[float, ...]) -> float:
    """1 + the later end's excess over the longer alone, per time of the shorter one alone."""
    together_ms = [
        time_ms * factor for time_ms, factor in zip(alone_ms, factors, strict=True)
    ]
    first = int(together_ms[1] < together_ms[0])
    rest = 1 - first
    # Once one has ended, the other goes on at its own speed.
    end_ms = together_ms[first] + (alone_ms[rest] - together_ms[first] / factors[rest])
    return 1.0 + (end_ms - max(alone_ms)) / min(alone_ms)


def _parvagpu_sets(file: Path) -> Iterator[tuple[float, float]]:
    rates = {
        (row["model"], row["gpcs"], int(row["batch"]), int(row["processes"])): float(
            row["throughput_rps_per_process"]
        )
        for row in _rows(file)
    }
    best: dict[tuple[str, str], float] = {}
    for (model, gpcs, _, count), rate in rates.items():
        best[model, gpcs] = max(best.get((model, gpcs), 0.0), rate * count)
    for (model, gpcs, batch, count), rate in rates.items():
        alone = rates.get((model, gpcs, batch, 1), 0.0)
        if count in (2, 3) and rate > 0.0 and alone > 0.0:
            duty = min(1.0, alone / best[model, gpcs])
            fair = fair_factors((duty,) * count, (100.0,) * count)[0]
            yield fair * _SAME_UNCAPPED, alone / rate


def spread_rows(truth: Truth) -> Iterator[Figures]:
    """How much it matters who the partner is, and what the best law of rank one leaves."""
    for gpu_type, percent in _WHERE:
        factors = _factor_table(truth, gpu_type, percent)
        where = f"{gpu_type}, both at {percent:g} %"
        deviations = np.nanstd(factors, axis=1, ddof=1)
        yield {
            "what": f"{where}: standard deviation over partners, %",
            "figure": float(100.0 * deviations.mean()),
            "a constant": None,
            "must": ">= 8" if percent == 100.0 else ">= 1.5",
        }
        yield {
            "what": f"{where}: what one number per network leaves, %",
            "figure": _rank_one_error(factors),
            "a constant": None,
            "must": ">= 4" if percent == 100.0 else ">= 0.8",
        }


def _factor_table(truth: Truth, gpu_type: str, percent: float) -> FloatArray:
    """(N, N) each inference network next to each other one; NaN next to itself."""
    names = truth.networks
    table = np.full((len(names), len(names)), np.nan)
    for own, other in permutations(range(len(names)), 2):
        table[own, other] = _factor(
            truth, gpu_type, (names[own], percent), (names[other], percent)
        )
    return table


def _factor(
    truth: Truth, gpu_type: str, own: tuple[str, float], other: tuple[str, float]
) -> float:
    clocks = {kind.name: kind.clocks_mhz[-1] for kind in read_types()}
    alone = RunningPart(
        network=own[0],
        gpu_type=gpu_type,
        sm_percent=own[1],
        batch=BATCH,
        clock_mhz=clocks[gpu_type],
    )
    beside = replace(alone, neighbours=(SimulatedNeighbour(*other, BATCH),))
    return truth.execution_ms(beside, BATCH) / truth.execution_ms(alone, BATCH)


def _rank_one_error(factors: FloatArray) -> float:
    own, other = np.nonzero(np.isfinite(factors))
    measured = factors[own, other]
    sensitivity, pressure = fit_rank_one(
        measured - 1.0, np.ones(len(measured)), own, other
    )
    return _error(1.0 + sensitivity[own] * pressure[other], measured)


def belief_rows(truth: Truth) -> Iterator[Figures]:
    """The catalogue's law on ordered pairs that were not among those it was fitted to."""
    networks = read_networks()
    types = {kind.name: kind for kind in read_types()}
    for gpu_type in ("V100-16GB", "A100-40GB"):
        factors = np.array(list(_held_out(truth, networks, types[gpu_type])))
        yield _error_row(f"{gpu_type}: belief on pairs not profiled", factors, 2.5)


def _held_out(
    truth: Truth, networks: tuple[NetworkFacts, ...], kind: CatalogueType
) -> Iterator[tuple[float, float]]:
    belief = profile(truth, networks, kind, BYTES_PER_ITEM)
    random = np.random.default_rng(list(kind.name.encode()))
    profiled = {
        (own.network, others[0].network)
        for own, others in profiled_sets([each.name for each in networks], random)
        if len(others) == 1
    }
    for own, other in permutations(networks, 2):
        if (own.name, other.name) in profiled:
            continue
        alone = RunningPart(
            network=own.name,
            gpu_type=kind.name,
            sm_percent=50.0,
            batch=BATCH,
            clock_mhz=kind.clocks_mhz[-1],
        )
        alone_ms = truth.execution_ms(alone, BATCH)
        launch_ms = own.kernels * LAUNCH_MS_PER_KERNEL
        run_ms = alone_ms - launch_ms - BATCH * BYTES_PER_ITEM / 1e7
        excess_ms = launch_ms * (
            2.0 * belief.launch.per_neighbour + belief.launch.base
        ) + run_ms * belief.sensitivity(own.name) * belief.pressure(
            other.name, sm_percent=50.0, batch=BATCH
        )
        measured = _factor(truth, kind.name, (own.name, 50.0), (other.name, 50.0))
        yield 1.0 + excess_ms / alone_ms, measured


def main() -> None:
    """Print the table and write it to bench/results/partners.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=DEFAULT_SHARED)
    arguments = parser.parse_args()
    truth = load_truth()
    rows = [
        *data_rows(arguments.shared),
        *own_rows(),
        *spread_rows(truth),
        *belief_rows(truth),
    ]
    print_table(rows)
    write_results("partners", rows)


if __name__ == "__main__":
    main()
