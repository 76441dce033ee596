"""`plimsoll size`: replicas of language models, from a shipped network or a publisher's configuration."""

import json
from pathlib import Path

import pytest

from tests.app.runner import cli

SLO = ("--ttft-ms", "2000", "--itl-ms", "80")
CONFIG = {
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
}


def test_a_shipped_network_is_sized_on_one_gpu_type() -> None:
    result = cli("size Llama-3.1-8B-Instruct", *SLO, "--gpu-type", "H100")

    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["H100", tp] for tp in ("1", "2", "4", "8")
    ]


def test_a_configuration_says_what_programs_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))

    result = cli("size", str(path), *SLO, "--gpu-type", "L4", "-o", "json")

    first, *_ = json.loads(result.out)["items"]
    assert (first["gpu_type"], first["tp"], first["limit"]) == ("L4", 1, None)
    low, high = first["interval_rps"]
    assert 0.0 < low <= first["capacity_rps"] <= high
    assert first["usd_per_million_output_tokens"] > 0.0


@pytest.mark.thorough
def test_a_slice_is_sized_as_the_part_of_its_gpu_that_its_name_says() -> None:
    types = ("--gpu-type", "H100", "--gpu-type", "H100-MIG-3g.40gb")
    result = cli("size Llama-3.1-8B-Instruct", *SLO, *types, "-o", "json")

    whole, *_, part = json.loads(result.out)["items"]
    assert (part["gpu_type"], part["tp"]) == ("H100-MIG-3g.40gb", 1)
    assert 0.2 * whole["capacity_rps"] < part["capacity_rps"] < whole["capacity_rps"]
    assert (whole["provenance"], part["provenance"]) == ("predicted", "unmeasured")

    refused = cli("size Llama-3.1-8B-Instruct", *SLO, "--gpu-type", "H100-MIG-half")
    assert "and their slices, such as H100-MIG-3g.40gb" in refused.err


def test_what_keeps_a_replica_from_anything_is_said() -> None:
    result = cli("size Llama-3.1-70B --ttft-ms 1000 --itl-ms 1 --gpu-type H100")

    assert result.out.splitlines()[1].endswith(
        "the weights do not fit on this number of GPUs"
    )
    assert result.out.splitlines()[-1].endswith("one step takes longer than --itl-ms")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nope", *SLO), "no language model 'nope'"),
        (("Qwen3-14B", *SLO, "--gpu-type", "T4"), "--gpu-type T4: nothing is known"),
        (("Qwen3-14B", *SLO, "--lengths", "5"), "must be PROMPT,OUTPUT"),
        (("Qwen3-14B", *SLO, "--lengths", "5,nan"), "must be between 1 and"),
        (("Qwen3-14B", *SLO, "--lengths", "9000,9000"), "exceed max_model_len, 16384"),
    ],
)
def test_bad_input_names_the_option_and_the_remedy(
    arguments: tuple[str, ...], words: str
) -> None:
    result = cli("size", *arguments)

    assert result.code != 0
    assert words in result.err


QWEN2_7B = {
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 8192,
}


def config_file(folder: Path, **fields: object) -> Path:
    """Qwen2-7B's configuration, with these fields."""
    path = folder / "config.json"
    path.write_text(json.dumps({**QWEN2_7B, **fields}))
    return path


def test_a_degree_that_engines_refuse_carries_nothing_and_is_not_planned(
    tmp_path: Path,
) -> None:
    path, problem = config_file(tmp_path), tmp_path / "problem.json"
    asked = ("size", path, *SLO, "--gpu-type", "L40S")

    shown = cli(*asked)
    cli(*asked, "--problem", f"4={problem}")

    *_, last = shown.out.splitlines()
    assert last.split()[:2] == ["L40S", "8"]
    assert last.endswith("28 heads cannot be divided by 8")
    (points,) = json.loads(problem.read_text())["llm_points"]
    assert [row[0] for row in points["rows"]] == [1, 2, 4]


def test_a_context_beyond_the_networks_is_refused_and_the_usual_one_is_cut(
    tmp_path: Path,
) -> None:
    path = config_file(tmp_path)
    asked = ("size", path, *SLO, "--gpu-type", "L40S")

    refused = cli(*asked, "--max-model-len", "16384")
    cut = cli(*asked)

    assert refused.code == 1
    assert "--max-model-len: 16384 is more than 8192" in refused.err
    assert cut.code == 0
    assert "--max-model-len is 8192 in place of 16384" in cut.err


