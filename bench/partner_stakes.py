"""What is at stake in the choice of partners: plans of a large fleet by several beliefs, judged by the simulated truth.

    python -m bench.partner_stakes [--scenarios 20]

A scenario has 14 services of random networks, SLOs (98 % of the requests) and rates on one GPU type; up to three share
a GPU in equal parts, or without limits. All 469 combinations are enumerated, and a linear program takes as many GPUs of
each as it needs:

    sets        s services; p combinations of one to three of them
    parameters  λ_s rates; c_sp what a replica of s carries in p, by the capacity law at the believed execution time
    variables   x_p ≥ 0 GPUs with that combination
    objective   min Σ_p x_p
    constraints Σ_p c_sp x_p ≥ λ_s for every s

*Late*: requests sent to replicas beyond what they truly carry, if the plan is used as believed. *Corrected*: GPUs over
the oracle's after counts are raised, with the plan's own combinations, until all is in time: what their choice alone is
worth.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np
from scipy.optimize import linprog

from agents.sim.truth.curves import FloatArray
from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.truth import Truth, load_truth
from app.catalogue.catalogue import load_gpu_types
from bench.catalogue.make_catalogue import BYTES_PER_ITEM, LAUNCH_MS_PER_KERNEL
from bench.catalogue.measured import CatalogueType, read_networks, read_types
from bench.catalogue.partner_belief import BATCH, profile
from bench.catalogue.uncapped_belief import profile_uncapped
from bench.report import Figures, print_table, write_results
from solvers.laws.capacity_law import make_capacity_law
from solvers.laws.colocation import Neighbours, execution_ms
from solvers.types.problem import CapacityLaw, OperatingPoint

SERVICES, MAX_SHARERS, PERCENTILE = 14, 3, 0.98
SLO_RATIOS = (3.0, 8.0)
"""An SLO is this multiple of a batch's time on a third of the GPU; near 2 no replica could share one."""
RANDOM_COMBINATIONS = 60
WORLDS = (("V100-16GB", True), ("A100-40GB", True), ("A100-40GB", False))
"""GPU type, and whether SM limits hold: else all replicas may use the whole GPU."""

