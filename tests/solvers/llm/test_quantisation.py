"""How configurations say what precision weights are kept in."""

from collections.abc import Mapping
from typing import Any

import pytest

from solvers.llm.config_json import StatedNetwork, read_config

LLAMA_8B: Mapping[str, Any] = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}


def quantised(**fields: object) -> StatedNetwork:
    """Llama-3.1-8B's shape with this `quantization_config`, read."""
    return read_config({**LLAMA_8B, "quantization_config": fields})


@pytest.mark.parametrize(
    ("stated", "precision", "gigabytes"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 9.08),
        ({"quant_method": "fbgemm_fp8"}, "fp8", 9.08),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", 9.08),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4", 6.03),
        ({"quantization": {"quant_algo": "NVFP4", "group_size": 16}}, "fp4", 6.03),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", 5.80),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "fp8", 9.08),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4", 5.80),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "fp8", 9.08),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128}, "int4", 5.80),
        ({"quant_method": "mxfp4"}, "fp4", None),
        ({"quant_method": "hqq", "quant_config": {"nbits": 4}}, "int4", 5.80),
        ({"quant_method": "torchao", "quant_type": "float8_weight_only"}, "fp8", 9.08),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only"}, "int4", 5.80),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}},
            },
            "fp8",
            9.08,
        ),
        ({"quant_method": "auto-round", "bits": 4}, "int4", 5.80),
        (
            {
                "quant_method": "auto-round",
                "data_type": "nv_fp",
                "bits": 4,
                "group_size": 16,
            },
            "fp4",
            6.03,
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {
                    "weight": [{"dtype": "fp8_e4m3"}, {"dtype": "int4"}]
                },
            },
            "int4",
            5.80,
        ),
        ({"quant_method": "w8a8_int8"}, "fp8", 9.08),
        ({"quant_method": "bitnet"}, "int4", 5.80),
        ({"quant_method": "bitsandbytes"}, "int4", 5.80),
        ({"quant_method": "bitsandbytes", "_load_in_4bit": False}, "bf16", 16.06),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "dense",
                "sparsity_config": {"format": "sparse-24-bitmask"},
            },
            "bf16",
            16.06,
        ),
        ({"quant_method": "compressed-tensors", "bits": 8}, "fp8", 9.08),
    ],
)
def test_weights_are_kept_in_what_the_method_says(
    stated: dict[str, object], precision: str, gigabytes: float | None
) -> None:
    network = quantised(**stated)

    assert network.precision == precision
    if gigabytes is not None:
        weights = network.architecture.weight_bytes(network.precision) / 1e9
        assert weights == pytest.approx(gigabytes, rel=0.01)


@pytest.mark.parametrize(
    ("weights", "precision"),
    [
        ({"num_bits": 4, "type": "int", "group_size": 128}, "int4"),
        ({"num_bits": 8, "type": "int"}, "fp8"),
        ({"num_bits": 8, "type": "float"}, "fp8"),
        ({"num_bits": 4, "type": "float", "group_size": 16}, "fp4"),
    ],
)
def test_compressed_tensors_state_bits_and_kind_in_their_groups(
    weights: dict[str, object], precision: str
) -> None:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    network = quantised(quant_method="compressed-tensors", config_groups=groups)

    assert network.precision == precision


def test_a_method_next_to_the_language_part_holds_for_it() -> None:
    document = {
        "text_config": dict(LLAMA_8B),
        "quantization_config": {"quant_method": "fbgemm_fp8"},
    }

    assert read_config(document).precision == "fp8"


def test_parts_that_are_not_quantised_stay_in_16_bits() -> None:
    all_parts = quantised(quant_method="fp8").architecture
    kept = quantised(
        quant_method="fp8",
        modules_to_not_convert=["model.layers.*.self_attn", "lm_head"],
    ).architecture

    # Attention of 32 layers: 4096 · 128 · 2 · (32 + 8) weights each, one byte more each.
    more = kept.weight_bytes("fp8") - all_parts.weight_bytes("fp8")
    assert more == 32 * 4096 * 128 * 2 * (32 + 8)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        (
            {"quant_method": "sorcery"},
            "sorcery is not known: weights are taken as bf16",
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "8-bit weights"),
        ({"quant_method": "gptq", "bits": 3}, "3-bit weights (gptq): taken as int4"),
        ({"quant_method": "vptq"}, "vptq states no bits: weights are taken as int4"),
    ],
)
def test_what_is_assumed_of_a_method_is_noted(
    stated: dict[str, object], words: str
) -> None:
    assert words in " ".join(quantised(**stated).notes)


def test_of_blocks_that_are_not_square_the_longer_side_decides_and_is_noted() -> None:
    for shape, is_noted in (([128, 128], False), ([1, 128], True)):
        found = quantised(quant_method="fp8", weight_block_size=shape)
        assert ("blocks of 1 × 128" in " ".join(found.notes)) is is_noted
