"""Feed-forward layers of a configuration: how wide, of how many matrices, and which of them have experts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from solvers.llm.configs.fields import ConfigFields, checked_count
from solvers.llm.configs.layers import TWICE, Kinds
from solvers.llm.configs.parts import Experts
from solvers.types.errors import InvalidInput

_TWO_MATRICES = frozenset(
    {
        "apertus",
        "arcee",
        "biogpt",
        "bloom",
        "codegen",
        "falcon",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "gpt_neox",
        "gpt_neox_japanese",
        "gptj",
        "mpt",
        "nemotron",
        "opt",
        "persimmon",
        "phi",
        "phi-msft",
        "RefinedWeb",
        "RefinedWebModel",
        "starcoder2",
        "xglm",
    }
)
"""Types without a gate: one matrix up and one down."""
_ONE_WAY = ("relu2", "relu", "xielu", "gelu_new", "squared_relu")
"""Activations that have no gate."""
_WIDTHS = (
    "moe_intermediate_size",
    "expert_hidden_dim",
    "moe_ffn_hidden_size",
    "expert_ffn_hidden_size",
)
_COUNTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "top_k",
)
_SHARED = (
    "n_shared_experts",
    "num_shared_experts",
    "moe_num_shared_experts",
    "num_shared_expert",
)
_SHARED_WIDTHS = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
    "share_expert_dim",
)
_SEARCHED_STEP = 256
_USUAL_RATIO = 4
"""Width of a feed-forward layer over the network's where nothing else is stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """All feed-forward layers of a network."""

    matrices: int
    dense_layers: int
    dense_intermediate: int
    experts: Experts | None


def read_feed_forward(config: ConfigFields, hidden: int, kinds: Kinds) -> FeedForward:
    """Raises InvalidInput where a field is wrong."""
    matrices = _matrices(config)
    # A mean width stands for all: sums over layers come out the same.
    widths = list(_searched_widths(config, hidden))
    if widths:
        mean = sum(widths) / len(widths)
        return FeedForward(
            matrices=matrices,
            dense_layers=len(widths),
            dense_intermediate=_rounded_up(mean, _SEARCHED_STEP),
            experts=None,
        )
    intermediate = _intermediate(config, hidden, matrices)
    marks = _expert_marks(config, len(kinds))
    if not any(marks):
        return FeedForward(
            matrices=matrices,
            dense_layers=_dense_layers(config, kinds, marks),
            dense_intermediate=_dense_width(config, intermediate),
            experts=None,
        )
    dense = _dense_layers(config, kinds, marks)
    # Where every layer has one part or the other, the number of dense ones says it.
    layers = None if dense + sum(marks) == len(kinds) else sum(marks)
    return FeedForward(
        matrices=matrices,
        dense_layers=dense,
        dense_intermediate=_dense_width_beside_experts(config, intermediate),
        experts=_experts(config, layers, intermediate),
    )


def _searched_widths(config: ConfigFields, hidden: int) -> Iterator[int]:
    """One width per layer that has a feed-forward part, where each was searched for (Nemotron)."""
    for block in config.items("block_configs"):
        part = block.get("ffn") if isinstance(block, Mapping) else None
        if not isinstance(part, Mapping) or part.get("no_op"):
            continue
        stated, ratio = part.get("intermediate_size"), part.get("ffn_mult")
        if isinstance(stated, int):
            yield stated
        elif isinstance(ratio, int | float):
            # Two thirds, as three matrices take the place of two.
            yield _rounded_up(2.0 * ratio * hidden / 3.0, _SEARCHED_STEP)


