"""The kind of each layer of a network: attention to all tokens, to a window, a state of fixed size, or none."""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

from solvers.llm.configs.fields import NAMES, ConfigFields, checked_count
from solvers.types.errors import InvalidInput

Kinds = tuple["LayerKind", ...]


class LayerKind(StrEnum):
    """How a layer mixes tokens."""

    FULL = "full"
    """It attends to all tokens: its cache grows with each."""
    WINDOW = "window"
    """It attends to the last tokens only, or to those of one chunk."""
    STATE = "state"
    """A state of fixed size: Mamba and linear attention."""
    BOTH = "both"
    """Attention and a state next to each other."""
    CONVOLUTION = "convolution"
    NONE = "none"
    """It has a feed-forward part alone."""

    @property
    def has_attention(self) -> bool:
        """Whether it has matrices for queries, keys and values."""
        return self in (LayerKind.FULL, LayerKind.WINDOW, LayerKind.BOTH)


_NAMES: Mapping[str, LayerKind] = {
    "full_attention": LayerKind.FULL,
    "attention": LayerKind.FULL,
    "full": LayerKind.FULL,
    "global": LayerKind.FULL,
    "deepseek_sparse_attention": LayerKind.FULL,
    "sliding_attention": LayerKind.WINDOW,
    "sliding_window": LayerKind.WINDOW,
    "sliding": LayerKind.WINDOW,
    "local": LayerKind.WINDOW,
    "chunked_attention": LayerKind.WINDOW,
    "linear_attention": LayerKind.STATE,
    "mamba": LayerKind.STATE,
    "mamba2": LayerKind.STATE,
    "recurrent": LayerKind.STATE,
    "hybrid": LayerKind.BOTH,
    "conv": LayerKind.CONVOLUTION,
    "mlp": LayerKind.NONE,
    "moe": LayerKind.NONE,
}
_LETTERS: Mapping[str, LayerKind] = {
    "*": LayerKind.FULL,
    "M": LayerKind.STATE,
    "-": LayerKind.NONE,
    "E": LayerKind.NONE,
}
"""Nemotron-H's pattern: attention, Mamba, dense and expert layers."""
_ALTERNATING = ("gemma2", "gpt_oss", "vaultgemma")
"""Types whose every second layer attends to all tokens where no list says otherwise."""
_PERIODS: Mapping[str, int] = {
    "gemma3_text": 6,
    "gemma3": 6,
    "gemma3n_text": 5,
    "gemma4_text": 6,
    "cohere2": 4,
    "llama4_text": 4,
    "llama4": 4,
    "olmo3": 4,
}
"""Types whose last layer of each group attends to all tokens."""


TWICE = "longcat_flash"
"""A type whose layers have attention and a dense part twice, next to one part with experts."""


def layer_count(config: ConfigFields) -> int:
    """As stated, or as many as there are marks of layers. Raises InvalidInput."""
    # Some hybrids count layers by their marks alone.
    marks = config.text("hybrid_override_pattern") or config.items("layers_block_type")
    if config.value(*NAMES["layers"]) is None and marks:
        return len(marks)
    return config.known("layers") * (2 if config.kind == TWICE else 1)


def layer_kinds(config: ConfigFields, layers: int) -> Kinds:
    """One kind per layer, by the field that says it."""
    readers: tuple[Callable[[ConfigFields, int], Kinds], ...] = (
        _listed,
        _lettered,
        _numbered,
        _spaced,
        _windowed,
    )
    for read in readers:
        found = read(config, layers)
        if found:
            _refuse_without_attention(found)
            return _with_pictures(config, _with_states(config, found))
    return _with_pictures(config, _with_states(config, (LayerKind.FULL,) * layers))


def _refuse_without_attention(kinds: Kinds) -> None:
    if any(each.has_attention for each in kinds):
        return
    message = (
        "no layer has attention, whose cache decides how many requests a replica holds: such networks cannot be "
        "sized; apply a Profile of what was measured"
    )
    raise InvalidInput("config.layer_types", message)


def _with_pictures(config: ConfigFields, kinds: Kinds) -> Kinds:
    """Layers that attend to pictures cache nothing of the tokens."""
    places = config.items("cross_attention_layers")
    return tuple(
        LayerKind.WINDOW if i in places else each for i, each in enumerate(kinds)
    )


def _with_states(config: ConfigFields, kinds: Kinds) -> Kinds:
    """Falcon-H1 has a Mamba part next to the attention of every layer."""
    if config.kind != "falcon_h1":
        return kinds
    return (LayerKind.BOTH,) * len(kinds)


