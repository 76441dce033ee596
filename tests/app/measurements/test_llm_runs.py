"""Other tools' results as runs, and what is wrong with a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.measurements.llm_runs import ServerRun, read_runs
from solvers.types.errors import InvalidInput

VLLM = {
    "max_concurrency": 16,
    "completed": 100,
    "total_input_tokens": 50_000,
    "total_output_tokens": 20_000,
    "mean_tpot_ms": 12.5,
}
RUN = ServerRun(clients=16.0, prompt=500.0, output=200.0, tpot_ms=12.5)


def mean(value: float) -> dict[str, Any]:
    return {"successful": {"mean": value}}


GUIDELLM = {
    "benchmarks": [
        {
            "metrics": {
                "request_concurrency": mean(16.0),
                "prompt_token_count": mean(500.0),
                "output_token_count": mean(200.0),
                "inter_token_latency_ms": mean(12.5),
            }
        }
    ]
}
AIPERF = {
    "input_config": {"loadgen": {"concurrency": 16}},
    "input_sequence_length": {"unit": "tokens", "avg": 500.0},
    "output_sequence_length": {"unit": "tokens", "avg": 200.0},
    "inter_token_latency": {"unit": "ms", "avg": 12.5},
}
GENAI_PERF = {
    **AIPERF,
    "input_config": {"perf_analyzer": {"stimulus": {"concurrency": 16}}},
}


def written(folder: Path, document: object) -> Path:
    path = folder / "run.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("document", [VLLM, GUIDELLM, AIPERF, GENAI_PERF])
def test_each_tools_result_is_the_same_run(tmp_path: Path, document: object) -> None:
    assert read_runs(written(tmp_path, document)) == (RUN,)


@pytest.mark.parametrize(
    ("document", "field", "words"),
    [
        ([], "run.json", "has 0 runs"),
        ([1], "run.json:1:1: document", "must be an object"),
        ({}, "run.json", "is no result of"),
        ({"benchmarks": []}, "run.json", "has 0 runs"),
        ({"metadata": {}, "metrics": {}}, "run.json", "give profile_export_aiperf"),
        ({"experiments": []}, "run.json", "holds single requests of perf_analyzer"),
        ({**VLLM, "max_concurrency": None}, "run.json: max_concurrency", "is missing"),
        ({**VLLM, "completed": 0}, "run.json: completed", "no number above 0"),
        ({**VLLM, "mean_tpot_ms": True}, "run.json: mean_tpot_ms", "is missing"),
        ({**VLLM, "mean_tpot_ms": 10**400}, "run.json: mean_tpot_ms", "is missing"),
        (
            {"benchmarks": [{"metrics": {}}]},
            "run.json: benchmarks[0]: metrics.request_concurrency.successful.mean",
            "is missing",
        ),
        (
            {**AIPERF, "input_config": {}},
            "run.json: input_config.concurrency",
            "is missing",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_named(
    tmp_path: Path, document: object, field: str, words: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_runs(written(tmp_path, document))

    assert caught.value.field == f"{tmp_path}/{field}"
    assert words in caught.value.problem


def strategy(kind: str, where: str = "config", **fields: object) -> dict[str, Any]:
    """GuideLLM's result of a run with a strategy, in which fewer than the configured were in flight."""
    entry = GUIDELLM["benchmarks"][0]
    metrics = entry["metrics"] | {"request_concurrency": mean(0.87)}
    return {
        "benchmarks": [
            {"metrics": metrics, where: {"strategy": {"type_": kind, **fields}}}
        ]
    }


def phases(*entries: dict[str, Any]) -> dict[str, Any]:
    return {**AIPERF, "input_config": {"phases": list(entries)}}


WARM_UP = {"name": "warmup", "kind": "warmup", "type": "concurrency", "concurrency": 2}
PHASE = {
    "name": "profiling",
    "kind": "profiling",
    "type": "concurrency",
    "concurrency": 16,
}


