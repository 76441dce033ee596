"""What a language model is made of, and what one GPU has to read and to compute for it.

Counts of parameters follow from the published configuration: attention with grouped keys (GQA) or with compressed ones
(MLA, DeepSeek-V2, 2024), dense and expert feed-forward layers with three matrices each (SwiGLU), embedding and output.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from solvers.types.llm import Precision as Precision

WEIGHT_BYTES: Mapping[Precision, float] = {
    "bf16": 2.0,
    "fp8": 1.0,
    # Scales of blocks of 16 values (fp4) and of 128 (int4) are counted in.
    "fp4": 0.5625,
    "int4": 0.53,
}
_KV_BYTES = 2.0  # Keys and values are kept in bf16, whatever the weights are in.
_FLOP_PER_WEIGHT = 2.0  # A multiplication and an addition.


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedKeys:
    """Multi-head latent attention: what is cached per token, and the sizes of its heads."""

    kv_rank: int
    rope_dim: int
    q_rank: int
    """0: queries are not compressed."""
    nope_dim: int
    v_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Feed-forward layers of which each token uses a few parts."""

    count: int
    per_token: int
    intermediate: int
    shared: int = 0
    """Experts that every token uses beside its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The shape of a network; everything that predictions know of it."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    dense_layers: int
    """Layers whose feed-forward part is dense; the others have experts."""
    dense_intermediate: int = 0
    full_attention_layers: int | None = None
    """Layers that attend to all tokens; the others to a window or to a state of fixed size. None = all."""
    experts: Experts | None = None
    compressed_keys: CompressedKeys | None = None
    total_parameters: float | None = None
    """As published; None = as the shape says."""

    @property
    def expert_layers(self) -> int:
        """Layers whose feed-forward part has experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def caching_layers(self) -> int:
        """Layers whose cache grows with every token."""
        own = self.full_attention_layers
        return self.layers if own is None else own

    @property
    def embedding_parameters(self) -> float:
        """Weights of the embedding alone; the output has as many again."""
        return float(self.vocab * self.hidden)

    @property
    def expert_parameters(self) -> float:
        """Weights of all experts that tokens choose among."""
        if self.experts is None:
            return 0.0
        # Three matrices: gate, up and down.
        per_expert = 3.0 * self.hidden * self.experts.intermediate
        return self.expert_layers * self.experts.count * per_expert

    @property
    def linear_parameters(self) -> float:
        """Weights of the layers that every token goes through, without embedding and output."""
        if self.total_parameters is not None:
            rest = self.total_parameters - self.expert_parameters
            # Small networks may share embedding and output; none has fewer linear weights than attention alone.
            return max(rest - 2.0 * self.embedding_parameters, self._attention)
        return self._attention + self._feed_forward

    @property
    def _attention(self) -> float:
        keys = self.compressed_keys
        if keys is None:
            # Queries and output have all heads, keys and values those that groups of queries share.
            width = 2.0 * (self.heads + self.kv_heads) * self.head_dim
            return self.layers * self.hidden * width
        head = keys.nope_dim + keys.rope_dim
        queries = self.heads * head * (keys.q_rank or self.hidden)
        queries += self.hidden * keys.q_rank
        # Keys and values are compressed once, and decompressed for every head.
        down = self.hidden * (keys.kv_rank + keys.rope_dim)
        up = keys.kv_rank * self.heads * (keys.nope_dim + keys.v_dim)
        out = self.heads * keys.v_dim * self.hidden
        return float(self.layers * (queries + down + up + out))

    @property
    def _feed_forward(self) -> float:
        found = 3.0 * self.hidden * self.dense_intermediate * self.dense_layers
        if self.experts:
            # The router, which chooses among the experts, has a row for each.
            shared = 3.0 * self.experts.shared * self.experts.intermediate
            found += self.expert_layers * self.hidden * (shared + self.experts.count)
        return found

    def weight_bytes(self, precision: Precision) -> float:
        """Bytes of all weights together."""
        linear = self.linear_parameters + self.expert_parameters
        kept = 2.0 * self.embedding_parameters * WEIGHT_BYTES["bf16"]
        return linear * WEIGHT_BYTES[precision] + kept

    def kv_bytes_per_token(self, tp: int) -> float:
        """Bytes that one cached token takes on each of `tp` GPUs."""
        keys = self.compressed_keys
        # Compressed keys serve all heads, so that every GPU of a replica holds all of them.
        if keys is not None:
            width = float(keys.kv_rank + keys.rope_dim)
        else:
            width = 2.0 * self.head_dim * max(1.0, self.kv_heads / tp)
        return self.caching_layers * width * _KV_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWork:
    """What each of a replica's GPUs reads and computes."""

    fixed_bytes: float
    """Weights that every step reads."""
    expert_bytes: float
    """Weights of all experts; a step reads those that its tokens use."""
    dense_flop: float
    """Per token, without experts and attention."""
    expert_flop: float
    """Per token."""
    kv_bytes: float
    """Per cached token of a decoding sequence."""
    pair_flop: float
    """Per pair of a prompt's token and one before it."""


def gpu_work(network: Architecture, precision: Precision, tp: int) -> GpuWork:
    """What one of `tp` GPUs has to do, each for its part of every matrix."""
    output_bytes = network.embedding_parameters * WEIGHT_BYTES["bf16"]
    linear_bytes = network.linear_parameters * WEIGHT_BYTES[precision]
    # The embedding is looked up; only the output is computed with.
    every_token = network.linear_parameters + network.embedding_parameters
    experts = network.experts
    used_share = experts.per_token / experts.count if experts else 0.0
    return GpuWork(
        fixed_bytes=(linear_bytes + output_bytes) / tp,
        expert_bytes=network.expert_parameters * WEIGHT_BYTES[precision] / tp,
        dense_flop=_FLOP_PER_WEIGHT * every_token / tp,
        expert_flop=_FLOP_PER_WEIGHT * used_share * network.expert_parameters / tp,
        kv_bytes=network.kv_bytes_per_token(tp),
        pair_flop=_pair_flop(network) / tp,
    )


def _pair_flop(network: Architecture) -> float:
    keys = network.compressed_keys
    # A product with the key and one with the value, each over the size of a head.
    width = 2 * network.head_dim
    if keys is not None:
        width = keys.nope_dim + keys.rope_dim + keys.v_dim
    return _FLOP_PER_WEIGHT * network.heads * width * network.caching_layers
