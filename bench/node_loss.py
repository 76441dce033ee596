"""What the loss of a node costs: the share of requests that are late or lost in the 60 s after it.

    python -m bench.node_loss --seeds 4

Eight services on twelve GPUs of six nodes (bench/node_loss.yaml), simulated with the production loop. At
five moments of every seed the node with the highest planned rate is lost, and returns empty within 100 s. A service is
hit when it had a ready replica on that node; `several` and `one` say how many it had on all nodes. Late are requests
that missed the SLO's latency, were rejected or lost, or waited at the end of the 60 s though they were late. All of it
once for each thing that services may ask to survive. Prints a row for each of them, policy and kind of service; writes
bench/results/node_loss.json, and one row for each service and loss to node_loss_services.json.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from app.cli.simulation.scenario_files import read_scenario
from app.simulate.run.build import shipped_catalogue
from app.simulate.run.results import (
    FailedRun,
    LossImpact,
    NodeLossResult,
    RunResult,
)
from app.simulate.run.run import SimulationRun, jobs_of
from app.simulate.run.runner import make_runner, simulate_all
from app.simulate.scenario.scenario import SimulationScenario, with_policies
from bench.report import Figures, print_table, write_results

SCENARIO = Path(__file__).with_suffix(".yaml")
LOSSES = 5
"""In each run."""
FIRST_S, APART_S = 90.0, 180.0
"""When the first loss may come at the earliest, and how far apart two of them are on average."""
SPREAD_S = 60.0
"""Moments are drawn from so long: a minute of judging and the return of the node are over before the next loss."""
AWAY_S = (60.0, 100.0)
"""A node is away for so long, drawn evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What services ask to survive."""

    name: str
    survive: str | None
    """None: nothing of their own, so that the policy's default holds."""
    share: float | None = None
    """None: as who states none, all of the forecast where the service asks, the policy's share where it does not."""


ASKED = (
    Asked(name="nothing", survive="none"),
    Asked(name="default", survive=None),
    Asked(name="node, 50 %", survive="node", share=0.5),
    Asked(name="node", survive="node"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceHit:
    """A service that had replicas on a node when that was lost."""

    run: RunResult
    loss: NodeLossResult
    impact: LossImpact

    @property
    def had(self) -> str:
        """How many replicas the service had on all nodes."""
        return "several" if self.impact.replicas > 1 else "one"


def losses_of(seed: int) -> list[dict[str, Any]]:
    """The faults of a seed, as they stand in a scenario."""
    draw = Random(seed)
    faults = []
    for place in range(LOSSES):
        start_s = FIRST_S + APART_S * place + draw.uniform(0.0, SPREAD_S)
        end_s = start_s + draw.uniform(*AWAY_S)
        faults.append(
            {
                "kind": "node_lost",
                "node": "busiest",
                "start_s": round(start_s, 2),
                "end_s": round(end_s, 2),
            }
        )
    return faults


def jobs(
    scenario: SimulationScenario, seeds: int, asked: Asked = ASKED[1]
) -> tuple[SimulationRun, ...]:
    """Every policy with `seeds` seeds, each with its own losses."""
    catalogue = shipped_catalogue(scenario)
    document = scenario.model_dump(mode="json")
    services = [
        {**service, "survive": asked.survive, "survive_share": asked.share}
        for service in document["spec"]["services"]
    ]
    wanted: list[SimulationRun] = []
    for seed in range(1, seeds + 1):
        spec = {**document["spec"], "seeds": [seed], "faults": losses_of(seed)}
        spec["services"] = services
        mine = SimulationScenario.model_validate({**document, "spec": spec})
        wanted.extend(jobs_of(mine, catalogue, SCENARIO.parent))
    return tuple(wanted)


def hits_in(runs: Sequence[RunResult]) -> list[ServiceHit]:
    """Every service that a loss hit and of which requests were judged."""
    return [
        ServiceHit(run=run, loss=loss, impact=impact)
        for run in runs
        for loss in run.node_losses
        for impact in loss.services
        if impact.replicas_lost > 0 and impact.late is not None
    ]


def rows_of(runs: Sequence[RunResult]) -> Iterator[Figures]:
    """A row for all services, and one for those of each kind, of every policy."""
    for policy in dict.fromkeys(run.policy for run in runs):
        mine = [run for run in runs if run.policy == policy]
        losses = [loss for run in mine for loss in run.node_losses]
        shares = [loss.late for loss in losses if loss.late is not None]
        worst = [loss.worst for loss in losses if loss.worst is not None]
        hits = hits_in(mine)
        usd_per_hour = fmean(3600.0 * run.cost_usd / run.counted_s for run in mine)
        yield {
            **_row(policy, "all", shares, worst=max(worst, default=None)),
            "usd_per_hour": usd_per_hour,
        }
        for kind in ("several", "one"):
            late = [each.impact.late or 0.0 for each in hits if each.had == kind]
            yield {
                **_row(policy, kind, late, worst=max(late, default=None)),
                "usd_per_hour": None,
            }


def _row(
    policy: str, kind: str, shares: Sequence[float], *, worst: float | None
) -> Figures:
    """`all`: a share is of a loss, over all services; else of a service that a loss hit."""
    return {
        "policy": policy,
        "replicas": kind,
        "cases": len(shares),
        "late_percent_mean": 100.0 * fmean(shares) if shares else None,
        "late_percent_worst_service": None if worst is None else 100.0 * worst,
    }


def service_rows(runs: Sequence[RunResult]) -> list[Figures]:
    """One for each service that a loss hit."""
    return [
        {
            "policy": each.run.policy,
            "seed": each.run.seed,
            "at_s": each.loss.at_s,
            "node": each.loss.node,
            "service": each.impact.service,
            "replicas": each.impact.replicas,
            "replicas_lost": each.impact.replicas_lost,
            "judged": each.impact.judged,
            "late_percent": 100.0 * (each.impact.late or 0.0),
        }
        for each in hits_in(runs)
    ]


def main() -> int:
    """Simulate, print, write; 1 where a run failed."""
    options = _options()
    scenario = read_scenario(options.scenario)
    if options.policies:
        scenario = with_policies(scenario, options.policies)
    rows: list[Figures] = []
    by_service: list[Figures] = []
    failed: list[FailedRun] = []
    for asked in ASKED:
        todo = jobs(scenario, options.seeds, asked)
        outcomes = simulate_all(todo, make_runner(options.jobs))
        runs = [each for each in outcomes if isinstance(each, RunResult)]
        failed += [each for each in outcomes if isinstance(each, FailedRun)]
        rows += [{"survive": asked.name, **row} for row in rows_of(runs)]
        by_service += [{"survive": asked.name, **row} for row in service_rows(runs)]
    print_table(rows)
    for each in failed:
        print(each, file=sys.stderr)
    settings: Figures = {"seeds": options.seeds, "failed": len(failed)}
    write_results("node_loss", rows, settings=settings)
    write_results("node_loss_services", by_service, settings=settings)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.node_loss",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seeds", type=int, default=4, help="five losses each (default: %(default)s)"
    )
    parser.add_argument(
        "--policies", nargs="*", help="in place of the scenario's own (hetsev, joint)"
    )
    parser.add_argument(
        "--scenario", type=Path, default=SCENARIO, help="another one than the bench's"
    )
    parser.add_argument(
        "-j",
        "--jobs",
        type=int,
        default=1,
        help="runs at a time (default: %(default)s)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
