"""OLTunes' experiment as simulated jobs: its cluster, its loads (Tables 5 to 7) with substitutes, and its policies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from agents.sim.truth.running import RunningPart
from agents.sim.truth.tables import read
from agents.sim.truth.truth import Truth
from app.catalogue.catalogue import load_gpu_types, load_profiles
from app.dispatch.foresight import Foresight
from app.dispatch.kernel_classes import load_kernel_ratios
from bench.papers.dispatch_as_submitted import as_submitted
from bench.papers.dispatch_reserve_and_pack import Reservation
from bench.papers.jobs.dispatchers import (
    Dispatcher,
    LeastCostDispatcher,
    OltunesDispatcher,
    OrionDispatcher,
    PackingDispatcher,
)
from bench.papers.jobs.report import JobsReport
from bench.papers.jobs.requests import (
    Arrivals,
    JobKind,
    JobRequest,
    Pattern,
    make_requests,
)
from bench.papers.jobs.run import JobsRun, run_jobs
from bench.papers.jobs.settle import Grid, Settler
from bench.papers.jobs.world import SimGpu
from solvers.papers.oltunes.affinity import ratios_of
from solvers.papers.oltunes.tuning_score import tune
from solvers.predict.latency.factorisation_features import ServedConditions
from solvers.types.jobs import DispatchRules
from solvers.types.state import GpuId, Variant

CLUSTER = {"A100-40GB": 5, "A30": 2, "RTX-4090": 1}
"""Table 5."""
HIGH_END = frozenset({"A100-40GB"})
ACCURACY_FLOOR = 0.96
"""Of the most accurate variant's: the paper's largest loss is 4 %."""
LAUNCH_S = 2.0
"""A container with its image on the node, weights from the page cache."""
HISTORY_ROWS = 500
"""What the predictor has seen before the first job: as many as the paper needs (Figure 10)."""
POLICIES = ("oltunes", "orion", "reserve_and_pack", "least_cost")
PRICES_USD_PER_HOUR = {"A100-40GB": 1.2, "A30": 0.6, "RTX-4090": 0.394}
"""Table 2."""

ACCURACY = {
    "resnet18": 0.69758,
    "resnet50": 0.76130,
    "resnet101": 0.77374,
    "efficientnet_b0": 0.77692,
    "regnet_x_8gf": 0.79344,
    "vgg16": 0.71592,
    "convnext_small": 0.83616,
}
"""Top-1 on ImageNet, as torchvision documents its first weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperKind:
    """One line of Tables 6 and 7, with its substitute."""

    name: str
    networks: tuple[str, ...]
    """The wanted one first; others may stand in for it."""
    uniform_rps: float
    poisson_rps: float
    largest: int
    """Inputs of a job at most."""
    slo_ms: float
    is_language: bool = False


# ResNet-18, -50 as they are; ResNet-101 for 152; EfficientNet-B0 and RegNetX-8GF for YOLOv5n and 5x; VGG-16 (138 M
# parameters) for BERT-base (110 M); ConvNeXt-S, the one with most work per input, for GPT-2.
KINDS = (
    PaperKind(
        name="resnet18",
        networks=("resnet18",),
        uniform_rps=70.0,
        poisson_rps=60.0,
        largest=256,
        slo_ms=10.0,
    ),
    PaperKind(
        name="yolov5n",
        networks=("efficientnet_b0",),
        uniform_rps=25.0,
        poisson_rps=20.0,
        largest=256,
        slo_ms=25.0,
    ),
    PaperKind(
        name="yolov5x",
        networks=("regnet_x_8gf", "efficientnet_b0"),
        uniform_rps=25.0,
        poisson_rps=20.0,
        largest=256,
        slo_ms=45.0,
    ),
    PaperKind(
        name="resnet50",
        networks=("resnet50",),
        uniform_rps=20.0,
        poisson_rps=12.5,
        largest=128,
        slo_ms=80.0,
    ),
    PaperKind(
        name="resnet152",
        networks=("resnet101", "resnet50"),
        uniform_rps=20.0,
        poisson_rps=12.5,
        largest=128,
        slo_ms=170.0,
    ),
    PaperKind(
        name="bert",
        networks=("vgg16",),
        uniform_rps=10.0,
        poisson_rps=5.0,
        largest=128,
        slo_ms=150.0,
        is_language=True,
    ),
    PaperKind(
        name="gpt2",
        networks=("convnext_small",),
        uniform_rps=3.0,
        poisson_rps=2.0,
        largest=128,
        slo_ms=200.0,
        is_language=True,
    ),
)
HEAVY = frozenset({"resnet50", "resnet101", "vgg16", "convnext_small"})
"""Networks of the sizes L, XL and XXL: what reserve-and-pack keeps its high-end GPUs for."""
SIZES = (1, 4, 8, 16, 32, 64, 128, 256)
"""Table 3's batch sizes: inputs of a job here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run of the experiment."""

    policy: str
    pattern: Pattern
    seed: int
    length_s: float
    warm_up_s: float
    load: float = 1.0
    """By which the printed rates are multiplied."""


