"""Small random problems with a valid plan whose limits are all tight, and the contract's worked example."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hypothesis import strategies as st

from solvers.types.documents.plan_json import plan_from_json
from solvers.types.documents.problem_json import problem_from_json
from solvers.types.outcome import PlanReport
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan, Unserved
from solvers.types.problem import (
    CapacityLaw,
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import GpuType

DATA = Path(__file__).parents[1] / "data"

LAW = CapacityLaw(
    percentiles=(0.95, 0.99),
    batches=(1, 4),
    slo_ratios=(1.0, 2.0, 3.0, 5.0, 10.0),
    max_utilisation=(
        ((0.0, 0.3, 0.5, 0.7, 0.8), (0.0, 0.5, 0.8, 0.9, 0.95)),
        ((0.0, 0.2, 0.4, 0.6, 0.7), (0.0, 0.4, 0.7, 0.8, 0.9)),
    ),
)
TYPES = (
    GpuType(
        name="big",
        price_usd_per_hour=3.0,
        memory_mib=1.0,
        sm_percent_step=10.0,
        idle_w=50.0,
        power_cap_w=1.0,
        clocks_mhz=(1000.0, 1400.0),
        launch_per_neighbour=0.1,
        launch_base=0.2,
    ),
    GpuType(
        name="small",
        price_usd_per_hour=1.0,
        memory_mib=1.0,
        sm_percent_step=10.0,
        idle_w=20.0,
        power_cap_w=1.0,
        clocks_mhz=(1200.0,),
    ),
)
SM_PERCENTS = (20.0, 30.0, 50.0, 100.0)
NETWORKS = ("text", "vision")
SERVICES = ("camera", "chat", "photo", "search")


def example() -> tuple[Problem, Plan, PlanReport]:
    """The contract's example problem and its optimum."""
    problem = problem_from_json((DATA / "example_problem.json").read_text())
    plan, report = plan_from_json((DATA / "example_plan.json").read_text())
    return problem, plan, report


def capacity_rps(problem: Problem, gpu: GpuPlan, index: int) -> float:
    """The contract's capacity law for one replica, written apart from `solvers.check`."""

    def row_of(replica: ReplicaPlan) -> tuple[OperatingPoint, float]:
        points = problem.points_of(
            problem.service(replica.service).network, gpu.gpu_type
        )
        assert points is not None
        wanted = (replica.sm_percent, replica.batch, gpu.clock_mhz)
        return next(row for row in points.rows if row[:3] == wanted), points.sensitivity

    gpu_type, service = (
        problem.gpu_type(gpu.gpu_type),
        problem.service(gpu.replicas[index].service),
    )
    if gpu.replicas[index].slice is not None:
        return slice_capacity_rps(problem, gpu, index)
    row, sensitivity = row_of(gpu.replicas[index])
    others = gpu.replicas[:index] + gpu.replicas[index + 1 :]
    launch_ms = row.launch_ms
    if others:
        launch_ms *= (
            1 + gpu_type.launch_per_neighbour * (len(others) + 1) + gpu_type.launch_base
        )
    pressure = sum(row_of(each)[0].pressure for each in others)
    slowdown = sensitivity * pressure
    if gpu_type.overload is not None and pressure + min(row.pressure, 1) > 1:
        slowdown += gpu_type.overload * (pressure + min(row.pressure, 1) - 1)
    execution_ms = row.transfer_ms + launch_ms + row.run_ms * (1 + slowdown)
    ratio = service.slo_ms / execution_ms
    return (
        1000
        * row.batch
        / execution_ms
        * problem.capacity_law.utilisation(service.percentile, row.batch, ratio)
    )


def slice_capacity_rps(problem: Problem, gpu: GpuPlan, index: int) -> float:
    """The same of a replica in a slice, where no neighbour counts."""
    replica = gpu.replicas[index]
    service, use = problem.service(replica.service), replica.slice
    assert use is not None
    rows = problem.slice_rows(service.network, gpu.gpu_type, use.profile)
    wanted = (replica.batch, use.processes, gpu.clock_mhz)
    row = next(row for row in rows if row[:3] == wanted)
    share = problem.capacity_law.utilisation(
        service.percentile, row.batch, service.slo_ms / row.execution_ms
    )
    return use.processes * 1000 * row.batch / row.execution_ms * share


@st.composite
def planned_problems(draw: st.DrawFn) -> tuple[Problem, Plan]:
    """A problem of two GPU types, two networks and four services, with a valid plan of 1 to 4 entries.

    Memory, power, stock and replica limits are exactly what the plan uses; every replica's rate is a share of its
    capacity, some of them all of it; demand is exactly what is served plus what is listed as unserved.
    """
    loose = Problem(
        energy_price_usd_per_kwh=draw(st.sampled_from((0.0, 0.2))),
        max_replicas_per_gpu=len(SERVICES),
        capacity_law=LAW,
        gpu_types=TYPES,
        services=tuple(draw(_services(name)) for name in SERVICES),
        points=tuple(
            draw(_points(network, gpu_type))
            for network in NETWORKS
            for gpu_type in TYPES
        ),
    )
    patterns = draw(st.lists(_gpus(), min_size=1, max_size=4))
    shares = st.sampled_from((0.0, 0.3, 1.0))
    gpus = tuple(_loaded(loose, gpu, lambda: draw(shares)) for gpu in patterns)
    unserved = tuple(
        Unserved(
            service=name, rate_rps=draw(st.sampled_from((1.0, 40.0))), reason="stock"
        )
        for name in draw(st.sets(st.sampled_from(SERVICES), max_size=2).map(sorted))
    )
    plan = Plan(policy="drawn", gpus=gpus, unserved=unserved)
    return _tightened(loose, plan), plan


