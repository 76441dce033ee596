"""What other programs' Prometheus metrics mean in our nouns: a table of names, old and new, and how to read by it.

    page = read_page(text)
    read_server(page, "vllm", "llama-3-8b")     -> ServerCounts, since the server's start
    read_gpus(page)                             -> GpuCounts of every GPU that a DCGM exporter tells of

Names are tried in the order of the table, and the first that is there counts: some versions emit an old name and its
successor together. A counter is found with and without `_total`. Labels are compared without regard to case: DCGM's
`Hostname` became `hostname`. What a program does not tell is None.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Literal, TypeAlias

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

ServerKind: TypeAlias = Literal["vllm", "triton", "mlserver"]
Page: TypeAlias = Mapping[str, tuple[Sample, ...]]
"""Samples by their name."""
MAX_LINE = 65_536
"""Characters; lines of real pages have some hundred. The parser copies the rest of a line for each of its labels: 1 MiB
of labels in one line takes it 6.5 s, 0.25 MiB 0.3 s, and 4 MiB in lines of this length 2 s."""


@dataclass(frozen=True, slots=True)
class Name:
    """One name that a quantity goes by, and what its unit is multiplied by to get ours."""

    name: str
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts by bucket; the last bucket has no end."""

    ends_ms: tuple[float, ...]
    """Ascending; infinity is the last."""
    counts: tuple[int, ...]
    """How many each bucket holds alone."""

    def since(self, before: "Histogram | None") -> "Histogram":
        """What came after an earlier reading; all of it where the program started anew."""
        # Other buckets are another version of the server, whose counts cannot be compared.
        if before is None or before.ends_ms != self.ends_ms:
            return self
        counts = tuple(
            now - then for now, then in zip(self.counts, before.counts, strict=True)
        )
        return (
            self
            # A count that fell shows a restart: everything since then is new.
            if min(counts, default=0) < 0
            else Histogram(ends_ms=self.ends_ms, counts=counts)
        )

    def within(self, limit_ms: float) -> float:
        """How many took at most so long, as if they were spread evenly over their bucket."""
        found, begin_ms = 0.0, 0.0
        for end_ms, count in zip(self.ends_ms, self.counts, strict=True):
            if end_ms <= limit_ms:
                found += count
            elif begin_ms < limit_ms and math.isfinite(end_ms):
                found += count * (limit_ms - begin_ms) / (end_ms - begin_ms)
            begin_ms = end_ms
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCounts:
    """What a server of networks tells of one of them, since it started."""

    served: float | None = None
    failed: float | None = None
    rows: float | None = None
    """Rows of all batches that ran."""
    batches: float | None = None
    busy_s: float | None = None
    """In which batches ran."""
    waiting: float | None = None
    """Now."""
    running: float | None = None
    """Now."""
    memory_used_ratio: float | None = None
    """Used share of the memory for keys and values, now."""
    prompt_tokens: float | None = None
    found_tokens: float | None = None
    """The part of them that its cache of prefixes had."""
    generated_tokens: float | None = None
    preemptions: float | None = None
    total_s: float | None = None
    """Sum of the latencies."""
    latency: Histogram | None = None
    first_token: Histogram | None = None
    between_tokens: Histogram | None = None
    in_queue: Histogram | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCounts:
    """What a DCGM exporter tells of one GPU, or of one slice of it."""

    index: str
    uuid: str = ""
    host: str = ""
    slice: str = ""
    """Number of the MIG slice; empty for a whole GPU."""
    power_w: float | None = None
    energy_j: float | None = None
    """Since the driver was loaded."""
    memory_used_mib: float | None = None
    memory_free_mib: float | None = None
    busy_ratio: float | None = None
    sm_active_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    engine_active_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    newest_xid: float | None = None


SERVICE_LABEL: Mapping[ServerKind, str] = {
    "vllm": "model_name",
    "triton": "model",
    "mlserver": "model",
}
"""The label that names what is served."""