def test_windows_take_room_by_the_lengths_of_requests(tmp_path: Path) -> None:
    asked = (*SLO, "--gpu-type", "L40S", "--max-model-len", "8192", "-o", "json")
    full = cli("size", config_file(tmp_path), *asked)
    layers = ["sliding_attention", "full_attention"] * 14
    path = config_file(tmp_path, sliding_window=8192, layer_types=layers)
    windowed = cli("size", path, *asked)

    # Windows as long as the longest request keep all of it: the same room, and the same speed.
    before, now = (json.loads(each.out)["items"][0] for each in (full, windowed))
    assert now["kv_tokens"] == pytest.approx(before["kv_tokens"], abs=1)
    assert now["capacity_rps"] == pytest.approx(before["capacity_rps"], rel=1e-6)
    assert "28 KiB for each of the last 8192 in layers with a window" in windowed.err


def test_the_precision_that_weights_are_read_in_is_shown(tmp_path: Path) -> None:
    path = config_file(tmp_path, quantization_config={"quant_method": "sorcery"})
    asked = ("size", path, *SLO, "--gpu-type", "L40S")

    unknown = cli(*asked)
    # ModelOpt states it in a file of its own.
    path.write_text(json.dumps(QWEN2_7B))
    stated = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    path.with_name("hf_quant_config.json").write_text(json.dumps(stated))
    known = cli(*asked)

    assert "weights in bf16 (as published" in unknown.err
    assert "sorcery is not known" in unknown.err
    assert "weights in fp8" in known.err
    assert {line.split()[2] for line in known.out.splitlines()[1:]} == {"fp8"}


def test_a_file_that_is_no_configuration_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("[]")

    result = cli("size", str(path), *SLO)

    assert result.code == 1
    assert "config: must be an object" in result.err


@pytest.mark.thorough  # By hand: tests/app/catalogue/test_llm_rows.py.
def test_a_run_of_ones_own_server_makes_a_prediction_surer(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run = {
        "max_concurrency": 32,
        "completed": 100,
        "total_input_tokens": 100_000,
        "total_output_tokens": 20_000,
        "mean_tpot_ms": 25.0,
    }
    path.write_text(json.dumps(run))
    asked = ("size", "Llama-3.1-8B-Instruct", *SLO, "--gpu-type", "L40S", "-o", "json")

    def first(*more: str) -> dict[str, object]:
        rows: list[dict[str, object]] = json.loads(cli(*asked, *more).out)["items"]
        return rows[0]

    before, after = first(), first("--measured", f"L40S/1={path}")

    def width(row: dict[str, object]) -> float:
        low, high = row["interval_rps"]  # type: ignore[misc]
        return float(high / low)

    assert (before["provenance"], after["provenance"]) == ("predicted", "calibrated")
    assert width(after) < width(before)


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ("L40S=run.json", "must be GPU_TYPE/TP=FILE"),
        ("L40S/3=run.json", "must be GPU_TYPE/TP=FILE"),
        ("T4/1=run.json", "nothing is known of it"),
    ],
)
def test_where_a_run_was_measured_must_be_said(measured: str, words: str) -> None:
    result = cli("size Qwen3-14B", *SLO, "--measured", measured)

    assert result.code != 0
    assert words in result.err


def test_what_was_sized_is_planned_and_audited(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    asked = ("Llama-3.1-8B-Instruct", *SLO, "--gpu-type", "L40S")

    written = cli("size", *asked, "--problem", f"20={path}")
    planned = cli("plan", path, "--laws")

    assert written.code == 0, written.err
    assert planned.code == 0, planned.err
    assert "Checked by laws: 1 row" in planned.out

    # The same capacities with half as much time for each token.
    document = json.loads(path.read_text())
    document["services"][0]["llm"]["slo_itl_ms"] = 20.0
    path.write_text(json.dumps(document))
    broken = cli("plan", path, "--laws", "-o", tmp_path / "plan.json")
    assert broken.code == 1
    assert "\nlaw " in broken.out
    assert not (tmp_path / "plan.json").exists()

    del document["step_laws"]
    path.write_text(json.dumps(document))
    unknown = cli("plan", path, "--laws")
    assert "Not checked by laws: service on" in unknown.out
    assert "nothing in step_laws" in unknown.out


@pytest.mark.thorough
def test_a_problem_needs_a_rate_and_something_that_serves_it(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"

    alone = cli("size Llama-3.1-8B-Instruct", *SLO, "--problem", "problem.json")
    slow = ("--ttft-ms", "2000", "--itl-ms", "0.1", "--gpu-type", "L40S")
    nothing = cli("size Llama-3.1-8B-Instruct", *slow, "--problem", f"2={path}")

    assert "must be RPS=FILE, such as 20=problem.json" in alone.err
    assert "no GPU type that has a price can serve it" in nothing.err
    assert not path.exists()
