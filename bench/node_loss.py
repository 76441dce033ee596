"""The loss of a node: the share of requests that are late in the minute after it, by what services must survive.

    python -m bench node_loss

bench/scenarios/node_loss.yaml with one node lost every two minutes at moments and nodes drawn by the seed, each for 80
seconds; the control plane learns of it by the agent's silence. The simulator's load balancer stops sending to a lost
node at once, and what was there is lost. A loss counts for the services of which it took a replica. Prints a table and
writes bench/results/node_loss.json.
"""

import argparse
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from app.cli.simulation.scenario_files import read_scenario
from app.simulate.run.results import RunResult, ServiceSeries
from app.simulate.scenario.parts import FaultSpec
from app.simulate.scenario.scenario import SimulationScenario
from bench.compare import simulated
from bench.report import print_table, write_results

SCENARIO = Path(__file__).parent / "scenarios" / "node_loss.yaml"
EVERY_S, LASTS_S = 120, 80
WATCHED_S = 60
"""How long after a loss requests are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What every service must survive."""

    name: str
    survive: str | None = None
    """None: as the policy's default says."""
    share: float | None = None


CASES = (
    Wanted(name="none", survive="none"),
    Wanted(name="default"),
    Wanted(name="node, 50 %", survive="node", share=0.5),
    Wanted(name="node, 100 %", survive="node", share=1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A service that lost replicas."""

    service: str
    lost: int
    """Replicas; at least 1."""
    of: int
    late_percent: float
    """Of the requests that arrived in the next minute; above 100 where others waited already."""


def with_losses(scenario: SimulationScenario, seed: int) -> SimulationScenario:
    """The scenario with one seed, and the losses that this seed draws."""
    spec = scenario.spec
    nodes = [
        f"{pool.name}-{number}"
        for pool in spec.fleet
        for number in range(1, pool.nodes + 1)
    ]
    drawn = random.Random(seed)
    last_s = round(spec.duration_s) - EVERY_S
    moments = [
        start_s + drawn.randrange(0, EVERY_S - LASTS_S, round(spec.step_s))
        for start_s in range(round(spec.warm_up_s) + EVERY_S, last_s, EVERY_S)
    ]
    # Every node once before any comes again, since an idle one takes nothing with it.
    order = [node for _ in moments for node in drawn.sample(nodes, len(nodes))]
    faults = [
        FaultSpec(kind="node_lost", node=node, start_s=at_s, end_s=at_s + LASTS_S)
        for at_s, node in zip(moments, order, strict=False)
    ]
    changed = spec.model_copy(update={"faults": faults, "seeds": [seed]})
    return scenario.model_copy(update={"spec": changed})


def asking(scenario: SimulationScenario, wanted: Wanted) -> SimulationScenario:
    """The scenario whose services must survive so much."""
    services = [
        service.model_copy(
            update={"survive": wanted.survive, "survive_share": wanted.share}
        )
        for service in scenario.spec.services
    ]
    spec = scenario.spec.model_copy(update={"services": services})
    return scenario.model_copy(update={"spec": spec})


def hits(
    run: RunResult, faults: Sequence[FaultSpec], warm_up_s: float
) -> Iterator[Hit]:
    """The services that each loss hit, and what became of their requests. A loss comes at the beginning of a step."""
    for fault in faults:
        at = round((fault.start_s - warm_up_s) / run.series.step_s)
        for name, series in run.series.services.items():
            before, after = series.replicas[at - 1], series.replicas[at]
            if after < before:
                yield Hit(
                    service=name,
                    lost=before - after,
                    of=before,
                    late_percent=_late_percent(series, at, run.series.step_s),
                )


def _late_percent(series: ServiceSeries, at: int, step_s: float) -> float:
    watched = slice(at, at + round(WATCHED_S / step_s))
    arrived = step_s * sum(series.arrival_rate_rps[watched])
    return 100.0 * sum(series.missed[watched]) / arrived


def measure(scenario: SimulationScenario, jobs: int) -> list[dict[str, object]]:
    """One row per policy and case, over all seeds."""
    rows: list[dict[str, object]] = []
    for wanted in CASES:
        found: dict[str, list[Hit]] = {}
        usd: dict[str, list[float]] = {}
        for seed in scenario.spec.seeds:
            asked = with_losses(asking(scenario, wanted), seed)
            report, _ = simulated(asked, jobs)
            for run in report.runs:
                own = hits(run, asked.spec.faults, asked.spec.warm_up_s)
                found.setdefault(run.policy, []).extend(own)
                usd.setdefault(run.policy, []).append(run.cost_usd)
        rows += [
            _row(wanted, policy, found[policy], fmean(usd[policy])) for policy in found
        ]
    return rows


def _row(
    wanted: Wanted, policy: str, found: Sequence[Hit], usd: float
) -> dict[str, object]:
    several = [hit.late_percent for hit in found if hit.of > 1]
    single = [hit.late_percent for hit in found if hit.of == 1]
    return {
        "policy": policy,
        "survive": wanted.name,
        "hits_several": len(several),
        "late_several_percent": fmean(several) if several else None,
        "worst_several_percent": max(several, default=None),
        "hits_single": len(single),
        "late_single_percent": fmean(single) if single else None,
        "worst_single_percent": max(single, default=None),
        "usd": usd,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all cases, print the table and write the JSON."""
    parser = argparse.ArgumentParser(prog="bench node_loss", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--seeds", type=int, nargs="*", help="in place of the scenario's"
    )
    asked = parser.parse_args(arguments)
    scenario = read_scenario(SCENARIO)
    if asked.seeds:
        spec = scenario.spec.model_copy(update={"seeds": asked.seeds})
        scenario = scenario.model_copy(update={"spec": spec})
    rows = measure(scenario, asked.jobs)
    print_table(rows)
    write_results("node_loss", rows)


if __name__ == "__main__":
    main()