def run_case(truth: Truth, case: Case) -> JobsReport:
    """The report of one run. The same case gives the same report."""
    gpus = tuple(cluster())
    settler = make_settler(
        truth, gpus, is_tuned=case.policy in ("oltunes", "least_cost")
    )
    settler.foresight.learn(history(truth, gpus))
    run = JobsRun(
        policy=case.policy,
        gpus=gpus,
        requests=requests_of(case),
        length_s=case.length_s,
        warm_up_s=case.warm_up_s,
        seed=case.seed,
        launch_s=LAUNCH_S,
        preloaded=tuple(sorted(ACCURACY)),
    )
    return run_jobs(run, truth, make_dispatcher(case.policy), settler)


def make_dispatcher(policy: str) -> Dispatcher:
    """The dispatcher of that name."""
    ratios = network_ratios()
    if policy == "oltunes":
        return OltunesDispatcher(rules=DispatchRules(ratios=ratios))
    if policy == "orion":
        return OrionDispatcher(ratios=ratios)
    if policy == "reserve_and_pack":
        return PackingDispatcher(
            reservation=Reservation(high_end=HIGH_END, heavy=HEAVY)
        )
    return LeastCostDispatcher(prices_usd_per_hour=PRICES_USD_PER_HOUR)


def cluster() -> Iterator[SimGpu]:
    """Table 5's eight GPUs at their highest clocks."""
    for gpu_type in load_gpu_types(CLUSTER):
        for index in range(CLUSTER[gpu_type.name]):
            yield SimGpu(
                id=GpuId(f"{gpu_type.name}/gpu-{index}"),
                gpu_type=gpu_type.name,
                memory_mib=gpu_type.memory_mib,
                clock_mhz=gpu_type.clocks_mhz[-1],
            )


def requests_of(case: Case) -> tuple[JobRequest, ...]:
    """The jobs of a case."""
    arrivals = Arrivals(
        pattern=case.pattern,
        length_s=case.length_s,
        seed=case.seed,
        traces=tuple(traces(case)),
    )
    return make_requests([_kind(kind, case) for kind in KINDS], arrivals)


def traces(case: Case) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Azure's LLM services by the second; every seed begins elsewhere."""
    start = 120 * case.seed
    for service in ("code", "conv"):
        counts = [
            float(row["requests"])
            for row in read("azure_llm_per_second.csv")
            if row["service"] == service
        ]
        yield service, tuple(counts[start:] + counts[:start])


def network_ratios() -> dict[str, float]:
    """Equation 1 by network: from kernels where they were profiled, else from the measured sensitivity."""
    sensitivity = {
        points.network: points.sensitivity
        for points in load_profiles(gpu_types=["V100-16GB"])
    }
    return ratios_of(load_kernel_ratios(), sensitivity)


def make_settler(truth: Truth, gpus: Sequence[SimGpu], *, is_tuned: bool) -> Settler:
    """Who gives jobs their settings: tuned, or as submitted."""
    return Settler(
        tune=tune if is_tuned else as_submitted,
        foresight=Foresight(),
        gpus=gpus,
        tdp_w={gpu.gpu_type: truth.tdp_w(gpu.gpu_type) for gpu in gpus},
        grids={network: make_grid(truth, network) for network in ACCURACY},
    )


def make_grid(truth: Truth, network: str) -> Grid:
    """Table 3's SM percents, and its batches as far as they were measured."""
    batches = tuple(size for size in (1, 2, 4, 8) if size <= truth.max_batch(network))
    memory = {batch: truth.memory_mib(network, batch) for batch in batches}
    return Grid(
        sm_percents=tuple(float(percent) for percent in range(5, 101, 5)),
        batches=batches,
        memory_mib=memory,
    )


def history(
    truth: Truth, gpus: Sequence[SimGpu]
) -> list[tuple[ServedConditions, float]]:
    """Runs alone that were noted before: operating points at random."""
    random = np.random.default_rng(0)
    clocks = {gpu.gpu_type: gpu.clock_mhz for gpu in gpus}
    rows = []
    for _ in range(HISTORY_ROWS):
        network = str(random.choice(sorted(ACCURACY)))
        gpu_type = str(random.choice(sorted(clocks)))
        batch, percent = (
            int(random.choice((1, 2, 4, 8))),
            float(random.integers(1, 21) * 5),
        )
        placed = RunningPart(
            network=network,
            gpu_type=gpu_type,
            sm_percent=percent,
            batch=batch,
            clock_mhz=clocks[gpu_type],
        )
        noise = 1.0 + truth.noise_cv(network) * float(random.standard_normal())
        row = ServedConditions(network, gpu_type, float(batch), percent)
        rows.append((row, truth.execution_ms(placed, batch) * noise))
    return rows


def _kind(kind: PaperKind, case: Case) -> JobKind:
    best = max(ACCURACY[network] for network in kind.networks)
    variants = [
        Variant(network=network, accuracy=ACCURACY[network])
        for network in kind.networks
    ]
    rate_rps = kind.uniform_rps if case.pattern == "uniform" else kind.poisson_rps
    return JobKind(
        name=kind.name,
        rate_rps=rate_rps * case.load,
        variants=tuple(
            variant for variant in variants if variant.accuracy >= ACCURACY_FLOOR * best
        ),
        inputs=tuple(size for size in SIZES if size <= kind.largest),
        slo_ms=kind.slo_ms,
        critical_share=0.1 if kind.is_language else 0.9,
        trace="code" if kind.is_language else "conv",
    )
