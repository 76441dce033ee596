"""Parts of networks: compressed keys, experts, groups of layers that attend alike, and what GPUs share out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedKeys:
    """Multi-head latent attention: what is cached per token, and the sizes of its heads."""

    kv_rank: int
    rope_dim: int
    q_rank: int
    """0: queries are not compressed."""
    nope_dim: int
    v_dim: int
    is_expanded: bool = False
    """Whether engines cache the keys and values of every head all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Feed-forward layers of which each token uses a few parts."""

    count: int
    per_token: int
    intermediate: int
    shared: int = 0
    """Experts that every token uses in addition to its own."""
    shared_intermediate: int = 0
    """How wide each of those is; 0: as the others."""
    layers: int | None = None
    """Layers that have experts; None = all but the dense ones."""
    width: int = 0
    """What experts read and write, where it is narrower than the network; 0: as wide as that."""

    @property
    def shared_width(self) -> int:
        """The width of all shared experts together."""
        return self.shared * (self.shared_intermediate or self.intermediate)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionGroup:
    """Layers whose attention is alike, in networks where it is not so in all layers."""

    layers: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: bool = False
    """Whether they attend to the last tokens only, so that their cache has a limit."""
    window_tokens: int = 0
    """How many those are; 0: they cache nothing of the tokens, or no field says it."""
    gated: bool = False
    """Whether a gate as wide as the queries multiplies what attention gives."""
    sharing: int = 0
    """How many of these layers read the cache of an earlier one."""

    query_rank: int = 0
    """Width that queries are made from; 0: the network's."""
    output_rank: int = 0
    """Width that the output of each part of the heads goes through; 0: it goes straight."""
    output_parts: int = 1

    @property
    def caching(self) -> int:
        """Layers with a cache of their own."""
        return self.layers - self.sharing

    @property
    def cached_width(self) -> float:
        """Values per cached token and head of keys."""
        return float(self.key_dim + self.value_dim)

    def parameters(self, hidden: int) -> float:
        """Weights of all its layers."""
        queries = self.heads * self.key_dim * (2 if self.gated else 1)
        outputs = self.heads * self.value_dim
        found = float(queries * (self.query_rank or hidden))
        found += hidden * self.query_rank
        if self.output_rank:
            found += self.output_rank * (outputs + self.output_parts * hidden)
        else:
            found += outputs * hidden
        own = self.kv_heads * self.cached_width * hidden
        return self.layers * found + self.caching * own


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedPart:
    """Something of which each GPU of a replica takes an equal part, as engines check when they start."""

    what: str
    count: int
    unit: int = 1
    """Values that each of the `count` has."""
    block: int = 1
    """No part may cut through a block of this many values, which have one scale."""
    may_be_copied: bool = False
    """Whether each GPU may hold one alone, where there are more GPUs than there are of them."""
    may_be_one: bool = False
    """Whether a single one is copied to all."""
    may_be_cut: bool = False
    """Whether there need only be as many as there are GPUs."""
