"""The step law's factors by runtime, as `python -m bench.llm.fit_law` prints them."""

from collections.abc import Mapping

from solvers.llm.step_law import Runtime, RuntimeFactors

RUNTIMES: Mapping[Runtime, RuntimeFactors] = {
    "vllm": RuntimeFactors(
        step_ms=1.457,
        layer_ms=0.01539,
        expert_layer_ms=0.03792,
        sequence_ms=0.01089,
        prompt_layer_ms=0.05042,
        weights=1.063,
        expert_weights=1.059,
        flops=1.016,
        expert_flops=0.7131,
        cache=1.21,
        pairs=1.019,
        hop_ms=0.006073,
        link=0.6818,
        request_ms=51.67,
        prompt_token_ms=0.01102,
    ),
    "trtllm": RuntimeFactors(
        step_ms=1.277,
        layer_ms=0.01392,
        expert_layer_ms=0.0342,
        sequence_ms=0.0108,
        prompt_layer_ms=0.05053,
        weights=1.096,
        expert_weights=1.09,
        flops=1.035,
        expert_flops=0.7266,
        cache=1.267,
        pairs=1.024,
        hop_ms=0.005095,
        link=0.6928,
        request_ms=104.9,
        prompt_token_ms=0.01061,
    ),
    "sglang": RuntimeFactors(
        step_ms=1.467,
        layer_ms=0.01538,
        expert_layer_ms=0.03987,
        sequence_ms=0.01119,
        prompt_layer_ms=0.05092,
        weights=1.072,
        expert_weights=1.047,
        flops=1.015,
        expert_flops=0.6957,
        cache=1.165,
        pairs=1.015,
        hop_ms=0.006131,
        link=0.6817,
        request_ms=229.3,
        prompt_token_ms=0.012,
    ),
}