@pytest.mark.parametrize(
    ("document", "clients"),
    [
        # AIPerf until 0.8, since 0.9, and where nothing but the result says how many were in flight.
        (AIPERF, 16.0),
        (phases(WARM_UP, PHASE), 16.0),
        (phases({**PHASE, "exclude_from_results": True}, PHASE), 16.0),
        (phases({"type": "concurrency", "concurrency": 16}), 16.0),
        ({**AIPERF, "input_config": {"phases": PHASE}}, 16.0),
        # One client is AIPerf's default.
        (phases({"kind": "profiling", "type": "concurrency"}), 1.0),
        ({**AIPERF, "input_config": {}, "effective_concurrency": {"avg": 0.9}}, 1.0),
        # GenAI-Perf: nested, flat, and with its metrics in an object of their own.
        (GENAI_PERF, 16.0),
        ({**AIPERF, "input_config": {"concurrency": 16, "request_rate": None}}, 16.0),
        (
            {
                "input_config": {"concurrency": 16},
                "records": {
                    name: each
                    for name, each in AIPERF.items()
                    if name != "input_config"
                },
            },
            16.0,
        ),
        # GuideLLM: as configured, whatever was in flight.
        (strategy("synchronous"), 1.0),
        (strategy("concurrent", streams=4), 4.0),
        (strategy("concurrent", "args", streams=4), 4.0),
        (strategy("throughput", max_concurrency=32), 32.0),
        (strategy("poisson", rate=3.0), 1.0),
        (GUIDELLM, 16.0),
    ],
)
def test_the_clients_are_those_that_were_configured(
    tmp_path: Path, document: object, clients: float
) -> None:
    (run,) = read_runs(written(tmp_path, document))
    assert (run.clients, run.prompt, run.output, run.tpot_ms) == (
        clients,
        500.0,
        200.0,
        12.5,
    )


@pytest.mark.parametrize(
    ("unit", "avg"),
    [
        ("ms", 12.5),
        ("us", 12_500.0),
        ("µs", 12_500.0),
        ("ns", 12.5e6),
        ("s", 0.0125),
        ("sec", 0.0125),
        (None, 12.5),
    ],
)
def test_times_are_read_in_their_unit(
    tmp_path: Path, unit: str | None, avg: float
) -> None:
    metric = {"unit": unit, "avg": avg} if unit else {"avg": avg}
    (run,) = read_runs(written(tmp_path, {**AIPERF, "inter_token_latency": metric}))
    assert run.tpot_ms == pytest.approx(12.5)


SGLANG = {
    **VLLM,
    "backend": "sglang",
    "request_rate": float("inf"),
    "mean_e2e_latency_ms": 2600.0,
}