Combination = tuple[int, ...]
"""Services that share a GPU."""
Times = Callable[[RunningPart], float]
"""A believed execution time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StakeScenario:
    """Services on one GPU type."""

    seed: int
    kind: CatalogueType
    is_capped: bool
    networks: tuple[str, ...]
    slos_ms: FloatArray
    rates_rps: FloatArray

    def placed(self, combination: Combination, service: int) -> RunningPart:
        """One of the services next to the others."""
        percent = 100.0 / len(combination) if self.is_capped else 100.0
        return RunningPart(
            network=self.networks[service],
            gpu_type=self.kind.name,
            sm_percent=percent,
            batch=BATCH,
            clock_mhz=self.kind.clocks_mhz[-1],
            neighbours=tuple(
                SimulatedNeighbour(self.networks[other], percent, BATCH)
                for other in combination
                if other != service
            ),
        )


@cache
def capacity_law() -> CapacityLaw:
    """That of the one percentile and batch."""
    return make_capacity_law([PERCENTILE], [BATCH])


def draw_scenario(
    truth: Truth, kind: CatalogueType, seed: int, *, is_capped: bool
) -> StakeScenario:
    """A random one; rates are those of 2 to 20 GPUs that the service has alone."""
    random = np.random.default_rng([seed, is_capped, *kind.name.encode()])
    networks = tuple(
        str(each) for each in random.choice(truth.networks, SERVICES, replace=False)
    )
    empty = StakeScenario(
        seed=seed,
        kind=kind,
        is_capped=is_capped,
        networks=networks,
        slos_ms=np.zeros(SERVICES),
        rates_rps=np.zeros(SERVICES),
    )
    third = [
        truth.execution_ms(
            replace(empty.placed((at,), at), sm_percent=100.0 / 3.0), BATCH
        )
        for at in range(SERVICES)
    ]
    whole = [
        truth.execution_ms(empty.placed((at,), at), BATCH) for at in range(SERVICES)
    ]
    slos_ms = random.uniform(*SLO_RATIOS, SERVICES) * np.array(third)
    carried = [
        _capacity_rps(time_ms, slo_ms)
        for time_ms, slo_ms in zip(whole, slos_ms, strict=True)
    ]
    return replace(
        empty,
        slos_ms=slos_ms,
        rates_rps=random.uniform(2.0, 20.0, SERVICES) * np.array(carried),
    )


def _capacity_rps(time_ms: float, slo_ms: float) -> float:
    utilisation = capacity_law().utilisation(PERCENTILE, BATCH, slo_ms / time_ms)
    return 1000.0 * BATCH / time_ms * utilisation


def all_combinations() -> list[Combination]:
    """Every set of services that may share a GPU."""
    return [
        each
        for size in range(1, MAX_SHARERS + 1)
        for each in combinations(range(SERVICES), size)
    ]


def capacities(scenario: StakeScenario, times_ms: Times) -> FloatArray:
    """(S, P) what a replica of each service carries in each combination, 0 where it is not in it."""
    found = all_combinations()
    table = np.zeros((SERVICES, len(found)))
    for at, combination in enumerate(found):
        for service in combination:
            time_ms = times_ms(scenario.placed(combination, service))
            table[service, at] = _capacity_rps(time_ms, scenario.slos_ms[service])
    return table


def fewest_gpus(carried: FloatArray, rates_rps: FloatArray) -> FloatArray:
    """(P,) GPUs of each combination; raises ValueError where they cannot carry all rates."""
    # Scaled to the rates, so that one tolerance serves services of any size.
    answer = linprog(
        np.ones(carried.shape[1]),
        A_ub=-carried / rates_rps[:, None],
        b_ub=-np.ones(len(rates_rps)),
        method="highs",
    )
    if not answer.success:
        raise ValueError(f"no combination of GPUs carries all rates: {answer.message}")
    return np.asarray(answer.x)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stake:
    """What one belief comes to in one scenario."""

    late_percent: float
    late_percent_worst: float
    corrected_percent: float
    """GPUs over the oracle's."""


def judge(
    scenario: StakeScenario, gpus: FloatArray, believed: FloatArray, true: FloatArray
) -> Stake:
    """Judge a plan that was made with believed capacities (S, P) by the true ones."""
    rates_rps = scenario.rates_rps
    # Each replica gets its part of the rate in proportion to what it is believed to carry.
    planned = believed * gpus
    sent = planned * (rates_rps / planned.sum(axis=1))[:, None]
    late = np.maximum(sent - true * gpus, 0.0).sum(axis=1) / rates_rps
    used = gpus > 1e-9
    corrected = fewest_gpus(true[:, used], rates_rps).sum()
    oracle = fewest_gpus(true, rates_rps).sum()
    return Stake(
        late_percent=float(100.0 * np.average(late, weights=rates_rps)),
        late_percent_worst=float(100.0 * late.max()),
        corrected_percent=float(100.0 * (corrected / oracle - 1.0)),
    )


def beliefs(truth: Truth, scenario: StakeScenario) -> dict[str, Times]:
    """Execution times by what each belief knows of partners."""
    kind, is_capped = scenario.kind, scenario.is_capped
    law = profile(truth, read_networks(), kind, BYTES_PER_ITEM, is_capped=is_capped)
    kernels = {each.name: each.kernels for each in read_networks()}

    def alone(placed: RunningPart) -> float:
        return truth.execution_ms(replace(placed, neighbours=()), BATCH)

    def constant(placed: RunningPart) -> float:
        return alone(placed) * (law.mean_factor if placed.neighbours else 1.0)

    def scalars(placed: RunningPart) -> float:
        launch_ms = kernels[placed.network] * LAUNCH_MS_PER_KERNEL
        run_ms = alone(placed) - launch_ms - BATCH * BYTES_PER_ITEM / 1e7
        pressure = sum(
            law.pressure(each.network, sm_percent=each.sm_percent, batch=BATCH)
            for each in placed.neighbours
        )
        count = len(placed.neighbours) + 1
        launch = (
            law.launch.per_neighbour * count + law.launch.base if count > 1 else 0.0
        )
        return (
            alone(placed)
            + launch_ms * launch
            + run_ms * law.sensitivity(placed.network) * pressure
        )

    known: dict[str, Times] = {
        "no interference": alone,
        "one constant": constant,
        "scalars": scalars,
    }
    if is_capped:
        return known
    return {**known, "two segments": _two_segments(truth, scenario, alone)}


