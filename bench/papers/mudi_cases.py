"""Mudi's decisions without a closed loop: how long one takes, how many batches it tries, how often it is the best.

A case is one GPU per service at a random part of what it carries, and tasks of random kinds that come one after the
other. The best co-location is that of all ways to give each task a GPU, each GPU tuned as Mudi tunes it, with the
shortest iterations in the simulated truth (which Mudi does not see), summed over the tasks, each over its own alone.
"""

import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.truth import Truth, load_truth
from app.catalogue.catalogue import load_gpu_types, load_profiles, load_training_layers
from bench.papers.mudi_scenario import GPU_TYPE, KINDS, SERVICES
from solvers.backfill.problem import FillLimits, FillProblem
from solvers.baselines.one_per_gpu import by_law
from solvers.laws.capacity_law import make_capacity_law
from solvers.papers.mudi.fill import MudiFilling
from solvers.papers.mudi.tune import Tuned, Tuner
from solvers.predict.data.samples import LayerCounts
from solvers.predict.estimate.unprofiled_training import (
    ProfiledNetworks,
    UnprofiledNetwork,
)
from solvers.types.plan import BoundGpu, BoundPlan, BoundReplica
from solvers.types.problem import OperatingPoints, Problem, ServiceDemand
from solvers.types.state import Gpu, GpuId, NodeId, ReplicaId, Task

SAME = 1.01
"""Iteration times so near to the least count as the least."""
PERCENTILE = 0.98
_PARTS = (0.1, 0.7)  # a service's rate, in parts of what an entire GPU carries


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """What deciding on tasks one by one came to."""

    milliseconds: tuple[float, ...]
    trials: tuple[int, ...]
    """Batches tried, per tuning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One case: iteration times over the least ones."""

    mudi: float
    bare_slope: float
    by_chance: float


def decide(gpus: int, seed: int, *, tasks: int) -> Decisions:
    """Decisions on tasks that come to GPUs without any; the first one, which compiles the programme, apart."""
    filling = _filling(gpus, seed, tasks=tasks + 1, equal_rates=True)
    names = sorted(task.name for task in filling.wanted.tasks)
    by_name = {task.name: task for task in filling.wanted.tasks}
    milliseconds = []
    for name in names:
        begun_s = time.perf_counter()
        filling.place(by_name[name])
        milliseconds.append(1000.0 * (time.perf_counter() - begun_s))
    return Decisions(
        milliseconds=tuple(milliseconds[1:]),
        trials=tuple(len(search.trials) for search in filling.tuner.searches),
    )


def compare(seed: int, *, tasks: int, is_unseen: bool = False) -> Found | None:
    """One case; None where some way to decide finds no place for a task. `is_unseen`: the last task's network was
    never profiled."""
    filling = _filling(
        len(SERVICES), seed, tasks=tasks, equal_rates=False, is_unseen=is_unseen
    )
    case = _Case(filling)
    least = case.least()
    ways = [
        case.slowness(way)
        for way in (
            case.by_mudi(),
            case.by_bare_slope(),
            case.by_chance(random.Random(seed)),
        )
    ]
    if least is None or any(way is None for way in ways):
        return None
    mudi, bare_slope, by_chance = (way / least for way in ways if way is not None)
    return Found(mudi=mudi, bare_slope=bare_slope, by_chance=by_chance)


def judge(seed: int, *, tasks: int) -> tuple[float, ...]:
    """For each task that comes: by how much Mudi's GPU for it adds to all iteration times, over the least that any
    does, with the tasks before it where Mudi has put them."""
    filling = _filling(len(SERVICES), seed, tasks=tasks, equal_rates=False)
    return tuple(_Case(filling).added())


Way = Mapping[str, GpuId]
"""The GPU of each task."""