@pytest.mark.parametrize(
    ("text", "clients"),
    [
        (
            f"{json.dumps(VLLM)}\n{json.dumps({**VLLM, 'max_concurrency': 4})}\n",
            [16.0, 4.0],
        ),
        (json.dumps(VLLM, indent=4) + json.dumps(SGLANG), [16.0, 16.0]),
        (json.dumps([VLLM, SGLANG]), [16.0, 16.0]),
        ("\ufeff" + json.dumps(SGLANG) + "\n", [16.0]),
    ],
)
def test_appended_results_are_runs_of_their_own(
    tmp_path: Path, text: str, clients: list[float]
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    assert [run.clients for run in read_runs(path)] == clients


FAILING = {
    "request_totals": {"successful": 190, "errored": 10, "incomplete": 60, "total": 260}
}


@pytest.mark.parametrize(
    ("document", "note"),
    [
        ({**VLLM, "failed": 5}, "5 of 105 requests failed, and are left out"),
        ({**VLLM, "num_prompts": 105}, "5 of 105 requests failed"),
        ({**VLLM, "errors": ["", "timed out"] + [""] * 99}, "1 of 101 requests failed"),
        (
            {**AIPERF, "request_count": {"avg": 95}, "error_request_count": {"avg": 5}},
            "5 of 100 requests",
        ),
        (
            {
                **AIPERF,
                "request_count": {"avg": 95},
                "error_summary": [{"count": 3}, {"count": 2}],
            },
            "5 of 100",
        ),
        # What was under way at the end did not fail.
        (
            {"benchmarks": [GUIDELLM["benchmarks"][0] | FAILING]},
            "benchmarks[0]: 10 of 200 requests",
        ),
        ({**VLLM, "failed": 0}, ""),
    ],
)
def test_failures_are_noted(tmp_path: Path, document: object, note: str) -> None:
    (run,) = read_runs(written(tmp_path, document))
    assert note in run.note
    assert bool(run.note) is bool(note)


METRICS = GUIDELLM["benchmarks"][0]["metrics"]
DETAILED = {
    **VLLM,
    "duration": 250.0,
    "request_throughput": 0.4,
    "output_throughput": 80.0,
}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        # Failures.
        ({**VLLM, "completed": 12, "failed": 188}, "188 of 200 requests failed"),
        ({**VLLM, "completed": 12, "num_prompts": 200}, "188 of 200 requests failed"),
        ({**VLLM, "completed": 0, "failed": 200, "mean_tpot_ms": 0.0}, "200 of 200"),
        (
            {
                **AIPERF,
                "request_count": {"avg": 12},
                "error_request_count": {"avg": 188},
            },
            "188 of 200",
        ),
        (
            {
                "benchmarks": [
                    {
                        "metrics": METRICS
                        | {"request_totals": {"successful": 12, "errored": 188}}
                    }
                ]
            },
            "benchmarks[0]: 188 of 200",
        ),
        # Figures that contradict each other.
        (
            {**DETAILED, "request_throughput": 40.0},
            "100 requests in 250 s are 0.4 per second",
        ),
        ({**DETAILED, "output_throughput": 8.0}, "are 80 tokens per second, not 8"),
        (
            {**DETAILED, "mean_e2el_ms": 90_000.0},
            "are 36 at a time, more than the 16 of the clients",
        ),
        (
            {**VLLM, "median_ttft_ms": 90.0, "p99_ttft_ms": 30.0},
            "ttft_ms: the median is 90, above p99",
        ),
        (
            {**VLLM, "mean_ttft_ms": 900.0, "mean_e2e_latency_ms": 90.0},
            "the first token comes after 900 ms",
        ),
        (
            {
                **AIPERF,
                "request_latency": {
                    "unit": "ms",
                    "avg": 90.0,
                    "p50": 95.0,
                    "p99": 60.0,
                },
            },
            "p99, which is 60",
        ),
        (
            {
                **AIPERF,
                "request_throughput": {"unit": "requests/sec", "avg": 50.0},
                "request_latency": {"unit": "sec", "avg": 2.6},
            },
            "are 130 at a time",
        ),
        (
            {
                "benchmarks": [
                    {
                        "metrics": METRICS
                        | {
                            "time_to_first_token_ms": {
                                "successful": {"percentiles": {"p50": 9.0, "p999": 2.0}}
                            }
                        }
                    }
                ]
            },
            "p99.9, which is 2",
        ),
        # No fixed number of clients.
        ({**VLLM, "max_concurrency": None}, "by --max-concurrency"),
        (
            {**DETAILED, "request_rate": 0.4, "mean_e2el_ms": 2600.0},
            "measure with --request-rate inf",
        ),
        (
            {**AIPERF, "input_config": {"concurrency": None, "request_rate": 8.0}},
            "at a fixed rate, of 8 per second",
        ),
        (
            phases(WARM_UP, {**PHASE, "type": "poisson", "rate": 5.0}),
            "at a fixed rate, of 5 per second",
        ),
        (phases(PHASE, PHASE), "several phases that measure"),
        (phases({**PHASE, "type": "fixed_schedule"}), "requests at given times"),
        (
            {**AIPERF, "input_config": {"input": {"fixed_schedule": True}}},
            "requests at given times",
        ),
        # Units and streaming.
        (
            {**AIPERF, "inter_token_latency": {"unit": "tokens", "avg": 12.5}},
            "inter_token_latency.unit: is 'tokens'",
        ),
        (
            {**AIPERF, "output_sequence_length": {"unit": "ms", "avg": 12.5}},
            "output_sequence_length.unit: is 'ms'",
        ),
        (
            {"request_latency": {"avg": 5.0}, "input_config": {}},
            "measure with streaming",
        ),
    ],
)
def test_a_run_that_says_nothing_true_of_its_server_is_refused(
    tmp_path: Path, document: object, words: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_runs(written(tmp_path, document))
    assert words in str(caught.value)


def test_a_limited_rate_counts_where_it_kept_the_clients_busy(tmp_path: Path) -> None:
    # 6 requests per second of 2.6 s each are 15.6 of 16 clients.
    busy = {
        **DETAILED,
        "duration": 100 / 6,
        "request_throughput": 6.0,
        "output_throughput": 1200.0,
    }
    document = {**busy, "request_rate": 50.0, "mean_e2el_ms": 2600.0}
    assert read_runs(written(tmp_path, document))[0].clients == 16.0
