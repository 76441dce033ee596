"""The law of steps on numbers that can be followed by hand."""

from dataclasses import replace

import numpy as np
import pytest

from app.catalogue.language_models import find_architecture
from solvers.llm.closed_loop import ClosedClients, closed_loop_means
from solvers.llm.hardware import KernelEfficiency
from solvers.llm.kv_cache import EngineLimits, kv_tokens
from solvers.llm.step_law import LlmEngine, RuntimeFactors, engine_work, step_table
from tests.solvers.llm.models import make_hardware, make_network, make_table

PERFECT = KernelEfficiency(
    gemm_bandwidth=1.0,
    gemm_flops=1.0,
    expert_bandwidth=1.0,
    expert_flops=1.0,
    prompt_attention_flops=1.0,
    decode_attention_bandwidth=1.0,
)
ONLY_ROOFLINE = RuntimeFactors(
    step_ms=0.0,
    layer_ms=0.0,
    expert_layer_ms=0.0,
    sequence_ms=0.0,
    prompt_layer_ms=0.0,
    weights=1.0,
    expert_weights=1.0,
    flops=1.0,
    expert_flops=1.0,
    cache=1.0,
    pairs=1.0,
    hop_ms=0.001,
    link=1.0,
    request_ms=0.0,
    prompt_token_ms=0.0,
)
ENGINE = LlmEngine(
    network=make_network(),
    hardware=make_hardware(efficiency={"bf16": PERFECT}),
    precision="bf16",
    tp=1,
)


def test_one_token_takes_as_long_as_its_weights_are_read() -> None:
    table = step_table(ENGINE, ONLY_ROOFLINE)

    # 18,432 linear weights and 3,200 of the output, two bytes each, at 10^9 bytes per ms.
    assert table.step_ms[0] == pytest.approx(2 * (18_432 + 3_200) / 1e9, rel=1e-6)


def test_many_tokens_take_as_long_as_they_are_computed() -> None:
    table = step_table(ENGINE, ONLY_ROOFLINE)

    # Two FLOP per weight and token at 10^11 per ms; reading takes a hundredth of it, which a norm of 3 hardly sees.
    assert table.step_ms[-1] == pytest.approx(16_384 * 2 * 21_632 / 1e11, rel=1e-3)


def test_degrees_halve_the_weights_and_add_reductions() -> None:
    one = step_table(ENGINE, ONLY_ROOFLINE)
    two = step_table(replace(ENGINE, tp=2), ONLY_ROOFLINE)

    # Two reductions per layer of 2, each with one hop of a microsecond and 32·2 bytes once over 10^8 bytes per ms.
    reductions = 2 * 2 * (0.001 + 64 / 1e8)
    assert two.step_ms[0] == pytest.approx(one.step_ms[0] / 2 + reductions, rel=1e-6)
    assert two.cached_token_ms == pytest.approx(one.cached_token_ms / 2)


def test_slower_steps_are_slower_in_every_part_but_the_way_in_and_out() -> None:
    parts = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    names = (
        "sequence_ms",
        "cached_token_ms",
        "pair_ms",
        "prompt_step_ms",
        "request_ms",
        "prompt_token_ms",
    )
    table = make_table(**dict(zip(names, parts, strict=True)))

    slow = table.times(1.5, sequence_ms=0.25)

    assert [getattr(slow, each) for each in names] == [1.75, 3.0, 4.5, 6.0, 5.0, 6.0]
    assert slow.step_ms == pytest.approx(1.5 * table.step_ms)


def test_one_client_waits_for_its_own_steps_alone() -> None:
    factors = replace(ONLY_ROOFLINE, step_ms=10.0, request_ms=50.0)
    clients = ClosedClients(
        count=np.array([1.0]),
        prompt=np.array([100.0]),
        output=np.array([50.0]),
        budget=np.array([8192.0]),
    )

    means = closed_loop_means(engine_work(ENGINE), factors, clients)

    # A prompt's step, half a step until it begins, and the way in and out, with two steps more.
    assert means.tpot_ms[0] == pytest.approx(10.0, rel=1e-3)
    assert means.ttft_ms[0] == pytest.approx(85.0, rel=1e-3)


def test_the_cache_of_a_70b_network_is_what_its_engine_states() -> None:
    found = kv_tokens(
        find_architecture("Llama-2-70b-hf"),
        "bf16",
        4,
        memory_gib=80.0,
        limits=EngineLimits(max_num_batched_tokens=8192),
    )

    # vLLM stated 501,696 on four H100 (`llm_steps`).
    assert found == pytest.approx(501_696, rel=0.02)
