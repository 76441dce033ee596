"""What a replica's cache of keys and values holds, and how many sequences have room in it.

Checked against what engines state of themselves: 0.1 % off for a 70B network on four H100 (`bench.llm.accuracy`).
"""

from dataclasses import dataclass

from solvers.llm.architecture import Architecture, Precision

_GIB = 2.0**30
_ENGINE_BYTES = 0.65e9
"""Context, graphs and buffers that an engine needs besides weights and activations; measured with a 70B network."""
MEMORY_SHARE = 0.9
"""The part of a GPU's memory that an engine takes: vLLM's default of `gpu_memory_utilization`."""
_LOGIT_BYTES = 10.0
"""Per sequence and entry of the vocabulary: logits in four bytes, twice, and a mask."""
_ACTIVATION_BYTES = 2.0
PLANNED_SHARE = 0.95
"""The part of the cache that plans count on. At its limit engines preempt sequences, which the calendar does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Limits that an engine is started with; both decide about latency as well as about memory."""

    max_num_batched_tokens: int
    """Tokens of one step at most, so the largest part of a prompt in it."""
    max_num_seqs: int = 256
    """Sequences that run at a time."""


def kv_tokens(
    network: Architecture,
    precision: Precision,
    tp: int,
    *,
    memory_gib: float,
    limits: EngineLimits,
) -> float:
    """Tokens whose keys and values fit on the GPUs with the weights; 0 or less where the weights do not fit."""
    weights = network.weight_bytes(precision) / tp
    # The widest intermediate result decides: of a dense layer, or of all experts that a token uses.
    intermediate = network.dense_intermediate
    if network.experts:
        used = network.experts.per_token + network.experts.shared
        intermediate = max(intermediate, network.experts.intermediate * used)
    width = 6.0 * network.hidden + 2.0 * intermediate / tp
    activations = limits.max_num_batched_tokens * width * _ACTIVATION_BYTES
    logits = limits.max_num_seqs * network.vocab * _LOGIT_BYTES
    # GiB and bytes: data sheets state memory in powers of two, engines their needs in bytes.
    room = MEMORY_SHARE * memory_gib * _GIB - weights - _ENGINE_BYTES
    return (room - activations - logits) / network.kv_bytes_per_token(tp)


def places(
    kv_tokens: float,
    *,
    max_num_seqs: int,
    mean_prompt: float,
    mean_cached: float,
) -> float:
    """How many sequences decode at a time at most; `mean_cached`: tokens that one has cached, on average."""
    return min(float(max_num_seqs), (kv_tokens - mean_prompt) / mean_cached)
