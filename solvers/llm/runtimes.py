"""The step law's factors by runtime, as `python -m bench.llm.fit_law` prints them."""

from collections.abc import Mapping

from solvers.llm.step_law import Runtime, RuntimeFactors

RUNTIMES: Mapping[Runtime, RuntimeFactors] = {
    "vllm": RuntimeFactors(
        step_ms=1.462,
        layer_ms=0.01548,
        expert_layer_ms=0.03795,
        sequence_ms=0.01083,
        prompt_layer_ms=0.05077,
        weights=1.063,
        expert_weights=1.062,
        flops=1.008,
        expert_flops=0.6973,
        cache=1.215,
        pairs=1.018,
        hop_ms=0.006065,
        link=0.6817,
        request_ms=66.77,
        prompt_token_ms=0.01177,
    ),
    "trtllm": RuntimeFactors(
        step_ms=1.278,
        layer_ms=0.01398,
        expert_layer_ms=0.0341,
        sequence_ms=0.01074,
        prompt_layer_ms=0.05081,
        weights=1.095,
        expert_weights=1.093,
        flops=1.03,
        expert_flops=0.7135,
        cache=1.271,
        pairs=1.023,
        hop_ms=0.005092,
        link=0.693,
        request_ms=128.4,
        prompt_token_ms=0.01081,
    ),
    "sglang": RuntimeFactors(
        step_ms=1.468,
        layer_ms=0.01545,
        expert_layer_ms=0.03976,
        sequence_ms=0.01112,
        prompt_layer_ms=0.05119,
        weights=1.071,
        expert_weights=1.05,
        flops=1.01,
        expert_flops=0.6833,
        cache=1.169,
        pairs=1.014,
        hop_ms=0.006121,
        link=0.682,
        request_ms=254.4,
        prompt_token_ms=0.01224,
    ),
}
