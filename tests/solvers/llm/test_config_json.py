"""Configurations as engines read them: published networks, quantisation, contexts, and what is refused."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from solvers.llm.config_json import StatedNetwork, read_config
from solvers.types.errors import InvalidInput

_FILE = Path(__file__).parents[2] / "data" / "llm_configs.json"
_DEGREES = (1, 2, 4, 8)
SMALL: Mapping[str, Any] = {
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
}


@cache
def published(part: str) -> Mapping[str, Mapping[str, Any]]:
    """Rows of the file, by the network's name."""
    rows = json.loads(_FILE.read_text())[part]
    return {row["name"]: row for row in rows}


def read(**fields: object) -> StatedNetwork:
    """A small network with these fields, read."""
    return read_config({**SMALL, **fields})


def test_the_table_has_enough_networks() -> None:
    assert len(published("networks")) >= 60


@pytest.mark.parametrize("name", sorted(published("networks")))
def test_a_published_configuration_is_read_as_engines_read_it(name: str) -> None:
    row = published("networks")[name]
    network = read_config(row["config"]).architecture

    assert network.parameters == pytest.approx(row["parameters"], rel=0.02)
    assert network.kv_bytes_per_token(1) == row["kv_bytes_per_token"]
    accepted = [tp for tp in _DEGREES if network.undivided(tp) is None]
    assert accepted == row["degrees"]


@pytest.mark.parametrize("name", sorted(published("refused")))
def test_networks_that_generate_nothing_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="generates no tokens"):
        read_config(published("refused")[name]["config"])


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_position_embeddings": 32768}, 32768),
        ({"n_positions": 1024}, 1024),
        ({"max_seq_len": 2048}, 2048),
        ({"seq_length": 8192}, 8192),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        ({"max_position_embeddings": 4096, "max_sequence_length": 2048}, 2048),
        ({}, None),
        # By the default of its class.
        ({"model_type": "deepseek_v32"}, 163840),
        (
            {
                "max_position_embeddings": 4096,
                "rope_scaling": {"type": "dynamic", "factor": 4.0},
            },
            16384,
        ),
        (
            {
                "max_position_embeddings": 4096,
                "rope_scaling": {"type": "linear", "factor": 2.0},
            },
            8192,
        ),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32768,
                },
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 40,
                    "original_max_position_embeddings": 4096,
                },
            },
            163840,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "original_max_position_embeddings": 8192,
                },
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "original_max_position_embeddings": 4096,
                "rope_scaling": {"type": "longrope", "short_factor": [1.0]},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "model_type": "gemma3_text",
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 4096,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 2.0},
                    "sliding_attention": {"rope_type": "default"},
                },
            },
            8192,
        ),
    ],
)
def test_the_longest_request_is_derived_as_vllm_derives_it(
    fields: dict[str, object], tokens: int | None
) -> None:
    context = read(**fields).context

    assert (None if context is None else context.tokens) == tokens


@pytest.mark.parametrize(
    ("fields", "tokens", "is_noted"),
    [
        ({}, 32768, True),
        ({"original_max_position_embeddings": 32768}, 131072, False),
    ],
)
def test_a_yarn_scaling_without_an_original_length_extends_nothing_and_is_noted(
    fields: dict[str, object], tokens: int, *, is_noted: bool
) -> None:
    found = read(
        max_position_embeddings=32768,
        rope_scaling={"type": "yarn", "factor": 4.0},
        **fields,
    )
    assert found.context is not None and found.context.tokens == tokens
    assert ("taken for the scaled length" in " ".join(found.notes)) is is_noted


@pytest.mark.parametrize(
    "name", ["text_config", "llm_config", "language_config", "odd_name"]
)
def test_the_language_part_is_found_under_any_name(name: str) -> None:
    nested = {"vision_config": {"num_hidden_layers": 3}, name: dict(SMALL)}
    network = read_config(nested).architecture

    assert (network.layers, network.heads) == (28, 28)


def test_a_part_within_a_part_is_found() -> None:
    nested = {"thinker_config": {"text_config": dict(SMALL)}, "talker_config": {}}

    assert read_config(nested).architecture.layers == 28


def test_towers_of_other_kinds_are_counted() -> None:
    # Gemma 3n: 0.3 G parameters see, and 0.68 G hear.
    document = {
        "text_config": dict(SMALL),
        "vision_config": {"architecture": "mobilenetv5_300m_enc", "hidden_size": 2048},
        "audio_config": {"conf_num_hidden_layers": 12, "hidden_size": 1536},
    }

    towers = read_config(document).architecture.idle_parameters
    assert towers == pytest.approx(0.98e9, rel=0.01)


