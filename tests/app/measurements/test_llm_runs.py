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
        ({**VLLM, "max_concurrency": None}, "run.json: max_concurrency", "is missing"),
        ({**VLLM, "completed": 0}, "run.json: completed", "no number above 0"),
        ({**VLLM, "mean_tpot_ms": True}, "run.json: mean_tpot_ms", "is missing"),
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
