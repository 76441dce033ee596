"""What is at stake in where training tasks go: matchings by several beliefs, judged by the simulated truth.

    python -m bench.task_stakes [--scenarios 20]

A scenario has 24 services, one on each of 24 GPUs, and 24 training tasks. A task takes the entire GPU without limits,
or half or 30 % of its SMs, and the service has the rest. A service is *broken* where its task leaves it less than its
rate at its SLO, by the capacity law with the true time of a batch and an SLO that is shorter by the true stall; a task
is placed *without harm* where its service is not broken.

    sets        s services, each with a GPU; t tasks
    parameters  c_st what the service carries next to the task, by belief; λ_s its rate
    variables   x_st 0 or 1: the task goes to that GPU
    objective   max Σ x_st · (1 + a hundredth of the room c_st / λ_s − 1, at most 1) over pairs with c_st ≥ λ_s
    constraints at most one task per GPU, one GPU per task

Beliefs are read next to one service drawn for each network: the factor as a ratio of mean times of a batch, the stall
as what the 99th percentile gains beyond that factor.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.optimize import linear_sum_assignment

from agents.sim.pace import draw_noise, draw_stalls
from agents.sim.truth.curves import FloatArray
from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.truth import Truth, load_truth
from bench.catalogue.measured import CatalogueType, read_types
from bench.catalogue.partner_belief import BATCH
from bench.report import Figures, print_table, write_results
from solvers.laws.capacity_law import make_capacity_law
from solvers.types.problem import CapacityLaw

GPU_TYPE, COUNT, PERCENTILE = "A100-40GB", 24, 0.99
TASK_SHARES = (100.0, 50.0, 30.0)
"""SM percents of the task; at 100 none has a limit."""
SLO_RATIOS = (3.0, 8.0)
"""An SLO is this multiple of a batch's time on half of the GPU, alone."""
LOADS = (0.2, 0.7)
"""A rate is such a part of what the service carries on half of the GPU, alone."""
_ROOM_WEIGHT = 0.01
"""Of all matchings with equally many pairs the roomiest: far below a pair."""

Cost = tuple[float, float]
"""What a task costs a service: factor on the time of a batch, and stall in ms at the 99th percentile."""
Costs = Mapping[str, Cost]
"""By training network."""


@dataclass(frozen=True, kw_only=True)
class TaskScenario:
    """Services and tasks on GPUs of one type."""

    truth: Truth
    kind: CatalogueType
    task_share: float
    services: tuple[str, ...]
    """Their networks."""
    tasks: tuple[str, ...]
    law: CapacityLaw
    slos_ms: FloatArray
    rates_rps: FloatArray

    def beside(self, service: str, task: str | None) -> RunningPart:
        """A replica of that network next to a task of that one, or with that share alone."""
        is_capped = self.task_share < 100.0
        neighbours = () if task is None else (self._task(task),)
        return RunningPart(
            network=service,
            gpu_type=self.kind.name,
            sm_percent=100.0 - self.task_share if is_capped else 100.0,
            batch=BATCH,
            clock_mhz=self.kind.clocks_mhz[-1],
            neighbours=neighbours,
        )

    def _task(self, network: str) -> SimulatedNeighbour:
        return SimulatedNeighbour(
            network, self.task_share, self.truth.max_batch(network)
        )

    @cached_property
    def alone_ms(self) -> FloatArray:
        """(S,) the time of a batch of each service with its share, alone."""
        parts = (self.beside(service, None) for service in self.services)
        return np.array([self.truth.execution_ms(part, BATCH) for part in parts])

    @cached_property
    def true_costs(self) -> list[list[Cost]]:
        """(S, T)"""
        return [
            [
                self._true_cost(self.beside(service, task), alone_ms)
                for task in self.tasks
            ]
            for service, alone_ms in zip(self.services, self.alone_ms, strict=True)
        ]

    def _true_cost(self, part: RunningPart, alone_ms: float) -> Cost:
        # Two of a hundred batches stall, by an exponential: the mean times ln 2 is passed by one of a hundred.
        stall_ms = self.truth.stall_ms(part) * np.log(2.0)
        return self.truth.execution_ms(part, BATCH) / alone_ms, float(stall_ms)

    def room(self, costs: list[list[Cost]]) -> FloatArray:
        """(S, T) what a service carries next to a task over its rate, at those costs."""
        return np.array(
            [
                [self._room(at, factor, stall_ms) for factor, stall_ms in of_service]
                for at, of_service in enumerate(costs)
            ]
        )

    def _room(self, at: int, factor: float, stall_ms: float) -> float:
        time_ms = factor * self.alone_ms[at]
        ratio = (self.slos_ms[at] - stall_ms) / time_ms
        utilisation = self.law.utilisation(PERCENTILE, BATCH, ratio)
        return float(1000.0 * BATCH / time_ms * utilisation / self.rates_rps[at])


