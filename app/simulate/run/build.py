"""From a scenario to a cluster that can run: one policy, one seed."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from agents.sim.cluster import ClusterScript as Course
from agents.sim.load import arrivals
from agents.sim.load.clients import ClientLoad
from agents.sim.load.rates import Shape
from agents.sim.pace import SimulatedWorld
from agents.sim.spec import Fault, GpuSpec, SimulatedNodeSpec
from agents.sim.truth.truth import load_truth
from app.base.errors import InvalidRequest
from app.catalogue.catalogue import list_networks, load_gpu_types, load_profiles
from app.manifests import objects as manifests
from app.manifests.to_types import to_service, to_settings
from app.simulate.run.closed_loop import ClusterPlan
from app.simulate.run.model_services import (
    EngineOf,
    measured_engine,
    model_services,
)
from app.simulate.run.planned_world import PlannedWorld, planned_engine
from app.simulate.scenario.load import ServiceLoad
from app.simulate.scenario.parts import FaultSpec, NodePool, PolicyRun, SimulatedService
from app.simulate.scenario.scenario import SimulationScenario, loop_of
from app.simulate.scenario.tasks import works_of
from app.simulate.scenario.trace_shapes import trace_shape
from solvers.types.problem import OperatingPoints
from solvers.types.state import GpuType

MAX_RPS = 1e6
"""The maximum of a service: requests are drawn ten seconds at a time, and ten million of them take 80 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """What the planner knows of the GPU types and networks of a scenario."""

    gpu_types: tuple[GpuType, ...]
    points: tuple[OperatingPoints, ...]


def shipped_catalogue(scenario: SimulationScenario) -> Catalogue:
    """What the shipped catalogue has of what the scenario names. Raises CatalogueError for what it has not."""
    # Only what is named: the catalogue has tens of thousands of points that nothing here can use.
    gpu_types = sorted({pool.gpu_type for pool in scenario.spec.fleet})
    works = works_of(scenario.spec)
    services = scenario.spec.services
    served = {
        name
        for each in services
        if each.kind == "inference"
        for name in (each.network, *(one.network for one in each.variants))
    }
    networks = sorted(served | {work.network for _, work, _ in works})
    return Catalogue(
        gpu_types=load_gpu_types(gpu_types),
        points=load_profiles(networks, gpu_types),
    )


def make_world(scenario: SimulationScenario, catalogue: Catalogue) -> SimulatedWorld:
    """The truth that the scenario asks for."""
    if scenario.spec.truth == "measured":
        return load_truth()
    return PlannedWorld(
        catalogue.gpu_types, catalogue.points, training=list_networks("training")
    )


def make_cluster(
    scenario: SimulationScenario,
    run: PolicyRun,
    seed: int,
    *,
    catalogue: Catalogue,
    folder: Path,
) -> ClusterPlan:
    """The cluster under one policy; `folder`: where the scenario's traces are looked for.

    Raises InvalidRequest for a trace that cannot be read, or has nothing where it is to begin, and for too much load.
    """
    spec = scenario.spec
    types = {gpu_type.name: gpu_type for gpu_type in catalogue.gpu_types}
    settings = to_settings(
        manifests.PolicyManifest(metadata=scenario.metadata, spec=loop_of(spec, run))
    )
    return ClusterPlan(
        nodes=tuple(
            node
            for pool in spec.fleet
            for node in _nodes(pool, types[pool.gpu_type], run.launch_s)
        ),
        gpu_types=_paid_types(catalogue.gpu_types, spec.fleet),
        points=catalogue.points,
        services=tuple(to_service(_manifest(service)) for service in spec.services),
        scenario=_course(scenario, seed, folder, _engines(scenario, catalogue)),
        settings=settings,
        agent_period_s=spec.agent_period_s,
        handover_s=spec.handover_s,
    )


def _paid_types(
    gpu_types: Iterable[GpuType], fleet: Iterable[NodePool]
) -> tuple[GpuType, ...]:
    paid = Counter[str]()
    for pool in fleet:
        paid[pool.gpu_type] += pool.owned * pool.nodes * pool.gpus_per_node
    return tuple(replace(one, paid_count=paid[one.name]) for one in gpu_types)


