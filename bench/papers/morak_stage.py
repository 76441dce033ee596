"""Where Morak's experiments are played: worlds of curves, GPUs under governors, and what became of their requests.

Every replica always has a full batch to do, as in the paper, and its latency is the time of a batch. A GPU's governor
is the product's, one step per second; a policy's plan is made from the world's own figures (planning is not what is
judged here), except that neighbours are believed to cost 12 % next to a full GPU of others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Protocol

import numpy as np

from agents.sim.truth.curves import FloatArray
from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.truth import load_truth
from bench.papers.plant import load_plant
from bench.papers.table import Truth
from solvers.governors.registry import GOVERNORS, govern
from solvers.governors.types import (
    GovernorKnobs,
    GovernorLimits,
    GpuPeriod,
    ReplicaLimits,
    ReplicaPeriod,
    within,
)
from solvers.policies.registry import policy
from solvers.types.outcome import Budget
from solvers.types.parameters import AS_BY_DEFAULT, PolicyParameters
from solvers.types.problem import (
    CapacityLaw,
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import GpuType, Observed

PERIODS = 60
"""Seconds of one experiment."""
SETTLING = 20
"""After a start or a change of limits: so long, at most, may a governor take; then everything counts."""
SM_PERCENTS = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 80.0, 100.0)
_PRESSURE_PER_PERCENT = 0.0012
_PLANNED_CLOCKS = 8  # plans may use every eighth clock of the grid


class World(Protocol):
    """What the experiments read of a simulated world."""

    def max_batch(self, network: str) -> int:
        """Largest batch."""
        ...

    def noise_cv(self, network: str) -> float:
        """Standard deviation of one batch's time over its mean."""
        ...

    def batch_ms(self, placed: RunningPart) -> FloatArray:
        """Mean time by batch size: (max_batch + 1,)."""
        ...

    def busy_w(self, placed: RunningPart, batch: int) -> float:
        """Watts above idle while such a batch runs."""
        ...

    def idle_w(self, gpu_type: str) -> float:
        """Watts of an idle GPU."""
        ...

    def memory_mib(self, network: str, batch: int) -> float:
        """Memory of one replica."""
        ...


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One world, and the GPUs and networks of the experiment: as many GPUs as networks."""

    name: str
    world: World
    board: str
    networks: tuple[str, ...]
    clocks_mhz: tuple[float, ...]
    memory_mib: float
    batches: tuple[int, ...]
    """That plans choose from."""
    truth: Truth
    note: str

    def largest_batch(self, network: str) -> int:
        """What one replica alone has memory for."""
        sizes = range(1, self.world.max_batch(network) + 1)
        return max(
            batch
            for batch in sizes
            if self.world.memory_mib(network, batch) <= self.memory_mib
        )

    @property
    def planned_clocks_mhz(self) -> tuple[float, ...]:
        """Clocks of plans, the highest among them."""
        return self.clocks_mhz[::-1][::_PLANNED_CLOCKS][::-1]


@cache
def stages() -> tuple[Stage, ...]:
    """The worlds that the experiments are played in."""
    truth, plant = load_truth(), load_plant()
    return (
        Stage(
            name="V100, PyTorch",
            world=truth,
            board="V100-16GB",
            networks=("googlenet", "mobilenet_v2", "resnet101", "vgg16"),
            clocks_mhz=_grid(1530),
            memory_mib=16_160.0,
            batches=tuple(range(1, 9)),
            truth="synthetic",
            note="RaPP's curves on a V100, batches 1 to 8, as far as they were measured; lower clocks are scaled, "
            "watts synthetic (measured ones of ResNet-50 at equal duty).",
        ),
        Stage(
            name="V100, TensorRT",
            world=truth,
            board="V100-16GB",
            networks=("alexnet-trt", "resnet50-trt", "vgg19-trt"),
            clocks_mhz=_grid(1530),
            memory_mib=16_160.0,
            batches=(1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32),
            truth="scaled",
            note="iGniter's curves and watts on a V100, batches 1 to 32; lower clocks are scaled. It measured three "
            "networks of this kind, so three GPUs.",
        ),
        Stage(
            name="2080 Ti plant",
            world=plant,
            board="RTX-2080-Ti",
            networks=("densenet121", "mobilenet_v2", "resnet50", "vgg16"),
            clocks_mhz=_grid(1545),
            memory_mib=11_019.0,
            batches=(1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128),
            truth="synthetic",
            note="The synthetic plant's RTX 2080 Ti, the paper's board, batches 1 to 128; DenseNet-121 and ResNet-50 "
            "stand in for GoogLeNet and ResNet-101.",
        ),
    )


def _grid(highest_mhz: int) -> tuple[float, ...]:
    """Clocks 15 MHz apart down to 300."""
    return tuple(float(clock) for clock in range(highest_mhz, 299, -15))[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The limits of one experiment."""

    cap_w: float
    latency_ms: float
    """Of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One replica of one network."""

    network: str
    sm_percent: float
    largest_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU and where its knobs begin."""

    tenants: tuple[Tenant, ...]
    clock_mhz: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """One second of one GPU."""

    power_w: float
    rates_rps: Mapping[str, float]
    """By network."""
    kept: Mapping[str, float]
    """Rates of those whose batch took no longer than the limit, on a GPU that kept the cap."""
    keeps: bool
    """Whether the cap and every latency was kept."""
    keeps_cap: bool
    longest_ms: float

    @property
    def rate_rps(self) -> float:
        """Of all networks."""
        return sum(self.rates_rps.values())

    @property
    def kept_rps(self) -> float:
        """Of all networks, within both limits."""
        return sum(self.kept.values())


Course = Sequence[Sequence[Period]]
"""By GPU, its periods."""


def play(
    stage: Stage,
    gpus: Sequence[Gpu],
    governor: str | None,
    settings: Sequence[Setting],
    seed: int,
) -> Course:
    """Every GPU for as many periods as there are settings, under a governor; None: the knobs stay."""
    random = np.random.default_rng(seed)
    return [_play(stage, gpu, governor, settings, random) for gpu in gpus]


def _play(
    stage: Stage,
    gpu: Gpu,
    governor: str | None,
    settings: Sequence[Setting],
    random: np.random.Generator,
) -> list[Period]:
    start = GOVERNORS[governor].start if governor else None
    limits = _limits(stage, gpu, settings[0])
    planned = GovernorKnobs(
        clock_mhz=gpu.clock_mhz,
        batches={each.network: each.largest_batch for each in gpu.tenants},
    )
    knobs, passed = within(start(limits) if start else planned, limits), []
    for before, setting in zip((settings[0], *settings), settings, strict=False):
        if setting != before:
            # As on a node: the knobs stay, what was learned under other limits is forgotten.
            limits = _limits(stage, gpu, setting)
            knobs = GovernorKnobs(clock_mhz=knobs.clock_mhz, batches=knobs.batches)
        reading = _measure(stage, gpu, knobs, random)
        passed.append(_period(knobs, reading, setting))
        if governor is not None:
            knobs = govern(governor, knobs, reading, limits)
    return passed


def _limits(stage: Stage, gpu: Gpu, setting: Setting) -> GovernorLimits:
    return GovernorLimits(
        power_cap_w=setting.cap_w,
        clocks_mhz=stage.clocks_mhz,
        replicas=tuple(
            ReplicaLimits(
                id=each.network,
                latency_ms=setting.latency_ms,
                largest_batch=each.largest_batch,
            )
            for each in gpu.tenants
        ),
    )


def _measure(
    stage: Stage, gpu: Gpu, knobs: GovernorKnobs, random: np.random.Generator
) -> GpuPeriod:
    """What one second shows: every batch full, its mean time with the noise that the batches' number leaves."""
    world, replicas = stage.world, []
    power_w = world.idle_w(stage.board)
    for each in gpu.tenants:
        batch = knobs.batches[each.network]
        placed = _placed(stage, gpu, each, knobs)
        mean_ms = float(world.batch_ms(placed)[batch])
        batches = max(1, round(1000.0 / mean_ms))
        time_ms = mean_ms * (
            1.0
            + world.noise_cv(each.network)
            / batches**0.5
            * float(random.standard_normal())
        )
        power_w += world.busy_w(placed, batch)
        replicas.append(
            ReplicaPeriod(
                id=each.network,
                batches=batches,
                requests=batches * batch,
                queued=2 * batch,
                execution_ms=time_ms,
                latency_ms=time_ms,
            )
        )
    return GpuPeriod(peak_power_w=power_w, replicas=tuple(replicas))