def _listed(config: ConfigFields, layers: int) -> Kinds:
    """A word per layer."""
    names = config.items("layer_types", "layers_block_type")
    found = tuple(_NAMES.get(str(name)) for name in names)
    if not found or len(found) < layers:
        return ()
    unknown = sorted({str(name) for name in names if str(name) not in _NAMES})
    for name in unknown:
        config.notes.append(
            f"layers of type {name!r}: taken as attention to all tokens"
        )
    return tuple(each or LayerKind.FULL for each in found[:layers])


def _lettered(config: ConfigFields, layers: int) -> Kinds:
    """A letter per layer."""
    pattern = config.text("hybrid_override_pattern", "hybrid_layer_pattern")
    if len(pattern) < layers:
        return ()
    return tuple(_LETTERS.get(each, LayerKind.FULL) for each in pattern[:layers])


def _numbered(config: ConfigFields, layers: int) -> Kinds:
    """Numbers of layers, or 0 and 1 for each."""
    marks = config.items("attn_type_list", "attn_layer_types")
    if len(marks) >= layers:
        # MiniMax: 1 is attention to all tokens, 0 a linear one.
        return _either(marks[:layers], LayerKind.FULL, LayerKind.STATE)
    marks = config.items("hybrid_layer_pattern")
    if len(marks) >= layers:
        # MiMo: 1 is a window.
        return _either(marks[:layers], LayerKind.WINDOW, LayerKind.FULL)
    linear = config.part_of("linear_attn_config").get("full_attn_layers")
    if isinstance(linear, list):
        # Kimi counts layers from 1.
        chosen = {checked_count("full_attn_layers", each) - 1 for each in linear}
        return _at(chosen, layers, LayerKind.STATE)
    for name, other in (
        ("attn_layer_indices", LayerKind.STATE),
        ("full_attn_idxs", LayerKind.CONVOLUTION),
        ("hybrid_layer_ids", LayerKind.STATE),
    ):
        places = config.items(name)
        if places:
            return _at({checked_count(name, each) for each in places}, layers, other)
    return ()


def _either(marks: list[object], one: LayerKind, zero: LayerKind) -> Kinds:
    return tuple(one if mark else zero for mark in marks)


def _at(places: set[int], layers: int, other: LayerKind) -> Kinds:
    """Attention to all tokens at these places."""
    return tuple(LayerKind.FULL if i in places else other for i in range(layers))


def _spaced(config: ConfigFields, layers: int) -> Kinds:
    """One layer of each group of this size attends to all tokens; the others have a state."""
    usual = 4 if config.kind.startswith(("qwen3_next", "qwen3_5")) else 0
    every = config.count("full_attention_interval", default=usual)
    if every:
        return tuple(_every(every, every - 1, layers, LayerKind.STATE))
    every = config.count("layer_group_size", default=0)
    if every > 1:
        return tuple(_every(every, every - 1, layers, LayerKind.STATE))
    every = config.count("attn_layer_period", default=0)
    if every:
        offset = config.count("attn_layer_offset", default=0)
        return tuple(_every(every, offset, layers, LayerKind.STATE))
    if config.kind == "jamba":
        return tuple(_every(8, 4, layers, LayerKind.STATE))
    return ()


def _windowed(config: ConfigFields, layers: int) -> Kinds:
    """Windows, with attention to all tokens in some layers or in none."""
    if not _has_window(config):
        return ()
    # A text gives letters, a number a period.
    letters = config.text("sliding_window_pattern")
    if letters:
        # EXAONE: L is a window, G attends to all; the last layer always does.
        found = [letters[i % len(letters)] == "G" for i in range(layers)]
        found[-1] = True
        return _either(list(found), LayerKind.FULL, LayerKind.WINDOW)
    # Qwen's first layers have no windows.
    first = config.count("max_window_layers", default=0)
    if first:
        return tuple(
            LayerKind.FULL if i < first else LayerKind.WINDOW for i in range(layers)
        )
    every = config.count(
        "sliding_window_pattern",
        "_sliding_window_pattern",
        "global_attn_every_n_layers",
        default=2 if config.kind in _ALTERNATING else _PERIODS.get(config.kind, 0),
    )
    if every:
        return tuple(_every(every, every - 1, layers, LayerKind.WINDOW))
    return (LayerKind.WINDOW,) * layers


def _has_window(config: ConfigFields) -> bool:
    # Qwen's files state a window that they do not use.
    if config.value("use_sliding_window") is False:
        return False
    if config.has("sliding_window", "attention_chunk_size"):
        return True
    return config.assumed("window") is not None and config.kind in (
        *_ALTERNATING,
        *_PERIODS,
    )


def _every(
    period: int, offset: int, layers: int, other: LayerKind
) -> Iterator[LayerKind]:
    for i in range(layers):
        yield LayerKind.FULL if i % period == offset % period else other
