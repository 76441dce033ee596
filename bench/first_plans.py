"""What first plans cost where services come one after the other, as `plimsoll apply` sends them, next to the best plan.

Run: `python -m bench.first_plans`. Prints a table and writes bench/results/first_plans.json.

Policy `joint` at the loop's settings, a second of its clock between two plans, by work alone: the table does not depend
on the machine. The best plan is that of a search with ten times the work. Each workload comes in four ways: all
services at once, one by one, all others after the first, and all of them idle before their load begins.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

from app.catalogue.catalogue import load_gpu_types, load_profiles
from bench.report import Figures, print_table, write_results
from solvers.joint.policy import make_plan
from solvers.laws.capacity_law import make_capacity_law
from solvers.types.outcome import TICK, Budget, Stability
from solvers.types.problem import Problem, ServiceDemand
from solvers.types.state import Json, Observed

FLEETS: tuple[Mapping[str, int], ...] = (
    {"T4": 2, "V100-32GB": 2},
    {"T4": 8, "V100-32GB": 8},
    {"T4": 4, "L4": 4, "A100-40GB": 4},
    {"H100": 8, "A10G": 8, "T4": 8},
)
"""The first is that of `plimsoll up`."""
NETWORKS = (
    "resnet50",
    "vgg16",
    "densenet121",
    "mobilenet_v2",
    "inception_v3",
    "resnet18",
    "efficientnet_b4",
    "convnext_small",
)
SLO_MS, PERCENTILE = 400.0, 0.98
WORK = 0.2
"""Of a tick's search: at the loop's own 1.0 the table takes five times as long, and says the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Services of alternating networks; each second one has half as much load again."""

    services: int
    rate_rps: float

    def demands(self) -> tuple[ServiceDemand, ...]:
        """Its services."""
        networks = islice(cycle(NETWORKS), self.services)
        return tuple(
            ServiceDemand(
                name=f"s{number:02}",
                network=network,
                slo_ms=SLO_MS,
                percentile=PERCENTILE,
                arrival_rate_rps=self.rate_rps * (1.0 + number % 2 / 2.0),
                min_replicas=1,
            )
            for number, network in enumerate(networks)
        )


WORKLOADS = (
    Workload(services=3, rate_rps=0.0),
    Workload(services=8, rate_rps=0.0),
    Workload(services=5, rate_rps=20.0),
    Workload(services=8, rate_rps=60.0),
)


def a_problem(fleet: Mapping[str, int], services: Sequence[ServiceDemand]) -> Problem:
    """These services on that fleet, of which nothing runs."""
    points = load_profiles(sorted({one.network for one in services}), list(fleet))
    gpu_types = load_gpu_types(list(fleet))
    batches = sorted({row.batch for entry in points for row in entry.rows})
    return Problem(
        objective="min_cost",
        energy_price_usd_per_kwh=0.0,
        max_replicas_per_gpu=4,
        capacity_law=make_capacity_law([PERCENTILE], batches),
        gpu_types=tuple(replace(one, count=fleet[one.name]) for one in gpu_types),
        services=tuple(services),
        points=tuple(sorted(points, key=lambda one: (one.network, one.gpu_type))),
        current=None,
    )


def cost_after(problems: Sequence[Problem]) -> float:
    """USD per hour of the last plan, each made from the one before, a second later."""
    memory: Json = None
    current = None
    cost = 0.0
    budget = Budget(
        seconds=float("inf"), work=WORK, stability=TICK.stability, is_series=True
    )
    for at_s, problem in enumerate(problems):
        asked = replace(problem, current=current)
        current, report, memory = make_plan(
            asked, Observed(at_s=float(at_s)), memory, budget
        )
        cost = report.cost_usd_per_hour
    return cost


def courses(
    fleet: Mapping[str, int], workload: Workload
) -> Mapping[str, Sequence[Problem]]:
    """By name, the problems of one tick after the other, which end with the entire workload."""
    services = workload.demands()
    idle = [replace(one, arrival_rate_rps=0.0) for one in services]
    entire = a_problem(fleet, services)
    first = a_problem(fleet, services[:1])
    growing = [
        a_problem(fleet, services[: count + 1]) for count in range(len(services))
    ]
    return {
        "at_once": [entire],
        "one_by_one": growing,
        "first_then_all": [first, entire],
        "idle_then_load": [a_problem(fleet, idle), entire, entire],
    }


def measure() -> Iterator[Figures]:
    """A row per fleet and workload: the best cost, and how many times as much each course comes to."""
    for fleet in FLEETS:
        for workload in WORKLOADS:
            budget = Budget(
                seconds=float("inf"), work=10.0 * WORK, stability=Stability()
            )
            entire = a_problem(fleet, workload.demands())
            _, report, _ = make_plan(entire, Observed(at_s=0.0), None, budget)
            best = report.cost_usd_per_hour
            yield {
                "fleet": ", ".join(f"{count} {name}" for name, count in fleet.items()),
                "services": workload.services,
                "rate_rps": workload.rate_rps,
                "best_usd": best,
                **{
                    name: cost_after(problems) / best
                    for name, problems in courses(fleet, workload).items()
                },
            }


def main() -> None:
    """Print the table, write the JSON."""
    rows = list(measure())
    print("Cost of first plans, times the best plan's")
    print_table(rows)
    write_results("first_plans", rows)


if __name__ == "__main__":
    main()