def _nodes(
    pool: NodePool,
    gpu_type: GpuType,
    launch_s: float | None,
) -> list[SimulatedNodeSpec]:
    gpu = GpuSpec(
        gpu_type=gpu_type.name,
        memory_mib=gpu_type.memory_mib,
        max_clock_mhz=gpu_type.clocks_mhz[-1],
    )
    return [
        SimulatedNodeSpec(
            name=f"{pool.name}-{number}",
            gpus=(gpu,) * pool.gpus_per_node,
            launch_s=pool.launch_s if launch_s is None else launch_s,
        )
        for number in range(1, pool.nodes + 1)
    ]


def _manifest(service: SimulatedService) -> manifests.ServiceManifest:
    spec = {name: getattr(service, name) for name in manifests.ServiceSpec.model_fields}
    metadata = manifests.Metadata(
        name=service.name,
        project=service.project,
        labels=service.labels,
    )
    return manifests.ServiceManifest(
        metadata=metadata,
        spec=manifests.ServiceSpec(**spec),
    )


def _engines(scenario: SimulationScenario, catalogue: Catalogue) -> EngineOf:
    """How engines of language models are made, by the truth that the scenario asks for."""
    if scenario.spec.truth == "measured":
        return measured_engine
    return partial(planned_engine, catalogue.gpu_types)


def _course(
    scenario: SimulationScenario, seed: int, folder: Path, engines: EngineOf
) -> Course:
    # Rates are drawn second by second, so the last second is begun even where the run ends within it.
    duration_s = math.ceil(scenario.spec.duration_s)
    services = {service.name: service.load for service in scenario.spec.services}
    # Streams are numbered by name: the same seed gives a service the same requests under every policy, and in
    # whatever order the scenario lists the services.
    return Course(
        loads={
            name: _checked(
                name,
                arrivals.ArrivalProcess(
                    shape=_shape(entry, folder),
                    duration_s=duration_s,
                    seed=seed,
                    stream=stream,
                    is_even=entry.even,
                ),
            )
            for stream, (name, entry) in enumerate(sorted(services.items()))
            if entry.clients is None
        },
        clients={
            name: _clients(entry, duration_s)
            for name, entry in services.items()
            if entry.clients is not None
        },
        models=model_services(scenario.spec.services, folder, engines),
        seed=seed,
        faults=tuple(_fault(fault) for fault in scenario.spec.faults),
    )


def _checked(service: str, source: arrivals.ArrivalProcess) -> arrivals.ArrivalProcess:
    """The same load. Raises InvalidRequest where it is too much to simulate."""
    # The peak, and not the mean: requests of a few seconds are in memory at a time.
    peak_rps = float(source.rates.rates_rps.max(initial=0.0))
    if peak_rps > MAX_RPS:
        raise InvalidRequest(
            f"service {service} gets up to {peak_rps:,.0f} requests per second; at most {MAX_RPS:,.0f} can be"
        )
    return source


def _shape(entry: ServiceLoad, folder: Path) -> Shape:
    """How the rate goes. Raises InvalidRequest for a trace that cannot be read or begun there."""
    if entry.trace is not None:
        return trace_shape(entry.trace, folder)
    if entry.levels is not None:
        return arrivals.Modulation(
            levels_rps=tuple(entry.levels.rates_rps),
            mean_stays_s=tuple(entry.levels.mean_stays_s),
        )
    day = entry.day.model_dump() if entry.day else {}
    return arrivals.LoadShape(
        mean_rps=entry.rate_rps or 0.0,
        spikes=tuple(arrivals.Spike(**spike.model_dump()) for spike in entry.spikes),
        burst_service=entry.bursts.service if entry.bursts else "conv",
        burst_weight=entry.bursts.weight if entry.bursts else 0.0,
        **{f"day_{name}": value for name, value in day.items()},
    )


def _clients(entry: ServiceLoad, duration_s: int) -> ClientLoad:
    clients = np.zeros(duration_s)
    for step in sorted(entry.clients or (), key=lambda step: step.start_s):
        # From the first second that begins then: the number changes between seconds only.
        clients[math.ceil(step.start_s) :] = step.clients
    return ClientLoad(clients=clients)


def _fault(fault: FaultSpec) -> Fault:
    return Fault(
        kind=fault.kind,
        node=fault.node,
        start_s=fault.start_s,
        end_s=math.inf if fault.end_s is None else fault.end_s,
        gpu_index=fault.gpu,
        factor=fault.factor,
        delay_s=fault.delay_s or 0.0,
    )


def true_rates(plan: ClusterPlan) -> Mapping[str, arrivals.ArrivalProcess]:
    """The loads by service, for policies that may know them."""
    return {
        name: source
        for name, source in plan.scenario.loads.items()
        if isinstance(source, arrivals.ArrivalProcess)
    }
