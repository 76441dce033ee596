"""Mudi's experiments as scenarios: a fleet of A100s, six services, and training of nine kinds that comes at random.

From the slides: 3 servers with 4 A100s each, and 1000 GPUs; the services' SLOs; the kinds of training with their batch
sizes as far as they were profiled, their size classes and fractions; one inference service per GPU, which every policy
is held to here (`max_replicas_per_gpu: 1`, as many GPUs per service). Ours: what stands in for networks without curves
(NETWORKS, KINDS); rates and how they burst (the Azure traces of 2023 that ship); sizes of tasks (SIZES, an order of
magnitude from S to XL, in minutes instead of hours); their arrivals, Poisson, at a load that is stated.

Load 1 is as much training as all GPUs together would get done if each did nothing else.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.catalogue.catalogue import load_profiles
from app.simulate.scenario.parts import TaskWork
from app.simulate.scenario.scenario import SimulationScenario
from app.simulate.scenario.tasks import iteration_ms

GPU_TYPE = "A100-40GB"
WARM_UP_S = 60.0
SUBMITTED = 0.6
"""Part of the time in which tasks come; the rest is for finishing them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """One service of the slides' table 1."""

    name: str
    network: str
    """What stands in for it."""
    slo_ms: float
    rate_rps: float
    """Of two GPUs together; ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One training task of the slides' table 3."""

    name: str
    network: str
    """What stands in for it."""
    batch: int
    size_s: float
    """Alone on a whole GPU, in the mean."""
    fraction: float


SERVICES = (
    Inference(name="resnet50", network="resnet50", slo_ms=150.0, rate_rps=120.0),
    Inference(name="inception", network="inception_v3", slo_ms=120.0, rate_rps=120.0),
    Inference(name="gpt2", network="convnext_small", slo_ms=100.0, rate_rps=80.0),
    Inference(name="bert", network="vgg16", slo_ms=330.0, rate_rps=200.0),
    Inference(name="roberta", network="regnet_x_8gf", slo_ms=110.0, rate_rps=60.0),
    Inference(name="yolos", network="resnet101", slo_ms=2200.0, rate_rps=120.0),
)
_S, _M, _L, _XL = 60.0, 180.0, 400.0, 1200.0
KINDS = (
    Kind(
        name="vgg16", network="resnet18-training", batch=256, size_s=_S, fraction=0.14
    ),
    Kind(
        name="squeezenet",
        network="resnet18-training",
        batch=64,
        size_s=_S,
        fraction=0.14,
    ),
    Kind(
        name="resnet50", network="resnet50-training", batch=64, size_s=_S, fraction=0.14
    ),
    Kind(
        name="ncf",
        network="recommendation-training",
        batch=2048,
        size_s=_M,
        fraction=0.12,
    ),
    Kind(name="lstm", network="lm-training", batch=20, size_s=_M, fraction=0.12),
    Kind(
        name="ad-gcl",
        network="transformer-training",
        batch=64,
        size_s=_M,
        fraction=0.12,
    ),
    Kind(name="bert", network="bert-training", batch=16, size_s=_L, fraction=0.12),
    Kind(name="yolov5", network="cyclegan-training", batch=1, size_s=_L, fraction=0.10),
    Kind(
        name="resnet18",
        network="resnet18-training",
        batch=128,
        size_s=_XL,
        fraction=0.02,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What differs between experiments."""

    policies: Sequence[str]
    duration_s: float
    load: float
    """Of training."""
    seed: int
    nodes: int = 3
    """Of four GPUs each."""

    @property
    def gpus(self) -> int:
        """All of them."""
        return 4 * self.nodes

    @property
    def gpus_per_service(self) -> int:
        """As even as it goes; what is over stays idle."""
        return self.gpus // len(SERVICES)


def make_scenario(setting: Setting) -> SimulationScenario:
    """The scenario with one seed, since tasks are drawn by it, too."""
    document: dict[str, Any] = {
        "kind": "Scenario",
        "metadata": {"name": "mudi"},
        "spec": {
            "duration_s": setting.duration_s,
            "warm_up_s": WARM_UP_S,
            "step_s": 30,
            "seeds": [setting.seed],
            "policies": list(setting.policies),
            "loop": {"period_s": 5, "max_replicas_per_gpu": 1},
            "agent_period_s": 5,
            "fleet": [
                {
                    "name": "a100",
                    "gpu_type": GPU_TYPE,
                    "nodes": setting.nodes,
                    "gpus_per_node": 4,
                    "launch_s": 10,
                }
            ],
            "services": [_service(each, setting.gpus_per_service) for each in SERVICES],
            "tasks": _tasks(setting),
        },
    }
    return SimulationScenario.model_validate(document)


def kind_of(task: str) -> str:
    """The kind of a task by its name."""
    return task.rpartition("-")[0]


def _service(each: Inference, gpus: int) -> dict[str, Any]:
    return {
        "name": each.name,
        "network": each.network,
        "slo": {"latency_ms": each.slo_ms, "percentile": 0.98},
        "scaling": {"min_replicas": gpus},
        "load": {"rate_rps": each.rate_rps * gpus / 2.0, "bursts": {"service": "conv"}},
    }


def _tasks(setting: Setting) -> list[dict[str, Any]]:
    points = load_profiles(sorted({kind.network for kind in KINDS}), [GPU_TYPE])
    draw = random.Random(setting.seed)
    fractions = [kind.fraction for kind in KINDS]
    mean_s = sum(kind.fraction * kind.size_s for kind in KINDS) / sum(fractions)
    tasks: list[dict[str, Any]] = []
    at_s = 0.0
    while (
        at_s := at_s + draw.expovariate(setting.gpus * setting.load / mean_s)
    ) < SUBMITTED * setting.duration_s:
        (kind,) = draw.choices(KINDS, fractions)
        step_ms = iteration_ms(
            TaskWork(network=kind.network, batch=kind.batch), GPU_TYPE, points
        )
        size_s = kind.size_s * draw.uniform(0.6, 1.4)
        tasks.append(
            {
                "name": f"{kind.name}-{len(tasks) + 1}",
                "kind": "training",
                "network": kind.network,
                "batch": kind.batch,
                "iterations": max(1, round(1000.0 * size_s / step_ms)),
                "submit_s": round(at_s, 1),
            }
        )
    return tasks
