"""Other programs' metrics in our nouns: each program's own words as it documents them, old and new."""

import math

import pytest

from agents.replicas.server_metrics import (
    MAX_LINE,
    Histogram,
    NotAPage,
    known,
    read_gpus,
    read_page,
    read_server,
)
from agents.replicas.server_names import ServerKind

VLLM_NEW = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="llama"} 12
vllm:num_requests_waiting{engine="0",model_name="llama"} 3
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="llama"} 0.75
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{engine="0",model_name="llama"} 0.5
# TYPE vllm:request_success counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="llama"} 90
vllm:request_success_total{engine="0",finished_reason="length",model_name="llama"} 10
vllm:request_success_total{engine="0",finished_reason="stop",model_name="other"} 1000
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="llama"} 5000
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.5",model_name="llama"} 60
vllm:e2e_request_latency_seconds_bucket{engine="0",le="1.0",model_name="llama"} 90
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="llama"} 100
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="llama"} 55.5
vllm:e2e_request_latency_seconds_count{engine="0",model_name="llama"} 100
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.05",model_name="llama"} 7
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="llama"} 8
"""

VLLM_OLD = """\
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="llama"} 0.5
# TYPE vllm:time_per_output_token_seconds histogram
vllm:time_per_output_token_seconds_bucket{le="0.025",model_name="llama"} 4
vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="llama"} 4
"""

TRITON = """\
nv_inference_request_success{model="resnet",version="1"} 40
nv_inference_request_success{model="resnet",version="2"} 2
nv_inference_request_failure{model="resnet",reason="REJECTED",version="1"} 2
nv_inference_request_failure{model="resnet",reason="BACKEND",version="1"} 1
nv_inference_count{model="resnet",version="1"} 160
nv_inference_exec_count{model="resnet",version="1"} 10
nv_inference_pending_request_count{model="resnet",version="1"} 3
nv_inference_request_duration_us{model="resnet",version="1"} 2500000
nv_inference_compute_infer_duration_us{model="resnet",version="1"} 1500000
nv_inference_request_success{model="other",version="1"} 9
"""

MLSERVER = """\
model_infer_request_success_total{model="iris",version="v1"} 40
model_infer_request_failure_total{model="iris",version="v1"} 2
model_infer_request_duration_count{model="iris",version="v1"} 42
model_infer_request_duration_sum{model="iris",version="v1"} 3.5
"""

ENGINES = """\
vllm:num_requests_waiting{engine="0",model_name="llama"} 3
vllm:num_requests_waiting{engine="1",model_name="llama"} 4
vllm:kv_cache_usage_perc{engine="0",model_name="llama"} 0.75
vllm:kv_cache_usage_perc{engine="1",model_name="llama"} 0.5
vllm:admission_rejections_total{reason="max_num_queued_reqs"} 5
vllm:admission_rejections_total{reason="max_num_queued_tokens"} 4
"""

DCGM_OLD = """\
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",Hostname="n1"} 301.5
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-b",Hostname="n1"} 75
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a",Hostname="n1"} 5000
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",Hostname="n1"} 2048
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",Hostname="n1"} 80
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-a",Hostname="n1"} 0.4
DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-b",Hostname="n1"} NaN
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a",Hostname="n1"} 1980
"""

DCGM_NEW = """\
DCGM_FI_DEV_BOARD_POWER_WATTS{gpu="0",uuid="GPU-a",hostname="n1",GPU_I_ID="3",GPU_I_PROFILE="1g.18gb"} 300
DCGM_FI_DEV_POWER_USAGE{gpu="0",uuid="GPU-a",hostname="n1",GPU_I_ID="3",GPU_I_PROFILE="1g.18gb"} 299
DCGM_FI_DEV_GPU_UTIL_RATIO{gpu="0",uuid="GPU-a",hostname="n1",GPU_I_ID="3",GPU_I_PROFILE="1g.18gb"} 0.8
DCGM_FI_PROF_SM_UTIL_RATIO{gpu="0",uuid="GPU-a",hostname="n1",GPU_I_ID="3",GPU_I_PROFILE="1g.18gb"} 0.4
"""


def a_histogram(counts: dict[float, int]) -> Histogram:
    return Histogram(ends_ms=tuple(counts), counts=tuple(counts.values()))


@pytest.mark.parametrize(
    ("page", "server", "service", "expected"),
    [
        # New names win over old ones.
        (
            VLLM_NEW,
            "vllm",
            "llama",
            {
                "served": 100,
                "running": 12,
                "waiting": 3,
                "memory_used_ratio": 0.75,
                "generated_tokens": 5000,
                "total_s": 55.5,
                "latency": a_histogram({500.0: 60, 1000.0: 30, math.inf: 10}),
                "between_tokens": a_histogram({50.0: 7, math.inf: 1}),
            },
        ),
        (
            VLLM_OLD,
            "vllm",
            "llama",
            {
                "memory_used_ratio": 0.5,
                "between_tokens": a_histogram({25.0: 4, math.inf: 0}),
            },
        ),
        # Versions and reasons add up.
        (
            TRITON,
            "triton",
            "resnet",
            {
                "served": 42,
                "failed": 3,
                "rows": 160,
                "batches": 10,
                "waiting": 3,
                "total_s": 2.5,
                "busy_s": 1.5,
            },
        ),
        (TRITON, "triton", "bert", {}),
        (MLSERVER, "mlserver", "iris", {"served": 40, "failed": 2, "total_s": 3.5}),
        # Requests of several engines add up, shares of their memories do not.
        (
            ENGINES,
            "vllm",
            "llama",
            {"waiting": 7, "memory_used_ratio": 0.625, "failed": 9},
        ),
        ("", "vllm", "llama", {}),
    ],
)
def test_each_servers_words_are_read(
    page: str, server: ServerKind, service: str, expected: dict[str, object]
) -> None:
    assert known(read_server(read_page(page), server, service)) == expected


def test_dcgm_is_read_by_old_and_new_names_in_our_units() -> None:
    first, second = read_gpus(read_page(DCGM_OLD))
    used = {"busy_ratio": 0.8, "sm_active_ratio": 0.4}
    on_first = {"index": "0", "uuid": "GPU-a", "host": "n1", **used}
    read = {"power_w": 301.5, "energy_j": 5.0, "memory_used_mib": 2048}
    assert known(first) == {**on_first, **read, "clock_mhz": 1980}
    # NaN is not known.
    of_second = {"index": "1", "uuid": "GPU-b", "host": "n1", "power_w": 75}
    assert known(second) == of_second
    (gpu,) = read_gpus(read_page(DCGM_NEW))
    assert known(gpu) == {**on_first, "slice": "3", "power_w": 300}


BLANKS = [
    # 32 bits, 64 bits, floating point: blank, not found, not supported, not permitted.
    *(2**31 - 16 + kind for kind in range(4)),
    *(2**63 - 16 + kind for kind in range(4)),
    *(140737488355328.0 + kind for kind in range(4)),
]


@pytest.mark.parametrize("blank", BLANKS)
def test_what_dcgm_calls_blank_is_absent(blank: float) -> None:
    names = ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_XID_ERRORS")
    lines = [f'{name}{{gpu="0"}} {blank}' for name in names]
    read = read_gpus(
        read_page("\n".join([*lines, 'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 41', ""]))
    )
    assert [known(gpu) for gpu in read] == [{"index": "0", "temperature_c": 41}]


def test_large_figures_that_are_no_blanks_stay() -> None:
    """Two months at 700 W are 3.6e12 mJ, more than any number of 32 bits."""
    page = read_page('DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0"} 3600000000000\n')
    (gpu,) = read_gpus(page)
    assert gpu.energy_j == 3.6e9


@pytest.mark.parametrize(
    ("lines", "xids"),
    [
        (("DCGM_FI_DEV_XID_ERRORS{GPU} 0",), (0,)),
        (("DCGM_FI_DEV_XID_ERRORS{GPU} 79",), (79,)),
        # A series each, by the label that says what it means.
        (
            (
                'DCGM_FI_DEV_XID_ERRORS{GPU,err_code="45"} 45',
                'DCGM_FI_DEV_XID_ERRORS{GPU,err_code="79"} 79',
            ),
            (45, 79),
        ),
        # How often each came.
        (
            (
                "DCGM_FI_DEV_XID_ERRORS{GPU} 0",
                'DCGM_EXP_XID_ERRORS_COUNT{GPU,xid="13"} 2',
                'DCGM_EXP_XID_ERRORS_COUNT{GPU,xid="94"} 0',
                'DCGM_EXP_XID_ERRORS_TOTAL{GPU,xid="109"} 1',
            ),
            (13, 109),
        ),
    ],
)
def test_all_errors_of_a_gpu_are_told(
    lines: tuple[str, ...], xids: tuple[int, ...]
) -> None:
    text = "\n".join([*lines, ""]).replace("{GPU", '{gpu="0",UUID="u"')
    (gpu,) = read_gpus(read_page(text))
    assert gpu.xids == xids


@pytest.mark.parametrize(
    "text",
    ["<html>", "a{b", "name notanumber", f'a 1\na{{b="{"x" * MAX_LINE}"}} 1\na 1\n'],
)
def test_what_is_no_page_is_said_to_be_none(text: str) -> None:
    with pytest.raises(NotAPage):
        read_page(text)


@pytest.mark.parametrize(
    ("limit_ms", "within"),
    [(10.0, 4.0), (15.0, 7.0), (20.0, 10.0), (5.0, 2.0), (1000.0, 10.0)],
)
def test_requests_within_a_limit_are_spread_evenly_over_their_bucket(
    limit_ms: float, within: float
) -> None:
    assert a_histogram({10.0: 4, 20.0: 6, math.inf: 5}).within(limit_ms) == within