def _rounded_up(width: float, step: int) -> int:
    return -(-int(width) // step) * step


def _matrices(config: ConfigFields) -> int:
    activation = config.text("mlp_hidden_act", "hidden_act", "activation_function")
    if config.kind in _TWO_MATRICES:
        return 2
    # BitNet has a gate all the same.
    if activation == "relu2" and config.kind != "bitnet":
        return 2
    # Without a type, a network of an older form says it by its activation.
    return 2 if not config.kind and activation in _ONE_WAY else 3


def _intermediate(config: ConfigFields, hidden: int, matrices: int) -> int:
    """The width of dense layers."""
    found = config.known("intermediate", default=0)
    if config.kind == "qwen":
        # Qwen 1 states gate and up together.
        return found // 2
    if config.flag("block_auto_adjust_ff_dim"):
        # LFM2 states the width of two matrices, and has three of two thirds.
        ratio = config.number("block_ffn_dim_multiplier", default=1.0)
        stated = config.count("block_ff_dim", default=found)
        step = config.count("block_multiple_of", default=_SEARCHED_STEP)
        return _rounded_up(int(2 * stated / 3) * ratio, step)
    if config.has("mlp_hidden_size"):
        return config.count("mlp_hidden_size") // 2
    if found:
        return found
    ratio = config.number("expansion_ratio", default=_USUAL_RATIO)
    if matrices > 2 and not config.has(*_WIDTHS, "block_configs"):
        config.notes.append(
            f"intermediate_size is not stated: taken as {_USUAL_RATIO} · hidden_size"
        )
    return round(ratio * hidden)


def _dense_width(config: ConfigFields, intermediate: int) -> int:
    # Granite's networks without experts keep the part that experts share as their dense one.
    if config.kind == "granitemoehybrid":
        return config.count("shared_intermediate_size", default=intermediate)
    return intermediate


def _dense_width_beside_experts(config: ConfigFields, intermediate: int) -> int:
    return config.count(
        "intermediate_size_mlp", "dense_intermediate_size", default=intermediate
    )


def _dense_layers(config: ConfigFields, kinds: Kinds, marks: list[bool]) -> int:
    """Layers with a dense part: those without experts, or all where both stand next to each other."""
    if config.flag("enable_moe_block") or config.kind == TWICE:
        return len(kinds)
    pattern = config.text("hybrid_override_pattern")
    if pattern:
        return pattern[: len(kinds)].count("-")
    if config.items("layers_block_type") and config.kind == "nemotron_h":
        return config.items("layers_block_type").count("mlp")
    return len(kinds) - sum(marks)


def _experts(config: ConfigFields, layers: int | None, intermediate: int) -> Experts:
    width = config.count(*_WIDTHS, default=config.assumed("expert_intermediate") or 0)
    width = width or intermediate
    count = _expert_count(config)
    per_token = config.count(*_PER_TOKEN, default=config.assumed("per_token") or 0)
    if not per_token:
        raise InvalidInput(
            f"config.{_PER_TOKEN[0]}", "is missing: state how many experts a token uses"
        )
    shared = config.count(*_SHARED, default=0)
    shared_width = config.count(*_SHARED_WIDTHS, default=0)
    if config.kind in ("llama4", "llama4_text"):
        # One expert of every layer is shared, without a field that says so.
        shared = 1
    elif shared_width:
        shared = max(shared, 1)
    return Experts(
        count=count,
        per_token=min(per_token, count),
        intermediate=width,
        shared=shared,
        shared_intermediate=shared_width,
        layers=layers,
        width=config.count("moe_latent_size", "routed_expert_hidden_size", default=0),
    )


def _expert_count(config: ConfigFields) -> int:
    found = config.count(*_COUNTS, default=-1)
    if found < 0:
        found = config.assumed("experts") or 0
    # Dense siblings of a family state one expert or none.
    return found if found > 1 else 0


def _expert_marks(config: ConfigFields, layers: int) -> list[bool]:
    """Whether each layer has experts."""
    is_moe = config.value("enable_moe_block") is not False
    if not _expert_count(config) or not is_moe:
        return [False] * layers
    rules = (_stated_marks, _lettered_marks, _placed_marks, _periodic_marks)
    for rule in rules:
        found = rule(config, layers)
        if found:
            return found
    return _from_first(config, layers)


def _stated_marks(config: ConfigFields, layers: int) -> list[bool]:
    """A name or a 0 or 1 per layer."""
    marks = config.items("mlp_layer_types")
    if len(marks) >= layers:
        return [mark == "sparse" for mark in marks[:layers]]
    marks = config.items("moe_layer_freq")
    if len(marks) >= layers:
        return [bool(mark) for mark in marks[:layers]]
    return []


def _lettered_marks(config: ConfigFields, layers: int) -> list[bool]:
    pattern = config.text("hybrid_override_pattern")
    if pattern:
        return [letter == "E" for letter in pattern[:layers]]
    marks = config.items("layers_block_type", "layer_types")
    if config.kind == "nemotron_h" and len(marks) >= layers:
        return [mark == "moe" for mark in marks[:layers]]
    return []


def _placed_marks(config: ConfigFields, layers: int) -> list[bool]:
    """Numbers of the layers that have experts."""
    places = config.items("moe_layers")
    text = config.text("moe_layers_enum")
    if text:
        places = [int(each) for each in text.split(",") if each.strip().isdigit()]
    if not places:
        return []
    chosen = {checked_count("moe_layers", each) for each in places}
    return [i in chosen for i in range(layers)]


def _periodic_marks(config: ConfigFields, layers: int) -> list[bool]:
    """One layer in this number has experts."""
    for rule in (_interleaved, _stepped, _offset, _between):
        found = rule(config)
        if found is not None:
            return [found(i) for i in range(layers)]
    return []


_IsExpert = Callable[[int], bool]


def _interleaved(config: ConfigFields) -> _IsExpert | None:
    """Llama 4 and Arctic: the last layer of each group."""
    usual = 2 if config.kind == TWICE else 0
    step = config.count(
        "interleave_moe_layer_step", "moe_layer_frequency", default=usual
    )
    return (lambda i: (i + 1) % step == 0) if step else None


def _stepped(config: ConfigFields) -> _IsExpert | None:
    """Qwen: the last of each group, without some that are listed."""
    step = config.count("decoder_sparse_step", default=0)
    dense = {
        checked_count("mlp_only_layers", i) for i in config.items("mlp_only_layers")
    }
    if not step and not dense:
        return None
    every = max(step, 1)
    return lambda i: i not in dense and (i + 1) % every == 0


def _offset(config: ConfigFields) -> _IsExpert | None:
    """Jamba: one of each group, from an offset on."""
    period = config.count(
        "expert_layer_period", default=2 if config.kind == "jamba" else 0
    )
    offset = config.count("expert_layer_offset", default=1)
    return (lambda i: i % period == offset % period) if period else None


def _between(config: ConfigFields) -> _IsExpert | None:
    """ERNIE: the last of each group between two layers."""
    if not config.has("moe_layer_interval", "moe_layer_end_index"):
        return None
    every = max(1, config.count("moe_layer_interval", default=1))
    first = config.count("moe_layer_start_index", default=0)
    last = config.count("moe_layer_end_index", default=10**6)
    return lambda i: first <= i <= last and (i + 1) % every == 0


def _from_first(config: ConfigFields, layers: int) -> list[bool]:
    """All layers after the first dense ones, or one of each group of them."""
    first = config.count(
        "first_k_dense_replace", "num_dense_layers", "moe_layer_num_skipped", default=0
    )
    every = max(1, config.count("moe_layer_freq", default=1))
    return [i >= first and i % every == 0 for i in range(layers)]