def _placed(
    stage: Stage, gpu: Gpu, tenant: Tenant, knobs: GovernorKnobs
) -> RunningPart:
    return RunningPart(
        network=tenant.network,
        gpu_type=stage.board,
        sm_percent=tenant.sm_percent,
        batch=knobs.batches[tenant.network],
        clock_mhz=knobs.clock_mhz,
        neighbours=tuple(
            SimulatedNeighbour(
                other.network, other.sm_percent, knobs.batches[other.network]
            )
            for other in gpu.tenants
            if other is not tenant
        ),
    )


def _period(knobs: GovernorKnobs, reading: GpuPeriod, setting: Setting) -> Period:
    rates = {
        each.id: 1000.0 * knobs.batches[each.id] / each.execution_ms
        for each in reading.replicas
    }
    in_time = {
        each.id: each.execution_ms <= setting.latency_ms for each in reading.replicas
    }
    keeps_cap = reading.peak_power_w <= setting.cap_w
    return Period(
        power_w=reading.peak_power_w,
        rates_rps=rates,
        kept={
            name: rate for name, rate in rates.items() if in_time[name] and keeps_cap
        },
        keeps=keeps_cap and all(in_time.values()),
        keeps_cap=keeps_cap,
        longest_ms=max(each.execution_ms for each in reading.replicas),
    )


