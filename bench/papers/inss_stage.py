"""Where InSS's experiments are played: eight networks on four or five small GPUs, through the production loop.

The boards of the paper, RTX 2060 Super and RTX 2060, have no public measurements: they are scaled from V100s by
published ratios (app/catalogue/SOURCES.md). Networks are iGniter's (TensorRT) where it measured them, else RaPP's
(PyTorch); MobileNetV2 stands in for EfficientNet-B0, whose host time alone (28 ms in PyTorch) is over half its SLO.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from app.base.clock import ManualControlClock
from app.catalogue.catalogue import load_actors
from app.loop.make_problem import make_problem
from app.simulate.run.build import make_cluster, shipped_catalogue
from app.simulate.run.closed_loop import make_store
from app.simulate.run.results import FailedRun, RunResult
from app.simulate.run.run import jobs_of
from app.simulate.run.runner import make_runner, simulate_all
from app.simulate.scenario.scenario import SimulationScenario
from solvers.types.problem import Problem

PERCENTILE = 0.99
LEVELS, STAY_S = 5, 60.0
LATE_PERCENT = 1.0
"""Below it an experiment counts as within its SLOs (the paper's InSS)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One of the paper's networks."""

    network: str
    slo_ms: float
    lowest_rps: float
    highest_rps: float
    """At load 1: the range of the published program's settings; of the two networks that it lacks, ours."""


WORKLOADS = {
    "alexnet": Workload(
        network="alexnet-trt", slo_ms=25.0, lowest_rps=100.0, highest_rps=500.0
    ),
    "resnet50": Workload(
        network="resnet50-trt", slo_ms=80.0, lowest_rps=100.0, highest_rps=400.0
    ),
    "vgg16": Workload(
        network="vgg16", slo_ms=150.0, lowest_rps=50.0, highest_rps=200.0
    ),
    "mnasnet": Workload(
        network="mnasnet1_0", slo_ms=50.0, lowest_rps=100.0, highest_rps=400.0
    ),
    "mobilenet": Workload(
        network="mobilenet_v3_large", slo_ms=60.0, lowest_rps=100.0, highest_rps=450.0
    ),
    "efficientnet": Workload(
        network="mobilenet_v2", slo_ms=40.0, lowest_rps=100.0, highest_rps=400.0
    ),
    "resnet18": Workload(
        network="resnet18", slo_ms=60.0, lowest_rps=100.0, highest_rps=300.0
    ),
    "vgg19": Workload(
        network="vgg19-trt", slo_ms=200.0, lowest_rps=50.0, highest_rps=150.0
    ),
}
SIX = ("alexnet", "efficientnet", "mnasnet", "mobilenet", "resnet50", "vgg16")
"""The published program's own six."""
EIGHT = tuple(sorted(WORKLOADS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Who is served by what."""

    services: tuple[str, ...] = SIX
    supers: int = 2
    plain: int = 2
    mix: int | None = None
    """Constant rates, drawn evenly from the ranges by this seed; None: rates jump between five levels of their range,
    each for a minute on average."""
    warm_up_s: float = 240.0
    """GSLICE finds its shares meanwhile."""
    counted_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What one policy came to at one load with one seed."""

    policy: str
    load: float
    seed: int
    offered_rps: float
    goodput_rps: float
    late_percent: float
    """Late or dropped, of all requests."""
    gpus: float
    """In use, on average."""

    @property
    def keeps_slos(self) -> bool:
        """Whether fewer than 1 % were late or dropped."""
        return self.late_percent < LATE_PERCENT


def scenario(
    setup: Setup, policies: Sequence[str], load: float, seeds: Sequence[int]
) -> SimulationScenario:
    """The scenario as `plimsoll simulate` would read it."""
    pools = [
        ("super", "RTX-2060-Super", setup.supers),
        ("plain", "RTX-2060", setup.plain),
    ]
    return SimulationScenario.model_validate(
        {
            "kind": "Scenario",
            "metadata": {"name": "inss"},
            "spec": {
                "duration_s": setup.warm_up_s + setup.counted_s,
                "warm_up_s": setup.warm_up_s,
                "step_s": 30,
                "seeds": list(seeds),
                "policies": [_run_of(name) for name in policies],
                "loop": {"period_s": 10, "max_replicas_per_gpu": 8, "solve_work": 0.3},
                "fleet": [
                    {
                        "name": name,
                        "gpu_type": kind,
                        "nodes": count,
                        "gpus_per_node": 1,
                        "owned": True,
                    }
                    for name, kind, count in pools
                    if count
                ],
                "services": [_service(setup, name, load) for name in setup.services],
            },
        }
    )


PROPOSALS = {"inss_actor": "actor", "inss_search": "search"}
"""InSS with one of both who propose, by the name in the tables."""
PROPOSALS_NOTE = (
    "`inss_actor` proposes by the actor alone, as the paper; `inss_search` by the greedy provisioner and the local "
    "search, which are ours; `inss` by the actor, then by the search where that falls short."
)


def _run_of(name: str) -> dict[str, object]:
    if name not in PROPOSALS:
        return {"policy": name}
    parameters = {"inss": {"proposals": PROPOSALS[name]}}
    return {"policy": "inss", "name": name, "settings": {"parameters": parameters}}


def play(
    setup: Setup,
    policies: Sequence[str],
    load: float,
    seeds: Sequence[int],
    *,
    processes: int = 1,
) -> tuple[Played, ...]:
    """Every policy with every seed at one load. Raises RuntimeError where a run fails."""
    described = scenario(setup, policies, load, seeds)
    jobs = jobs_of(described, shipped_catalogue(described), Path())
    found = []
    for outcome in simulate_all(jobs, make_runner(processes)):
        if isinstance(outcome, FailedRun):
            raise RuntimeError(
                f"{outcome.policy}, seed {outcome.seed}: {outcome.reason}"
            )
        found.append(_played(outcome, load, setup.counted_s))
    return tuple(found)


@cache
def problem(setup: Setup, load: float) -> Problem:
    """What the loop would ask a policy at that load."""
    described = scenario(setup, ("inss",), load, (0,))
    plan = make_cluster(
        described,
        described.spec.policies[0],
        0,
        catalogue=shipped_catalogue(described),
        folder=Path(),
    )
    clock = ManualControlClock()
    snapshot = asyncio.run(make_store(plan, clock).load_snapshot(clock.now()))
    asked = make_problem(
        snapshot.state, snapshot.points, (), snapshot.settings, target=None
    )
    services = tuple(
        replace(service, arrival_rate_rps=rate_rps(setup, service.name) * load)
        for service in asked.services
    )
    return replace(asked, services=services)


@cache
def shipped_actor() -> bytes:
    """The actor that ships; there is one, for four of the boards."""
    (weights,) = load_actors().values()
    return weights


def rate_rps(setup: Setup, name: str) -> float:
    """The constant rate of a service at load 1."""
    workload = WORKLOADS[name]
    draw = random.Random(f"{setup.mix}/{name}").random()
    return workload.lowest_rps + draw * (workload.highest_rps - workload.lowest_rps)


def _load(setup: Setup, name: str, load: float) -> dict[str, object]:
    if setup.mix is not None:
        return {"rate_rps": load * rate_rps(setup, name)}
    workload = WORKLOADS[name]
    step_rps = (workload.highest_rps - workload.lowest_rps) / (LEVELS - 1)
    levels = [
        load * (workload.lowest_rps + step_rps * level) for level in range(LEVELS)
    ]
    return {"levels": {"rates_rps": levels, "mean_stays_s": [STAY_S] * LEVELS}}


def _service(setup: Setup, name: str, load: float) -> dict[str, object]:
    workload = WORKLOADS[name]
    return {
        "name": name,
        "network": workload.network,
        "slo": {"latency_ms": workload.slo_ms, "percentile": PERCENTILE},
        "load": _load(setup, name, load),
    }


def _played(run: RunResult, load: float, seconds: float) -> Played:
    judged = sum(each.judged for each in run.services)
    in_slo = sum(each.in_slo for each in run.services)
    return Played(
        policy=run.policy,
        load=load,
        seed=run.seed,
        offered_rps=sum(each.arrived for each in run.services) / seconds,
        goodput_rps=in_slo / seconds,
        late_percent=100.0 * (1.0 - in_slo / judged) if judged else 100.0,
        gpus=sum(run.gpu_hours.values()) * 3600.0 / seconds,
    )
