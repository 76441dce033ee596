"""How long a request with its answer may be at most, as vLLM (0.32) derives it from a configuration."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from solvers.llm.configs.fields import MAX_COUNT, ConfigFields, Fields, checked_count
from solvers.types.errors import InvalidInput

_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_SCALED = ("su", "longrope", "llama3", "deepseek_yarn", "deepseek_llama_scaling")
"""Kinds of scaling whose files state the scaled length."""
_ORIGINAL = "original_max_position_embeddings"


class LongestRequest(NamedTuple):
    """The longest request, and the field that says so."""

    tokens: int
    field: str


def refuse_longer(context: LongestRequest | None, max_model_len: int) -> None:
    """Raise InvalidInput where an engine would not start with so long a context."""
    if context is None or max_model_len <= context.tokens:
        return
    message = (
        f"{max_model_len} is more than {context.tokens}, the longest request by {context.field} of its config.json: "
        "vLLM does not start with more"
    )
    raise InvalidInput("max_model_len", message)


def read_context(config: ConfigFields) -> LongestRequest | None:
    """None where no field says it: an engine takes any length then."""
    stated = _stated(config)
    if stated is None:
        return None
    tokens = float(stated.tokens)
    # Gemma 3 states a length that is scaled already.
    if "gemma3" not in _kinds(config):
        for rope in _ropes(config):
            tokens = max(tokens, _scaled(config, rope, stated.tokens))
    # Files may hold any number: no network has a longer context than this.
    return LongestRequest(int(min(tokens, MAX_COUNT)), stated.field)


def _kinds(config: ConfigFields) -> str:
    return f"{config.document.get('model_type', '')} {config.kind}"


def _stated(config: ConfigFields) -> LongestRequest | None:
    """The smallest of all fields; `model_max_length` stands above them."""
    # Cohere's files state the length before scaling in the other fields.
    own = config.value("model_max_length")
    if own is not None:
        return LongestRequest(
            checked_count("model_max_length", own), "model_max_length"
        )
    found = [
        LongestRequest(checked_count(name, value), name)
        for name in _KEYS
        if (value := config.value(name)) is not None
    ]
    # Engines fall back on the class as well, so that the limit is a real one.
    usual = config.assumed("context")
    if not found and usual is not None:
        return LongestRequest(usual, f"the default of {config.kind}")
    return min(found, default=None)


def _ropes(config: ConfigFields) -> Iterator[Fields]:
    """Scalings of positions: one for all layers, or one per kind of layer."""
    for name in ("rope_parameters", "rope_scaling", "yarn"):
        rope = config.part_of(name)
        if not rope:
            continue
        # Since transformers 5 there may be one scaling per kind of layer.
        inner = [each for each in rope.values() if isinstance(each, Mapping)]
        yield from inner or [rope]
        return


def _scaled(config: ConfigFields, rope: Fields, tokens: int) -> float:
    """The length with this scaling."""
    kind = str(rope.get("rope_type") or rope.get("type") or "yarn")
    factor = rope.get("factor")
    if (
        kind in _SCALED
        or isinstance(factor, bool)
        or not isinstance(factor, int | float)
    ):
        return float(tokens)
    if kind.endswith("yarn"):
        # Files state the scaled length, the original one, or both; the larger one is what the network can do.
        original = rope.get(_ORIGINAL) or config.value(_ORIGINAL)
        if isinstance(original, int):
            return max(float(tokens), float(factor) * original)
        config.notes.append(
            f"rope_scaling: yarn does not state {_ORIGINAL}: {tokens} is taken for the scaled length"
        )
        return float(tokens)
    return tokens * float(factor)