def exclusive(stage: Stage) -> list[Gpu]:
    """One network on each GPU, as the paper's baselines have it, at the highest clock and the largest batch."""
    return [
        Gpu(
            tenants=(
                Tenant(
                    network=each,
                    sm_percent=100.0,
                    largest_batch=stage.largest_batch(each),
                ),
            ),
            clock_mhz=stage.clocks_mhz[-1],
        )
        for each in stage.networks
    ]


def plenty_rps(stage: Stage) -> dict[str, float]:
    """Rates beyond what the GPUs can carry: of every network what as many whole GPUs would, at the highest clock."""
    rates = {}
    for each in stage.networks:
        batch = stage.largest_batch(each)
        whole = RunningPart(
            network=each,
            gpu_type=stage.board,
            sm_percent=100.0,
            batch=batch,
            clock_mhz=stage.clocks_mhz[-1],
        )
        rates[each] = (
            len(stage.networks)
            * 1000.0
            * batch
            / float(stage.world.batch_ms(whole)[batch])
        )
    return rates


def planned(
    stage: Stage,
    name: str,
    setting: Setting,
    rates_rps: Mapping[str, float],
    parameters: PolicyParameters = AS_BY_DEFAULT,
) -> Iterator[Gpu]:
    """The GPUs of a policy's plan for these rates."""
    budget = Budget(seconds=10.0, work=4.0, parameters=parameters)
    plan, _, _ = policy(name).make_plan(
        a_problem(stage, setting, rates_rps), Observed(at_s=0.0), None, budget
    )
    for gpu in plan.gpus:
        tenants = tuple(
            Tenant(
                network=each.service,
                sm_percent=each.sm_percent,
                largest_batch=each.batch,
            )
            for each in gpu.replicas
        )
        yield from [Gpu(tenants=tenants, clock_mhz=gpu.clock_mhz)] * gpu.count


def full_batches(batches: Sequence[int]) -> CapacityLaw:
    """The law of this load: batches are always full, so that a request waits for the one before its own and no more.

    A network whose batch takes no more than half of the SLO is in time, however busy the GPU is.
    """
    row = tuple((1.0, 1.0) for _ in batches)
    return CapacityLaw(
        percentiles=(0.98,),
        batches=tuple(batches),
        slo_ratios=(2.0, 3.0),
        max_utilisation=(row,),
    )


def a_problem(
    stage: Stage, setting: Setting, rates_rps: Mapping[str, float]
) -> Problem:
    """The networks as services. A request waits for one batch before its own, so the SLO is twice the limit."""
    gpu_type = GpuType(
        name=stage.board,
        price_usd_per_hour=1.0,
        memory_mib=stage.memory_mib,
        count=len(stage.networks),
        sm_percent_step=10.0,
        idle_w=stage.world.idle_w(stage.board),
        power_cap_w=setting.cap_w,
        clocks_mhz=stage.planned_clocks_mhz,
    )
    return Problem(
        objective="max_goodput",
        max_replicas_per_gpu=len(stage.networks),
        capacity_law=full_batches(stage.batches),
        gpu_types=(gpu_type,),
        services=tuple(
            ServiceDemand(
                name=each,
                network=each,
                slo_ms=2.0 * setting.latency_ms,
                percentile=0.98,
                arrival_rate_rps=rates_rps[each],
                # So that every network's part counts alike, and no policy serves the fastest one only.
                priority=1000.0 / max(1.0, rates_rps[each]),
            )
            for each in stage.networks
        ),
        points=tuple(_points(stage.name, each) for each in stage.networks),
    )


@cache
def _points(stage_name: str, network: str) -> OperatingPoints:
    (stage,) = (each for each in stages() if each.name == stage_name)
    world, rows = stage.world, []
    batches = [batch for batch in stage.batches if batch <= world.max_batch(network)]
    for percent, batch, clock_mhz in product(
        SM_PERCENTS, batches, stage.planned_clocks_mhz
    ):
        placed = RunningPart(
            network=network,
            gpu_type=stage.board,
            sm_percent=percent,
            batch=batch,
            clock_mhz=clock_mhz,
        )
        time_ms, power_w = (
            float(world.batch_ms(placed)[batch]),
            world.busy_w(placed, batch),
        )
        facts = (
            world.memory_mib(network, batch),
            power_w,
            _PRESSURE_PER_PERCENT * percent,
        )
        rows.append(
            OperatingPoint(percent, batch, clock_mhz, 0.0, 0.0, time_ms, *facts)
        )
    return OperatingPoints(
        network=network, gpu_type=stage.board, sensitivity=1.0, rows=tuple(rows)
    )
