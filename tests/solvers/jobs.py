"""Jobs, settings and GPUs, naming only what a test is about."""

import math
from collections.abc import Sequence

from solvers.papers.oltunes.tuning_score import best_types, mean_latency_s
from solvers.types.jobs import Job, JobGpu, JobSetting, Resident
from solvers.types.state import GpuId, Variant


def a_setting(
    network: str = "net",
    gpu_type: str = "fast",
    *,
    sm_percent: float = 25.0,
    batch: int = 4,
    memory_mib: float = 1000.0,
    latency_s: float = 1.0,
    score: float = 1.0,
) -> JobSetting:
    return JobSetting(
        network=network,
        gpu_type=gpu_type,
        sm_percent=sm_percent,
        batch=batch,
        clock_mhz=1000.0,
        memory_mib=memory_mib,
        latency_s=latency_s,
        gpu_throughput_rps=1.0,
        score=score,
    )


def a_job(
    name: str,
    *settings: JobSetting,
    weight: float = 0.75,
    inputs: int = 8,
    queued_s: float = 0.0,
    deadline_s: float = math.inf,
    variants: Sequence[Variant] = (),
    failures: int = 0,
    types: Sequence[str] | None = None,
) -> Job:
    own = settings or (a_setting(),)
    chosen = best_types(own) if types is None else tuple(types)
    return Job(
        name=name,
        weight=weight,
        inputs=inputs,
        queued_s=queued_s,
        deadline_s=deadline_s,
        variants=tuple(variants),
        settings=own,
        best_types=chosen,
        mean_latency_s=mean_latency_s(own, chosen),
        failures=failures,
    )


def a_gpu(
    name: str = "g1",
    *residents: Resident,
    gpu_type: str = "fast",
    memory_mib: float = 16000.0,
    sm_percent: float = 100.0,
    has_early_end: bool = False,
) -> JobGpu:
    return JobGpu(
        id=GpuId(name),
        gpu_type=gpu_type,
        memory_mib=memory_mib,
        sm_percent=sm_percent,
        residents=residents,
        has_early_end=has_early_end,
    )


def a_resident(
    name: str = "old",
    *,
    sm_percent: float = 50.0,
    done_share: float = 0.0,
    memory_mib: float = 1000.0,
    is_latency_critical: bool = False,
    network: str = "net",
) -> Resident:
    return Resident(
        name, sm_percent, memory_mib, done_share, is_latency_critical, network
    )
