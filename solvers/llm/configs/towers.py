"""Weights that steps of text do not read: towers for pictures and sound, their projectors, tables of vectors."""

from collections.abc import Iterator, Mapping

from solvers.llm.configs.defaults import class_defaults
from solvers.llm.configs.fields import ConfigFields, Fields

_NAMES = (
    "vision_config",
    "visual",
    "vision_tower_config",
    "audio_config",
    "audio_encoder_config",
    "vit_config",
    "vision",
)
_WIDTHS = ("embed_dim", "width", "hidden_size", "d_model", "n_embd", "dim")
_DEPTHS = ("depth", "num_hidden_layers", "layers", "encoder_layers", "num_layers")
_INNER = ("intermediate_size", "encoder_ffn_dim", "ffn_dim", "mlp_dim", "hidden_dim")
_GATED = (
    "pixtral",
    "qwen2_5_vl",
    "qwen2_5_omni",
    "glm4v",
    "gemma4",
    "aimv2",
    "glm_ocr",
)
"""Towers whose feed-forward layers have a gate: types that begin so."""
_NAMED: tuple[tuple[str, tuple[int, int, int]], ...] = (
    ("so400m", (1152, 27, 4304)),
    ("siglip_large", (1024, 24, 4096)),
    ("clip-vit-large", (1024, 24, 4096)),
    ("internvit-300m", (1024, 24, 4096)),
    ("internvit-6b", (3200, 45, 12800)),
)
"""Width, layers and inner width of towers that files state by their names alone."""
_MOBILE_NET = 0.3e9
"""Gemma 3n's tower for pictures, which its file states by its name alone."""
_CONFORMER_SQUARES = 24.0
"""Weights of a conformer's block over the square of its width: two feed-forward parts, attention, a convolution."""
_MERGED = 4
"""Patches that projectors put together, in towers that do."""


def idle_parameters(config: ConfigFields, layers: int, hidden: int) -> float:
    """All of them together."""
    kind = str(config.document.get("model_type", ""))
    towers = sum(_tower(each, kind, hidden) for each in _towers(config))
    named = _named_tower(config.document, hidden)
    tables = _positions(config, hidden) + layers * _layer_embedding(config, hidden)
    return (towers or named) + tables


def _towers(config: ConfigFields) -> Iterator[Fields]:
    """Towers of the document, and those of the part that thinks."""
    # Omni networks keep their towers with the part that thinks; what talks is not served.
    holders = [config.document]
    thinker = config.document.get("thinker_config")
    if isinstance(thinker, Mapping):
        holders.append(thinker)
    for holder in holders:
        for name in _NAMES:
            tower = holder.get(name)
            if isinstance(tower, Mapping) and tower:
                yield tower


def _named_tower(fields: Fields, hidden: int) -> float:
    """A tower that the file names in a field, or in an object of it; 0 where there is none."""
    names = [fields.get("mm_vision_tower"), fields.get("vision_tower")]
    inner = fields.get("img_processor")
    if isinstance(inner, Mapping):
        names.append(inner.get("model_name"))
    return sum(_by_name(name, hidden) for name in names if isinstance(name, str))


def _by_name(name: str, hidden: int) -> float:
    for part, (width, depth, inner) in _NAMED:
        if part in name.lower():
            layer = 4.0 * width * width + 2.0 * width * inner
            return depth * layer + _projector({}, width, hidden)
    return 0.0


def _tower(fields: Fields, document_kind: str, hidden: int) -> float:
    """Attention and feed-forward parts of every layer, with the projector; within a few per cent."""
    kind = str(fields.get("model_type", document_kind))
    known = class_defaults(kind)
    inside = fields.get("params")
    if isinstance(inside, Mapping):
        return _by_name(str(inside.get("model_name", "")), hidden)
    if str(fields.get("architecture", "")).startswith("mobilenetv5_300m"):
        return _MOBILE_NET
    width = _first(fields, _WIDTHS) or known.get("hidden", 0)
    if blocks := _first(fields, ("conf_num_hidden_layers",)):
        return blocks * _CONFORMER_SQUARES * float(width * width)
    depth = _first(fields, _DEPTHS) or known.get("layers", 0)
    depth += _first(fields, ("num_global_layers",))
    # Older towers state a ratio in place of a width.
    ratio = fields.get("mlp_ratio")
    inner = _first(fields, _INNER) or known.get("intermediate", 0)
    if isinstance(ratio, int | float) and not _first(fields, _INNER):
        inner = round(width * ratio)
    matrices = 3 if kind.startswith(_GATED) else 2
    layer = 4.0 * width * width + matrices * width * (inner or 4 * width)
    return depth * layer + _projector(fields, width, hidden)


def _projector(fields: Fields, width: int, hidden: int) -> float:
    if "spatial_merge_size" in fields:
        # Patches are joined before they are projected.
        merged = float(width * _MERGED)
        mergers = 1 + len(_list(fields.get("deepstack_visual_indexes")))
        return mergers * merged * (merged + hidden)
    return float(width) * hidden + float(hidden) * hidden


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _first(fields: Fields, names: tuple[str, ...]) -> int:
    for name in names:
        value = fields.get(name)
        if isinstance(value, int) and value > 0:
            return value
    return 0


_LEARNED = ("gpt2", "gpt_bigcode", "opt", "gpt_neo", "biogpt", "xglm")
"""Types that learn an embedding per position."""


def _positions(config: ConfigFields, hidden: int) -> float:
    if config.kind not in _LEARNED:
        return 0.0
    places = config.count("n_positions", "max_position_embeddings", default=0)
    return float(places * hidden)


def _layer_embedding(config: ConfigFields, hidden: int) -> float:
    """Gemma 3n and 4 look up a small vector per token for every layer."""
    width = config.count("hidden_size_per_layer_input", default=0)
    vocab = config.count("vocab_size_per_layer_input", default=0)
    if config.kind == "gemma3n_text":
        width, vocab = width or 256, vocab or 262_144
    # It is projected to, gated and projected back.
    return float(width * (vocab + 3 * hidden))