class _Case:
    """One case, and what tunings of its GPUs come to in the truth."""

    def __init__(self, filling: MudiFilling) -> None:
        self._filling = filling
        self._tasks = {task.name: task for task in filling.wanted.tasks}
        self._gpus = {gpu.id: gpu for gpu in filling.wanted.bound.gpus}
        self._known: dict[tuple[GpuId, tuple[str, ...]], float | None] = {}

    def least(self) -> float | None:
        """Of all ways."""
        ways = itertools.product(sorted(self._gpus), repeat=len(self._tasks))
        found = [
            self.slowness(dict(zip(sorted(self._tasks), way, strict=True)))
            for way in ways
        ]
        return min((each for each in found if each is not None), default=None)

    def slowness(self, way: Way | None) -> float | None:
        """Summed over the tasks; None where a GPU cannot be tuned for those that it is given."""
        if way is None:
            return None
        by_gpu = {
            key: tuple(sorted(name for name in way if way[name] == key))
            for key in set(way.values())
        }
        found = [self._on(key, names) for key, names in sorted(by_gpu.items())]
        return (
            None
            if any(each is None for each in found)
            else sum(each for each in found if each is not None)
        )

    def added(self) -> Iterator[float]:
        """One per task that finds a place."""
        for name in sorted(self._tasks):
            before = {
                task.name: gpu.id for gpu in self._filling.gpus() for task in gpu.tasks
            }
            self._filling.place(self._tasks[name])
            after = {
                task.name: gpu.id for gpu in self._filling.gpus() for task in gpu.tasks
            }
            ways = {key: self.slowness({**before, name: key}) for key in self._gpus}
            least = min(
                (each for each in ways.values() if each is not None), default=None
            )
            mine = ways[after[name]] if name in after else None
            if mine is not None and least is not None:
                now = self.slowness(before) or 0.0
                yield (mine - now) / (least - now)

    def by_mudi(self) -> Way | None:
        for name in sorted(self._tasks):
            self._filling.place(self._tasks[name])
        placed = {
            task.name: gpu.id for gpu in self._filling.gpus() for task in gpu.tasks
        }
        return placed if len(placed) == len(self._tasks) else None

    def by_bare_slope(self) -> Way | None:
        """The GPU with the fewest tasks and the smallest slope of the service alone, as far as it can be tuned."""
        way: dict[str, GpuId] = {}
        for name in sorted(self._tasks):
            fitting = [
                key
                for key in sorted(self._gpus)
                if self._on(key, self._with(way, key, name)) is not None
            ]
            if not fitting:
                return None
            way[name] = min(
                fitting,
                key=lambda key: (
                    len(self._with(way, key, "")),
                    self._slope(key, name),
                    key,
                ),
            )
        return way

    def by_chance(self, draw: random.Random) -> Way | None:
        way: dict[str, GpuId] = {}
        for name in sorted(self._tasks):
            fitting = [
                key
                for key in sorted(self._gpus)
                if self._on(key, self._with(way, key, name)) is not None
            ]
            if not fitting:
                return None
            way[name] = draw.choice(fitting)
        return way

    def _slope(self, key: GpuId, name: str) -> float:
        return self._filling.slopes.of(
            self._filling.host(key), [self._tasks[name]]
        ).slope

    def _with(self, way: Way, key: GpuId, name: str) -> tuple[str, ...]:
        return tuple(
            sorted([each for each in way if way[each] == key] + [name] * bool(name))
        )

    def _on(self, key: GpuId, names: tuple[str, ...]) -> float | None:
        if len(names) > FillLimits().max_tasks_per_gpu:
            return None
        if (key, names) not in self._known:
            tasks = [self._tasks[name] for name in names]
            tuner = self._filling.tuner
            fresh = Tuner(
                problem=tuner.problem, seats=tuner.seats, iterations=tuner.iterations
            )
            tuned = fresh.tune(self._filling.host(key), tasks)
            self._known[key, names] = (
                None if tuned is None else _true_slowness(self._gpus[key], tuned, tasks)
            )
        return self._known[key, names]


def _true_slowness(gpu: BoundGpu, tuned: Tuned, tasks: Sequence[Task]) -> float:
    """Iteration times in the truth over those alone on the whole GPU, summed."""
    (replica,) = gpu.replicas
    seats = [
        SimulatedNeighbour(_true_network(task.network), seat.row.sm_percent, task.batch)
        for task, seat in zip(tasks, tuned.seats, strict=True)
    ]
    beside = SimulatedNeighbour(replica.network, tuned.row.sm_percent, tuned.row.batch)
    total = 0.0
    for at, seat in enumerate(seats):
        others = (beside, *seats[:at], *seats[at + 1 :])
        together_ms, alone_ms = (
            _truth().execution_ms(
                RunningPart(
                    network=seat.network,
                    gpu_type=gpu.gpu_type,
                    sm_percent=sm_percent,
                    batch=seat.batch,
                    clock_mhz=gpu.clock_mhz,
                    neighbours=neighbours,
                ),
                seat.batch,
            )
            for sm_percent, neighbours in ((seat.sm_percent, others), (100.0, ()))
        )
        total += together_ms / alone_ms
    return total


_UNSEEN = "never profiled "


def _true_network(network: str) -> str:
    return network.removeprefix(_UNSEEN)


@cache
def _truth() -> Truth:
    return load_truth()