def draw_task_scenario(truth: Truth, seed: int, task_share: float) -> TaskScenario:
    """A random one: the same services, SLOs, rates and tasks for every share."""
    random = np.random.default_rng(seed)
    kinds = {kind.name: kind for kind in read_types()}
    empty = TaskScenario(
        truth=truth,
        kind=kinds[GPU_TYPE],
        task_share=task_share,
        services=tuple(map(str, random.choice(truth.networks, COUNT))),
        tasks=tuple(map(str, random.choice(truth.training_networks, COUNT))),
        law=make_capacity_law([PERCENTILE], [BATCH]),
        slos_ms=np.zeros(COUNT),
        rates_rps=np.ones(COUNT),
    )
    on_half = replace(empty, task_share=50.0)
    slos_ms = random.uniform(*SLO_RATIOS, COUNT) * on_half.alone_ms
    carried = replace(on_half, slos_ms=slos_ms).room([[(1.0, 0.0)]] * COUNT)[:, 0]
    return replace(
        empty, slos_ms=slos_ms, rates_rps=random.uniform(*LOADS, COUNT) * carried
    )


def read_costs(scenario: TaskScenario, random: np.random.Generator) -> Costs:
    """What each training network costs, as read from some thousand batches next to one service and alone."""
    found = {}
    for task in scenario.truth.training_networks:
        service = str(random.choice(scenario.truth.networks))
        alone_ms = _read_batches(scenario, scenario.beside(service, None), random)
        beside_ms = _read_batches(scenario, scenario.beside(service, task), random)
        factor = beside_ms.mean() / alone_ms.mean()
        p99_alone, p99_beside = (
            np.quantile(each, 0.99) for each in (alone_ms, beside_ms)
        )
        found[task] = float(factor), max(0.0, float(p99_beside - factor * p99_alone))
    return found


def _read_batches(
    scenario: TaskScenario, part: RunningPart, random: np.random.Generator
) -> FloatArray:
    truth = scenario.truth
    noise = draw_noise(random, truth.noise_cv(part.network))
    return truth.execution_ms(part, BATCH) * noise + truth.stall_ms(part) * draw_stalls(
        random
    )


def beliefs(costs: Costs) -> dict[str, Costs]:
    """What is believed, from the least to all of what was read."""
    mean = float(np.mean([factor for factor, _ in costs.values()]))
    return {
        "one factor for all": dict.fromkeys(costs, (mean, 0.0)),
        "factor by task": {task: (factor, 0.0) for task, (factor, _) in costs.items()},
        "factor and stall by task": costs,
    }


def match(room: FloatArray) -> list[tuple[int, int]]:
    """Pairs of service and task with room, as many as possible, the roomiest of these."""
    weights = np.where(
        room >= 1.0, 1.0 + _ROOM_WEIGHT * np.minimum(room - 1.0, 1.0), 0.0
    )
    pairs = zip(*linear_sum_assignment(weights, maximize=True), strict=True)
    return [
        (int(service), int(task)) for service, task in pairs if weights[service, task]
    ]


def placements(
    scenario: TaskScenario, seed: int
) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Who goes where by each belief."""
    random = np.random.default_rng([seed, 1])
    yield "random", list(enumerate(map(int, random.permutation(COUNT))))
    for name, costs in beliefs(read_costs(scenario, random)).items():
        believed = [[costs[task] for task in scenario.tasks]] * COUNT
        yield name, match(scenario.room(believed))
    yield "oracle", match(scenario.room(scenario.true_costs))


def task_rows(truth: Truth, scenarios: int) -> Iterator[Figures]:
    """Means over the scenarios, by the tasks' share and by belief."""
    for share in TASK_SHARES:
        found: dict[str, list[tuple[int, int]]] = {}
        for seed in range(scenarios):
            scenario = draw_task_scenario(truth, seed, share)
            is_kept = scenario.room(scenario.true_costs) >= 1.0
            for name, pairs in placements(scenario, seed):
                kept = sum(bool(is_kept[pair]) for pair in pairs)
                found.setdefault(name, []).append((kept, len(pairs) - kept))
        oracle = sum(kept for kept, _ in found["oracle"])
        for name, each in found.items():
            kept, broken = np.mean(each, axis=0)
            yield {
                "task_sm_percent": share,
                "belief": name,
                "placed_without_harm": float(kept),
                "broken_services": float(broken),
                "percent_of_oracle": 100.0 * float(kept) * scenarios / oracle,
                "scenarios": scenarios,
            }


def main() -> None:
    """Print the table and write it to bench/results/task_stakes.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenarios", type=int, default=20)
    rows = list(task_rows(load_truth(), parser.parse_args().scenarios))
    print_table(rows)
    write_results("task_stakes", rows)


if __name__ == "__main__":
    main()
