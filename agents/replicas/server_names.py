"""What vLLM, Triton, MLServer and DCGM's exporter call things: our quantities, and their names, old and new."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

ServerKind: TypeAlias = Literal["vllm", "triton", "mlserver"]


@dataclass(frozen=True, slots=True)
class Name:
    """One name that a quantity goes by, and what its unit is multiplied by to get ours."""

    name: str
    factor: float = 1.0


SERVICE_LABEL: Mapping[ServerKind, str] = {
    "vllm": "model_name",
    "triton": "model",
    "mlserver": "model",
}
"""The label that names what is served."""

SERVERS: Mapping[ServerKind, Mapping[str, tuple[Name, ...]]] = {
    "vllm": {
        "served": (Name("vllm:request_success"),),
        # Of a full server; it counts clients that leave nowhere.
        "failed": (Name("vllm:admission_rejections"),),
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
        "mean_gaps": (Name("vllm:request_time_per_output_token_seconds", 1e3),),
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
        # A summary of seconds, without quantiles.
        "total_s": (Name("model_infer_request_duration_sum"),),
    },
}

HISTOGRAMS = frozenset(
    {"latency", "first_token", "between_tokens", "mean_gaps", "in_queue"}
)
RATIOS = frozenset({"memory_used_ratio"})
"""Engines of one server have equal memories: of several, the mean is the share of all."""

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
}

XIDS = "DCGM_FI_DEV_XID_ERRORS"
"""The value is the number of an error; an exporter may tell several of a GPU, a series each."""
XID_COUNTS = ("DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_XID_ERRORS_TOTAL")
"""How often each came; the label `xid` is its number."""