def _two_segments(truth: Truth, scenario: StakeScenario, alone: Times) -> Times:
    """The law of GPUs that are shared without SM limits, from pairs that were drawn for the scenario."""
    law = profile_uncapped(truth, read_networks(), scenario.kind, seed=scenario.seed)
    (gpu_type,) = (
        replace(each, overload=law.overload)
        for each in load_gpu_types([scenario.kind.name])
    )

    def believed(placed: RunningPart) -> float:
        # All that neighbours cost was put down to the run term, so that all of the time is in it.
        row = OperatingPoint(
            sm_percent=100.0,
            batch=BATCH,
            clock_mhz=placed.clock_mhz,
            transfer_ms=0.0,
            launch_ms=0.0,
            run_ms=alone(placed),
            memory_mib=0.0,
            power_w=0.0,
            pressure=law.duties[placed.network],
        )
        pressure = sum(law.duties[each.network] for each in placed.neighbours)
        return execution_ms(
            row,
            Neighbours(count=len(placed.neighbours), pressure=pressure),
            sensitivity=law.sensitivities[placed.network],
            gpu_type=gpu_type,
        )

    return believed


def stakes(truth: Truth, scenario: StakeScenario) -> Iterator[tuple[str, Stake]]:
    """What each belief comes to, and combinations that none chose."""
    true = capacities(scenario, lambda placed: truth.execution_ms(placed, BATCH))
    known = beliefs(truth, scenario)
    for name, times_ms in known.items():
        believed = capacities(scenario, times_ms)
        gpus = fewest_gpus(believed, scenario.rates_rps)
        yield name, judge(scenario, gpus, believed, true)
    sizes = np.array([len(each) for each in all_combinations()])
    random = np.random.default_rng(len(scenario.networks))
    # Only where everybody carries something: no policy would share a GPU otherwise.
    shared = np.flatnonzero((sizes > 1) & ((true > 0.0).sum(axis=0) == sizes))
    for name, usable in (
        ("one service per GPU", np.flatnonzero(sizes == 1)),
        ("random partners", random.permutation(shared)[:RANDOM_COMBINATIONS]),
    ):
        gpus = np.zeros(len(sizes))
        gpus[usable] = fewest_gpus(true[:, usable], scenario.rates_rps)
        yield name, judge(scenario, gpus, true, true)


def stake_rows(truth: Truth, scenarios: int) -> Iterator[Figures]:
    """Means over the scenarios of each world."""
    kinds = {kind.name: kind for kind in read_types()}
    for gpu_type, is_capped in WORLDS:
        found: dict[str, list[Stake]] = {}
        for seed in range(scenarios):
            scenario = draw_scenario(truth, kinds[gpu_type], seed, is_capped=is_capped)
            for name, stake in stakes(truth, scenario):
                found.setdefault(name, []).append(stake)
        for name, each in found.items():
            yield {
                "world": f"{gpu_type}, {'capped' if is_capped else 'uncapped'}",
                "belief": name,
                "late_percent": float(np.mean([one.late_percent for one in each])),
                "late_percent_worst_service": float(
                    np.mean([one.late_percent_worst for one in each])
                ),
                "corrected_percent": float(
                    np.mean([one.corrected_percent for one in each])
                ),
                "scenarios": scenarios,
            }


def main() -> None:
    """Print the table and write it to bench/results/partner_stakes.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenarios", type=int, default=20)
    rows = list(stake_rows(load_truth(), parser.parse_args().scenarios))
    print_table(rows)
    write_results("partner_stakes", rows)


if __name__ == "__main__":
    main()
