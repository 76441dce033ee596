"""What a language model is made of, and what one GPU has to read and to compute for it.

Counts of parameters follow from the published configuration: attention with grouped keys (GQA) or with compressed ones
(MLA, DeepSeek-V2, 2024), layers with a window or a state in its place, dense and expert feed-forward layers with three
matrices each (SwiGLU) or two, embedding and output, which may be one matrix, and towers for pictures and sound.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from solvers.llm.configs.degrees import DENSE, EXPERT, Undivided, first_undivided
from solvers.llm.configs.parts import AttentionGroup, DividedPart
from solvers.llm.configs.parts import CompressedKeys as CompressedKeys
from solvers.llm.configs.parts import Experts as Experts
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
    feed_forward_matrices: int = 3
    """2 where there is no gate."""
    is_tied: bool = False
    """Whether embedding and output are one matrix."""
    attention: tuple[AttentionGroup, ...] = ()
    """Where layers differ; empty: all are as the fields above say."""
    mixer_parameters: float = 0.0
    """Weights of layers that keep a state in place of a cache."""
    kept_parameters: float = 0.0
    """Those of linear layers that stay in bf16, whatever the others are quantised to."""
    idle_parameters: float = 0.0
    """Those that steps of text do not read, also in bf16: towers, and tables that are looked up."""
    divided: tuple[DividedPart, ...] = ()
    """What else a replica's GPUs must be able to share out."""

    @property
    def expert_layers(self) -> int:
        """Layers whose feed-forward part has experts."""
        if self.experts is None:
            return 0
        own = self.experts.layers
        return self.layers - self.dense_layers if own is None else own

    @property
    def caching_layers(self) -> int:
        """Layers whose cache grows with every token."""
        own = self.full_attention_layers
        return self.layers if own is None else own

    @property
    def caching_groups(self) -> tuple[AttentionGroup, ...]:
        """Groups whose cache grows with every token: all where each has a window, whose tokens need room, too."""
        growing = tuple(each for each in self.attention if not each.window)
        return growing or self.attention

    @property
    def parameters(self) -> float:
        """All weights."""
        linear = self.linear_parameters + self.expert_parameters
        return linear + self._embeddings + self.idle_parameters

    @property
    def embedding_parameters(self) -> float:
        """Weights of the embedding alone; the output has as many again, where it is no part of it."""
        return float(self.vocab * self.hidden)

    @property
    def _embeddings(self) -> float:
        return (1.0 if self.is_tied else 2.0) * self.embedding_parameters

    @property
    def expert_parameters(self) -> float:
        """Weights of all experts that tokens choose among."""
        if self.experts is None:
            return 0.0
        # Three matrices: gate, up and down; or the last two.
        width = self.experts.width or self.hidden
        per_expert = self.feed_forward_matrices * width * self.experts.intermediate
        return self.expert_layers * self.experts.count * per_expert

    @property
    def linear_parameters(self) -> float:
        """Weights of the layers that every token goes through, without embedding and output."""
        if self.total_parameters is not None:
            rest = self.total_parameters - self.expert_parameters
            # Small networks may share embedding and output; none has fewer linear weights than attention alone.
            return max(
                rest - 2.0 * self.embedding_parameters, self.attention_parameters
            )
        mixing = self.attention_parameters + self.mixer_parameters
        return mixing + self._feed_forward + self.shared_parameters

    @property
    def attention_parameters(self) -> float:
        """Weights of queries, keys, values and outputs."""
        keys = self.compressed_keys
        if self.attention:
            return sum(each.parameters(self.hidden) for each in self.attention)
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
        # Among layers with a state those with compressed keys are the ones that have a cache.
        return float(self.caching_layers * (queries + down + up + out))

    @property
    def shared_parameters(self) -> float:
        """Weights of the experts that every token uses."""
        if self.experts is None:
            return 0.0
        matrix = float(self.hidden * self.experts.shared_width)
        return self.expert_layers * self.feed_forward_matrices * matrix

    @property
    def _feed_forward(self) -> float:
        matrix = float(self.hidden * self.dense_intermediate)
        found = self.feed_forward_matrices * matrix * self.dense_layers
        if self.experts:
            # The router, which chooses among the experts, has a row for each.
            found += self.expert_layers * self.hidden * self.experts.count
            # A narrower inside is reached by a matrix each way.
            found += self.expert_layers * 2.0 * self.hidden * self.experts.width
        return found

    @property
    def quantised_parameters(self) -> float:
        """Those of `linear_parameters` that are kept in the weights' precision."""
        return max(0.0, self.linear_parameters - self.kept_parameters)

    def linear_bytes(self, precision: Precision) -> float:
        """Bytes of `linear_parameters`."""
        kept = self.linear_parameters - self.quantised_parameters
        quantised = self.quantised_parameters * WEIGHT_BYTES[precision]
        return quantised + kept * WEIGHT_BYTES["bf16"]

    def undivided(self, tp: int) -> Undivided | None:
        """What keeps an engine from starting on `tp` GPUs; None: nothing."""
        return first_undivided(self._divided_parts(), tp)

    def _divided_parts(self) -> Iterator[DividedPart]:
        """Heads first: they are what users know."""
        for heads, kv_heads in self._head_counts():
            yield DividedPart(what="heads", count=heads)
            # Compressed keys serve all heads, and every GPU holds all of them.
            if self.compressed_keys is None:
                yield DividedPart(what="KV heads", count=kv_heads, may_be_copied=True)
        if self.dense_layers and self.dense_intermediate:
            yield DividedPart(what=DENSE, count=self.dense_intermediate)
        if self.experts:
            count = self.experts.count
            yield DividedPart(what="experts", count=count, may_be_cut=True)
            yield DividedPart(what=EXPERT, count=self.experts.intermediate)
        yield from self.divided

    def _head_counts(self) -> Iterator[tuple[int, int]]:
        groups = [(each.heads, each.kv_heads) for each in self.attention]
        yield from groups or [(self.heads, self.kv_heads)]

    def weight_bytes(self, precision: Precision) -> float:
        """Bytes of all weights together."""
        experts = self.expert_parameters * WEIGHT_BYTES[precision]
        kept = (self._embeddings + self.idle_parameters) * WEIGHT_BYTES["bf16"]
        return self.linear_bytes(precision) + experts + kept

    def kv_bytes_per_token(self, tp: int) -> float:
        """Bytes that one cached token takes on each of `tp` GPUs."""
        keys = self.compressed_keys
        if self.attention:
            return _KV_BYTES * sum(
                each.caching * each.cached_width * max(1.0, each.kv_heads / tp)
                for each in self.caching_groups
            )
        if keys is not None and keys.is_expanded:
            # Values are padded to the width of keys.
            width = 2.0 * (keys.nope_dim + keys.rope_dim) * self.heads / tp
        # Compressed keys serve all heads, so that every GPU of a replica holds all of them.
        elif keys is not None:
            width = float(keys.kv_rank + keys.rope_dim)
        else:
            width = 2.0 * self.head_dim * max(1.0, self.kv_heads / tp)
        return self.caching_layers * width * _KV_BYTES


def window_factor(network: Architecture, tp: int, tokens: float) -> float:
    """Cache of a sequence of that number of tokens, over what `kv_bytes_per_token` says of it: above 1 with windows."""
    growing = network.caching_groups
    windows = [each for each in network.attention if each not in growing]
    held = sum(
        each.caching
        * each.cached_width
        * max(1.0, each.kv_heads / tp)
        * min(tokens, each.window_tokens)
        for each in windows
    )
    return 1.0 + _KV_BYTES * held / (network.kv_bytes_per_token(tp) * tokens)


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
    linear_bytes = network.linear_bytes(precision)
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
    if network.attention:
        return _FLOP_PER_WEIGHT * sum(
            each.layers * each.heads * each.cached_width
            for each in network.caching_groups
        )
    if keys is not None:
        width = keys.nope_dim + keys.rope_dim + keys.v_dim
    return _FLOP_PER_WEIGHT * network.heads * width * network.caching_layers