@st.composite
def _services(draw: st.DrawFn, name: str) -> ServiceDemand:
    return ServiceDemand(
        name=name,
        network=draw(st.sampled_from(NETWORKS)),
        slo_ms=draw(st.sampled_from((60.0, 150.0, 400.0))),
        percentile=draw(st.sampled_from(LAW.percentiles)),
        arrival_rate_rps=0.0,
        priority=draw(st.sampled_from((1.0, 3.0))),
    )


@st.composite
def _points(draw: st.DrawFn, network: str, gpu_type: GpuType) -> OperatingPoints:
    work_ms = draw(st.floats(1.0, 10.0))
    rows = (
        OperatingPoint(
            sm_percent=sm_percent,
            batch=batch,
            clock_mhz=clock_mhz,
            transfer_ms=0.1 * batch,
            launch_ms=1.0,
            run_ms=work_ms
            * (1 + batch)
            * (100.0 / sm_percent) ** 0.7
            * 1000.0
            / clock_mhz,
            memory_mib=1000.0 + 100.0 * batch,
            power_w=0.6 * sm_percent + 0.01 * clock_mhz,
            pressure=0.004 * sm_percent,
        )
        for sm_percent, batch, clock_mhz in itertools.product(
            SM_PERCENTS, LAW.batches, gpu_type.clocks_mhz
        )
    )
    sensitivity = draw(st.sampled_from((0.2, 0.8)))
    return OperatingPoints(
        network=network,
        gpu_type=gpu_type.name,
        sensitivity=sensitivity,
        rows=tuple(rows),
    )


@st.composite
def _gpus(draw: st.DrawFn) -> GpuPlan:
    gpu_type = draw(st.sampled_from(TYPES))
    mixes = (
        (100.0,),
        (50.0,),
        (50.0, 50.0),
        (30.0, 50.0),
        (20.0, 20.0, 50.0),
        (30.0, 20.0, 50.0),
    )
    sm_percents = draw(st.sampled_from(mixes))
    services = draw(st.permutations(SERVICES))
    replicas = tuple(
        ReplicaPlan(
            service=service,
            sm_percent=sm_percent,
            batch=draw(st.sampled_from(LAW.batches)),
            arrival_rate_rps=0.0,
        )
        for service, sm_percent in zip(services, sm_percents, strict=False)
    )
    clock_mhz = draw(st.sampled_from(gpu_type.clocks_mhz))
    return GpuPlan(
        gpu_type=gpu_type.name,
        count=draw(st.integers(1, 3)),
        clock_mhz=clock_mhz,
        replicas=replicas,
    )


def _loaded(problem: Problem, gpu: GpuPlan, share: Callable[[], float]) -> GpuPlan:
    replicas = tuple(
        replace(replica, arrival_rate_rps=share() * capacity_rps(problem, gpu, index))
        for index, replica in enumerate(gpu.replicas)
    )
    return replace(gpu, replicas=replicas)


def _tightened(problem: Problem, plan: Plan) -> Problem:
    return replace(
        problem,
        max_replicas_per_gpu=max(len(gpu.replicas) for gpu in plan.gpus),
        gpu_types=tuple(
            _tight_type(problem, gpu_type, plan) for gpu_type in problem.gpu_types
        ),
        services=tuple(_tight_service(service, plan) for service in problem.services),
    )


def _tight_type(problem: Problem, gpu_type: GpuType, plan: Plan) -> GpuType:
    gpus = [gpu for gpu in plan.gpus if gpu.gpu_type == gpu_type.name]
    rows = [
        [
            next(
                row
                for points in problem.points
                if points.network == problem.service(replica.service).network
                and points.gpu_type == gpu_type.name
                for row in points.rows
                if row[:3] == (replica.sm_percent, replica.batch, gpu.clock_mhz)
            )
            for replica in gpu.replicas
        ]
        for gpu in gpus
    ]
    return replace(
        gpu_type,
        count=sum(gpu.count for gpu in gpus),
        memory_mib=max(
            (sum(row.memory_mib for row in each) for each in rows), default=1.0
        ),
        power_cap_w=max(
            (gpu_type.idle_w + sum(row.power_w for row in each) for each in rows),
            default=1.0,
        ),
    )


def _tight_service(service: ServiceDemand, plan: Plan) -> ServiceDemand:
    placed = [
        (gpu, each)
        for gpu in plan.gpus
        for each in gpu.replicas
        if each.service == service.name
    ]
    replicas = sum(gpu.count for gpu, _ in placed)
    served_rps = sum(gpu.count * replica.arrival_rate_rps for gpu, replica in placed)
    unserved_rps = sum(
        entry.rate_rps for entry in plan.unserved if entry.service == service.name
    )
    return replace(
        service,
        arrival_rate_rps=served_rps + unserved_rps,
        min_replicas=replicas,
        max_replicas=replicas or None,
        allowed_gpu_types=tuple(sorted({gpu.gpu_type for gpu, _ in placed})) or None,
    )