def test_queries_and_outputs_may_go_through_a_narrow_width() -> None:
    # DeepSeek V4 Flash has 284.3 G parameters, as its class of transformers counts.
    network = read_config(
        {
            "model_type": "deepseek_v4",
            "num_hidden_layers": 43,
            "hidden_size": 4096,
            "num_attention_heads": 64,
            "num_key_value_heads": 1,
            "head_dim": 512,
            "q_lora_rank": 1024,
            "o_lora_rank": 1024,
            "o_groups": 8,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 2048,
            "sliding_window": 128,
            "vocab_size": 129280,
        }
    ).architecture

    assert network.parameters == pytest.approx(284.3e9, rel=0.005)
    assert [tp for tp in _DEGREES if network.undivided(tp) is None] == [1, 2, 4, 8]


def test_mistrals_own_file_is_read() -> None:
    params = {
        "dim": 5120,
        "n_layers": 40,
        "head_dim": 128,
        "hidden_dim": 14336,
        "n_heads": 32,
        "n_kv_heads": 8,
        "vocab_size": 131072,
    }
    network = read_config(params).architecture

    # Mistral-Nemo: 12.25 G parameters.
    assert network.parameters == pytest.approx(12.25e9, rel=0.01)
    assert network.kv_bytes_per_token(1) == 40 * 2 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("fields", "tp", "words"),
    [
        ({}, 8, "28 heads cannot be divided by 8"),
        (
            {"num_key_value_heads": 6, "num_attention_heads": 24},
            4,
            "6 KV heads can neither be divided by 4 nor copied",
        ),
        (
            {"intermediate_size": 18946, "num_attention_heads": 32},
            4,
            "18946 columns of intermediate_size cannot be divided by 4",
        ),
        (
            {
                "num_attention_heads": 32,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 1024,
            },
            8,
            "4 experts are fewer than 8 GPUs",
        ),
        (
            {
                "hidden_size": 8192,
                "num_attention_heads": 64,
                "intermediate_size": 29568,
                "quantization_config": {
                    "quant_method": "gptq",
                    "bits": 4,
                    "group_size": 128,
                },
            },
            8,
            "29568 columns of intermediate_size, divided by 8, cut through the quantisation's blocks of 128",
        ),
        (
            {
                "num_attention_heads": 32,
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 768,
                "quantization_config": {
                    "quant_method": "fp8",
                    "weight_block_size": [128, 128],
                },
            },
            4,
            "768 columns of each expert, divided by 4, cut through the quantisation's blocks of 128",
        ),
    ],
)
def test_why_an_engine_does_not_start_on_so_many_gpus_is_said(
    fields: dict[str, object], tp: int, words: str
) -> None:
    found = read(**fields).architecture.undivided(tp)

    assert found is not None
    assert found.reason == words


def test_experts_of_another_precision_and_a_compressed_cache_are_noted() -> None:
    network = read(
        expert_dtype="fp4",
        compress_ratios=[0, 4, 128],
        quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
    )

    assert network.precision == "fp4"
    notes = " ".join(network.notes)
    assert "experts are in fp4" in notes
    assert "cached without compression" in notes


def test_what_a_publisher_leaves_out_is_as_its_class_says_and_noted() -> None:
    row = published("networks")["google/gemma-3-27b-it"]
    network = read_config(row["config"])

    assert network.architecture.vocab == 262208
    assert "vocab_size is not stated: taken as 262208" in " ".join(network.notes)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"},
            "an encoder and a decoder",
        ),
        ({"model_type": "bert"}, "bert generates no tokens"),
        ({"model_type": "mamba2"}, "mamba2 has no attention"),
        ({"model_type": "zamba2"}, "zamba2 has layers that no law here describes"),
        ({"layer_types": ["linear_attention"] * 28}, "no layer has attention"),
    ],
)
def test_networks_that_no_law_describes_are_refused(
    fields: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        read(**fields)


ODD = ("x", -1, 0, 1e308, float("nan"), float("inf"), [], ["x"], [0], {}, True, 10**12)


@pytest.mark.parametrize(
    "name",
    [
        "moonshotai/Kimi-K2.5",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "XiaomiMiMo/MiMo-V2-Flash",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "ai21labs/Jamba-v0.1",
    ],
)
def test_an_odd_value_is_read_or_refused_by_its_field(name: str) -> None:
    config = published("networks")[name]["config"]
    part = config.get("text_config", config)

    for field in part:
        for value in ODD:
            try:
                network = read_config({**part, field: value}).architecture
            except InvalidInput as error:
                assert error.field.startswith("config")
            else:
                network.undivided(4)
                assert network.weight_bytes("bf16") >= 0.0