SERVERS: Mapping[ServerKind, Mapping[str, tuple[Name, ...]]] = {
    "vllm": {
        "served": (Name("vllm:request_success"),),
        # A token that follows another one counts as a batch: their mean time is what steps take.
        "batches": (
            Name("vllm:inter_token_latency_seconds_count"),
            Name("vllm:time_per_output_token_seconds_count"),
        ),
        "busy_s": (
            Name("vllm:inter_token_latency_seconds_sum"),
            Name("vllm:time_per_output_token_seconds_sum"),
        ),
        "waiting": (Name("vllm:num_requests_waiting"),),
        "running": (Name("vllm:num_requests_running"),),
        "memory_used_ratio": (
            Name("vllm:kv_cache_usage_perc"),
            Name("vllm:gpu_cache_usage_perc"),
        ),
        "prompt_tokens": (Name("vllm:prompt_tokens"),),
        "found_tokens": (
            Name("vllm:prefix_cache_hits"),
            Name("vllm:gpu_prefix_cache_hits"),
        ),
        "generated_tokens": (Name("vllm:generation_tokens"),),
        "preemptions": (Name("vllm:num_preemptions"),),
        "total_s": (Name("vllm:e2e_request_latency_seconds_sum"),),
        "latency": (Name("vllm:e2e_request_latency_seconds", 1e3),),
        "first_token": (Name("vllm:time_to_first_token_seconds", 1e3),),
        "between_tokens": (
            Name("vllm:inter_token_latency_seconds", 1e3),
            Name("vllm:time_per_output_token_seconds", 1e3),
        ),
        "in_queue": (Name("vllm:request_queue_time_seconds", 1e3),),
    },
    "triton": {
        "served": (Name("nv_inference_request_success"),),
        "failed": (Name("nv_inference_request_failure"),),
        "rows": (Name("nv_inference_count"),),
        "batches": (Name("nv_inference_exec_count"),),
        "busy_s": (Name("nv_inference_compute_infer_duration_us", 1e-6),),
        "waiting": (Name("nv_inference_pending_request_count"),),
        "total_s": (Name("nv_inference_request_duration_us", 1e-6),),
        "first_token": (Name("nv_inference_first_response_histogram_ms"),),
    },
    "mlserver": {
        "served": (Name("model_infer_request_success"),),
        "failed": (Name("model_infer_request_failure"),),
    },
}

HISTOGRAMS = frozenset({"latency", "first_token", "between_tokens", "in_queue"})

