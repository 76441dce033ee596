"""Parameters, bytes and FLOP of networks, counted by hand and against what publishers state."""

from dataclasses import replace

import pytest

from app.catalogue.language_models import find_architecture, load_architectures
from solvers.llm.architecture import Experts, gpu_work, window_factor
from solvers.llm.config_json import architecture_from_config, read_config
from solvers.types.errors import InvalidInput
from tests.solvers.llm.models import make_network

LLAMA_8B = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}


@pytest.mark.parametrize(
    ("tokens", "factor"),
    [
        # 28 layers with a window next to 4 without: all keep the same until the window is full.
        (1.0, 8.0),
        (1000.0, 8.0),
        (2000.0, 4.5),
        (28_000.0, 1.25),
    ],
)
def test_layers_with_a_window_keep_its_tokens_as_well(
    tokens: float, factor: float
) -> None:
    layers = (["sliding_attention"] * 7 + ["full_attention"]) * 4
    windowed = {**LLAMA_8B, "sliding_window": 1000, "layer_types": layers}

    network = architecture_from_config(windowed)

    assert window_factor(network, 1, tokens) == pytest.approx(factor)
    assert window_factor(network, 8, tokens) == pytest.approx(factor)
    assert window_factor(architecture_from_config(LLAMA_8B), 1, tokens) == 1.0


def test_bitnet_has_a_gate_next_to_its_activation() -> None:
    fields = {**LLAMA_8B, "model_type": "bitnet", "hidden_act": "relu2"}

    assert architecture_from_config(fields).feed_forward_matrices == 3


def test_weights_are_counted_matrix_by_matrix() -> None:
    # Per layer: 2·(4 + 2)·8·32 = 3,072 of attention and 3·32·64 = 6,144; embedding and output 100·32 each, in bf16.
    network = make_network()

    assert network.linear_parameters == 2 * (3_072 + 6_144)
    assert network.weight_bytes("bf16") == 2 * (2 * (3_072 + 6_144) + 2 * 3_200)
    assert network.weight_bytes("fp8") == 2 * (3_072 + 6_144) + 2 * 2 * 3_200


def test_a_token_caches_keys_and_values_of_every_layer() -> None:
    # 2 layers · 2 (keys, values) · 2 heads · 8 · 2 bytes; on four GPUs each of the two heads is there twice.
    network = make_network()

    assert network.kv_bytes_per_token(1) == 128.0
    assert network.kv_bytes_per_token(2) == 64.0
    assert network.kv_bytes_per_token(4) == 64.0


def test_a_token_uses_its_own_experts_only() -> None:
    experts = Experts(count=8, per_token=2, intermediate=16)
    network = make_network(dense_layers=0, dense_intermediate=0, experts=experts)

    work = gpu_work(network, "bf16", 2)

    # 2 layers · 8 experts · 3·32·16 parameters, two bytes each, on two GPUs; two of eight are computed with.
    assert work.expert_bytes == 2 * 8 * 3 * 32 * 16
    assert work.expert_flop == 2 * 2 * 2 * 3 * 32 * 16 / 2


@pytest.mark.parametrize("name", sorted(load_architectures()))
def test_counted_parameters_are_those_that_publishers_state(name: str) -> None:
    stated = load_architectures()[name]
    counted = replace(stated, total_parameters=None)

    total = counted.linear_parameters + counted.expert_parameters
    total += 2 * counted.embedding_parameters

    assert total == pytest.approx(stated.total_parameters, rel=0.01)


def test_a_configuration_says_the_same_as_the_catalogue() -> None:
    shipped = replace(find_architecture("Llama-3.1-8B-Instruct"), total_parameters=None)

    read = architecture_from_config(LLAMA_8B)

    assert replace(read, full_attention_layers=32) == shipped


def test_experts_and_compressed_keys_are_read() -> None:
    document = {
        **LLAMA_8B,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "quantization_config": {"quant_method": "fp8"},
    }

    network = architecture_from_config(document)

    assert network.experts == Experts(
        count=256, per_token=8, intermediate=2048, shared=1
    )
    assert network.expert_layers == 29
    # Compressed keys are the same for all heads: every GPU holds all of them.
    assert network.kv_bytes_per_token(8) == 32 * (512 + 64) * 2
    assert read_config(document).precision == "fp8"


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"num_hidden_layers": None}, "config.num_hidden_layers", "is missing"),
        ({"hidden_size": "big"}, "config.hidden_size", "must be a whole number"),
        ({"num_attention_heads": 0}, "config.num_attention_heads", "at least 1"),
        ({"vocab_size": 10**12}, "config.vocab_size", "must be between 0 and"),
    ],
)
def test_what_is_wrong_with_a_configuration_is_named(
    change: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        architecture_from_config({**LLAMA_8B, **change})

    assert caught.value.field == field
    assert words in caught.value.problem