def _filling(
    gpus: int, seed: int, *, tasks: int, equal_rates: bool, is_unseen: bool = False
) -> MudiFilling:
    draw = random.Random(seed)
    problem = _problem()
    parts = {each.name: draw.uniform(*_PARTS) for each in SERVICES}
    bound = [
        whole_gpu(
            problem,
            name := SERVICES[number % len(SERVICES)].name,
            number=number,
            part=parts[name] if equal_rates else draw.uniform(*_PARTS),
        )
        for number in range(gpus)
    ]
    kinds = [
        draw.choices(KINDS, [kind.fraction for kind in KINDS])[0] for _ in range(tasks)
    ]
    wanted = [
        Task(
            name=f"{number:03}",
            kind="training",
            network=kind.network,
            batch=kind.batch,
            iterations=1000,
        )
        for number, kind in enumerate(kinds)
    ]
    points = load_profiles(sorted({kind.network for kind in KINDS}), [GPU_TYPE])
    if is_unseen:
        points = (*points, _estimated(problem, points, wanted[-1]))
        wanted[-1] = replace(wanted[-1], network=_UNSEEN + wanted[-1].network)
    fleet = [
        Gpu(id=gpu.id, node=gpu.node, gpu_type=GPU_TYPE, index=number)
        for number, gpu in enumerate(bound)
    ]
    plan = BoundPlan(generation=1, parent=0, policy="mudi", gpus=tuple(bound))
    return MudiFilling(
        FillProblem(
            problem=problem, bound=plan, tasks=wanted, points=points, gpus=fleet
        ),
        FillLimits(),
    )


def _estimated(
    problem: Problem, points: Sequence[OperatingPoints], task: Task
) -> OperatingPoints:
    """The task's network, judged by its layers and without its own points."""
    layers = load_training_layers()
    (own,) = (each for each in layers if each.network == task.network)
    relatives = ProfiledNetworks(
        gpu_type=problem.gpu_type(GPU_TYPE),
        training=[entry for entry in points if entry.network != task.network],
        services=problem.points,
        layers=[each for each in layers if each.network != task.network],
    )
    (memory_mib,) = {
        row.memory_mib
        for entry in points
        if entry.network == task.network
        for row in entry.rows
        if row.batch == task.batch
    }
    unseen = LayerCounts(
        network=_UNSEEN + task.network,
        counts=own.counts,
        parameters_millions=own.parameters_millions,
    )
    found = relatives.estimate(
        UnprofiledNetwork(layers=unseen, batch=task.batch, memory_mib=memory_mib)
    )
    assert found is not None, "there are relatives"
    return found


@cache
def _problem() -> Problem:
    """All services on A100s; rates are set GPU by GPU."""
    (gpu_type,) = load_gpu_types([GPU_TYPE])
    points = load_profiles([each.network for each in SERVICES], [GPU_TYPE])
    batches = sorted({row.batch for entry in points for row in entry.rows})
    services = tuple(
        ServiceDemand(
            name=each.name,
            network=each.network,
            slo_ms=each.slo_ms,
            percentile=PERCENTILE,
            arrival_rate_rps=0.0,
        )
        for each in SERVICES
    )
    return Problem(
        max_replicas_per_gpu=1,
        capacity_law=make_capacity_law([PERCENTILE], batches),
        gpu_types=(gpu_type,),
        services=services,
        points=points,
    )


def whole_gpu(problem: Problem, name: str, *, number: int, part: float) -> BoundGpu:
    """A GPU with the service's replica as a plan begins with it: the whole GPU, the batch that carries most, and that
    part of what it carries."""
    service, gpu_type = problem.service(name), problem.gpu_type(GPU_TYPE)
    points = problem.points_of(service.network, GPU_TYPE)
    assert points is not None, "the catalogue has every network"
    whole = [
        row
        for row in points.rows
        if row.sm_percent == 100.0 and row.clock_mhz == gpu_type.clocks_mhz[-1]
    ]
    row = max(whole, key=lambda row: by_law(problem, service, row))
    replica = BoundReplica(
        id=ReplicaId(f"{name}-{number}"),
        service=name,
        network=service.network,
        sm_percent=100.0,
        batch=row.batch,
        arrival_rate_rps=part * by_law(problem, service, row),
        memory_mib=row.memory_mib,
    )
    return BoundGpu(
        id=GpuId(f"n1/gpu-{number:04}"),
        node=NodeId("n1"),
        gpu_type=GPU_TYPE,
        clock_mhz=row.clock_mhz,
        power_cap_w=gpu_type.power_cap_w,
        replicas=(replica,),
    )