GPUS: Mapping[str, tuple[Name, ...]] = {
    "power_w": (Name("DCGM_FI_DEV_BOARD_POWER_WATTS"), Name("DCGM_FI_DEV_POWER_USAGE")),
    "energy_j": (Name("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e-3),),
    "memory_used_mib": (Name("DCGM_FI_DEV_FB_USED"),),
    "memory_free_mib": (Name("DCGM_FI_DEV_FB_FREE"),),
    "busy_ratio": (
        Name("DCGM_FI_DEV_GPU_UTIL_RATIO"),
        Name("DCGM_FI_DEV_GPU_UTIL", 0.01),
    ),
    "sm_active_ratio": (
        Name("DCGM_FI_PROF_SM_UTIL_RATIO"),
        Name("DCGM_FI_PROF_SM_ACTIVE"),
    ),
    "sm_occupancy_ratio": (
        Name("DCGM_FI_PROF_SM_OCCUPANCY_RATIO"),
        Name("DCGM_FI_PROF_SM_OCCUPANCY"),
    ),
    "engine_active_ratio": (
        Name("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"),
        Name("DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
    ),
    "tensor_active_ratio": (
        Name("DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
        Name("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
    ),
    "dram_active_ratio": (
        Name("DCGM_FI_PROF_DRAM_UTIL_RATIO"),
        Name("DCGM_FI_PROF_DRAM_ACTIVE"),
    ),
    "clock_mhz": (Name("DCGM_FI_DEV_SM_CLOCK"),),
    "memory_clock_mhz": (Name("DCGM_FI_DEV_MEM_CLOCK"),),
    "temperature_c": (Name("DCGM_FI_DEV_GPU_TEMP"),),
    "newest_xid": (Name("DCGM_FI_DEV_XID_ERRORS"),),
}


class NotAPage(ValueError):
    """The text holds no Prometheus metrics."""


def read_page(text: str) -> Page:
    """Everything in a text, by name. Raises NotAPage."""
    found: dict[str, list[Sample]] = defaultdict(list)
    if max(map(len, text.split("\n"))) > MAX_LINE:
        raise NotAPage(
            f"holds no Prometheus metrics: a line has more than {MAX_LINE} characters"
        )
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name].append(sample)
    except ValueError as error:
        raise NotAPage(f"holds no Prometheus metrics: {str(error)[:200]}") from error
    return {name: tuple(samples) for name, samples in found.items()}


def read_server(page: Page, kind: ServerKind, served_as: str) -> ServerCounts:
    """What a server tells of the network that it calls so; sums over its other labels."""
    label = SERVICE_LABEL[kind]
    found: dict[str, float | Histogram | None] = {}
    for quantity, names in SERVERS[kind].items():
        read = _histogram if quantity in HISTOGRAMS else _total
        values = (read(page, name, label, served_as) for name in names)
        # An old name and its successor may both be there: adding them would count twice.
        found[quantity] = next((value for value in values if value is not None), None)
    return ServerCounts(**found)  # type: ignore[arg-type]


def read_gpus(page: Page) -> tuple[GpuCounts, ...]:
    """Every GPU and slice, by host, number and slice."""
    found: dict[tuple[str, str, str, str], dict[str, float]] = defaultdict(dict)
    wanted = [(quantity, name) for quantity, names in GPUS.items() for name in names]
    for quantity, name in wanted:
        for sample in _samples(page, name.name):
            labels = {label.lower(): value for label, value in sample.labels.items()}
            gpu = tuple(
                labels.get(each, "") for each in ("hostname", "gpu", "gpu_i_id", "uuid")
            )
            # A value that is not finite says nothing, and JSON cannot hold it.
            if math.isfinite(sample.value):
                # The first name that has a value counts, as in `read_server`.
                found[gpu].setdefault(quantity, sample.value * name.factor)  # type: ignore[index]
    return tuple(
        GpuCounts(
            host=host,
            index=index,
            slice=mig,
            uuid=uuid,
            **found[host, index, mig, uuid],
        )
        for host, index, mig, uuid in sorted(found)
    )


def told(counts: ServerCounts | GpuCounts) -> dict[str, float | str | Histogram]:
    """What is known, by name."""
    pairs = ((field.name, getattr(counts, field.name)) for field in fields(counts))
    return {name: value for name, value in pairs if value not in (None, "")}


def _samples(page: Page, name: str) -> tuple[Sample, ...]:
    return page.get(name) or page.get(f"{name}_total") or ()


def _of(samples: Iterable[Sample], label: str, value: str) -> list[Sample]:
    return [sample for sample in samples if sample.labels.get(label) == value]


def _total(page: Page, name: Name, label: str, value: str) -> float | None:
    values = [sample.value for sample in _of(_samples(page, name.name), label, value)]
    return sum(values) * name.factor if values else None


def _histogram(page: Page, name: Name, label: str, value: str) -> Histogram | None:
    below: dict[float, float] = defaultdict(float)
    for sample in _of(page.get(f"{name.name}_bucket", ()), label, value):
        below[float(sample.labels["le"]) * name.factor] += sample.value
    if not below:
        return None
    ends = tuple(sorted(below))
    cumulative = (0.0, *(below[end] for end in ends))
    # Prometheus' buckets are cumulative; ours hold what is in each alone.
    counts = tuple(round(upto - before) for before, upto in pairwise(cumulative))
    return Histogram(ends_ms=ends, counts=counts)
