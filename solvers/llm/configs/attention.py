"""Attention of a configuration: heads, their sizes and their groups, layer by layer where these differ."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from solvers.llm.configs.fields import NAMES, ConfigFields
from solvers.llm.configs.layers import Kinds, LayerKind
from solvers.llm.configs.parts import AttentionGroup

_GATED = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
"""Types whose attention has a gate as wide as its queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What all layers have in common, and the groups in which they differ."""

    heads: int
    kv_heads: int
    head_dim: int
    full_layers: int | None
    """Layers whose cache grows with every token; None: all."""
    groups: tuple[AttentionGroup, ...]
    """Empty where all layers are alike, or have compressed keys."""


def read_attention(
    config: ConfigFields, kinds: Kinds, *, hidden: int, heads: int
) -> Attention:
    """Raises InvalidInput where a field is wrong."""
    head_dim = config.count(*NAMES["head_dim"], default=0)
    head_dim = head_dim or config.assumed("head_dim") or max(1, hidden // heads)
    kv_heads = _kv_heads(config, heads)
    full = sum(each in (LayerKind.FULL, LayerKind.BOTH) for each in kinds)
    if config.has("compress_ratios"):
        config.notes.append(
            "compress_ratios: tokens are taken as cached without compression"
        )
    has_ranks = config.has("o_lora_rank")
    # Searched networks state each layer by itself.
    blocks = config.items("block_configs")
    usual = AttentionGroup(
        layers=full,
        heads=heads,
        kv_heads=kv_heads,
        key_dim=head_dim,
        value_dim=config.count("v_head_dim", default=head_dim) or head_dim,
        gated=config.kind in _GATED and config.value("attn_output_gate") is not False,
        # DeepSeek V4; with compressed keys the rank of queries is theirs.
        query_rank=config.count("q_lora_rank", default=0) if has_ranks else 0,
        output_rank=config.count("o_lora_rank", default=0),
        output_parts=config.count("o_groups", default=1),
    )
    groups = tuple(_of_blocks(blocks, usual)) or _groups(config, kinds, usual)
    is_compressed = config.has("kv_lora_rank") and config.value("use_mla") is not False
    # Plain fields suffice there, and keep equal networks equal.
    if is_compressed or _are_alike(groups, usual, len(kinds)):
        groups = ()
    # Windows fill up: only the other layers' caches grow.
    caching = [each for each in groups if not each.window] or list(groups)
    counted = sum(each.layers for each in caching) if groups else full
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        full_layers=None if counted == len(kinds) else counted or None,
        groups=groups,
    )


def _are_alike(
    groups: tuple[AttentionGroup, ...], usual: AttentionGroup, layers: int
) -> bool:
    """Whether the plain fields say everything."""
    if len(groups) != 1 or usual.gated or usual.output_rank:
        return False
    if usual.key_dim != usual.value_dim:
        return False
    plain = replace(
        usual,
        layers=layers,
        window=groups[0].window,
        window_tokens=groups[0].window_tokens,
    )
    return groups[0] == plain


def _kv_heads(config: ConfigFields, heads: int) -> int:
    """Heads of keys and values; one where queries share all of them."""
    is_new = config.flag("new_decoder_architecture")
    # The newer Falcons state the flag too, and do not follow it.
    if config.flag("multi_query", default=config.kind == "gpt_bigcode") and not is_new:
        return 1
    if config.text("attn_type") == "multiquery_attention":
        return 1
    if config.flag("multi_query_attention"):
        return config.count("multi_query_group_num", default=1) or 1
    found = config.count(*NAMES["kv_heads"], default=0)
    return found or config.assumed("kv_heads") or heads


def _groups(
    config: ConfigFields, kinds: Kinds, usual: AttentionGroup
) -> tuple[AttentionGroup, ...]:
    """Layers that attend to all tokens, and those with a window."""
    windows = kinds.count(LayerKind.WINDOW)
    # A layer that reads another's cache has no matrices for keys and values.
    shared = _sharing(config, kinds)
    full = replace(usual, sharing=shared.get(LayerKind.FULL, 0))
    window = replace(
        usual,
        layers=windows,
        window=True,
        window_tokens=_window_tokens(config),
        heads=config.count("swa_num_attention_heads", default=usual.heads),
        kv_heads=config.count("swa_num_key_value_heads", default=usual.kv_heads),
        key_dim=config.count("swa_head_dim", default=usual.key_dim),
        value_dim=config.count("swa_v_head_dim", default=usual.value_dim),
        sharing=shared.get(LayerKind.WINDOW, 0),
    )
    global_dim = config.count("global_head_dim", default=0)
    if global_dim and windows:
        # Gemma 4: where keys are values, too, no matrix of their own makes these.
        full = replace(
            full,
            key_dim=global_dim,
            value_dim=global_dim,
            kv_heads=config.count("num_global_key_value_heads", default=0)
            or usual.kv_heads,
        )
    return tuple(each for each in (full, window) if each.layers)


def _window_tokens(config: ConfigFields) -> int:
    stated = config.count("sliding_window", "attention_chunk_size", default=0)
    # Layers that attend to pictures are counted with the windows, and cache no token.
    return (
        0
        if config.items("cross_attention_layers")
        else stated or config.assumed("window") or 0
    )


def _sharing(config: ConfigFields, kinds: Kinds) -> Mapping[LayerKind, int]:
    """How many of the last layers read the caches of earlier ones, by kind (Gemma 3n)."""
    default = 15 if config.kind == "gemma3n_text" else 0
    count = config.count("num_kv_shared_layers", default=default)
    if not count:
        return {}
    last = kinds[-count:]
    return {kind: last.count(kind) for kind in set(last)}


def _of_blocks(blocks: list[object], usual: AttentionGroup) -> Iterator[AttentionGroup]:
    """One group per layer that has attention (Nemotron's searched networks)."""
    for block in blocks:
        attention = block.get("attention") if isinstance(block, Mapping) else None
        if not isinstance(attention, Mapping):
            continue
        # They state how many queries share a head, not how many heads there are.
        sharers = attention.get("n_heads_in_group")
        if isinstance(sharers, int) and sharers > 0 and not attention.get("no_op"):
            yield replace(usual, layers=1, kv_heads=usual.heads // sharers)
