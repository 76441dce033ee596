"""A network's architecture from the `config.json` that its publisher ships with the weights (Hugging Face)."""

from collections.abc import Mapping

from solvers.llm.architecture import Architecture, CompressedKeys, Experts, Precision
from solvers.types.documents.strict_json import describe
from solvers.types.errors import InvalidInput

_MAX = 10_000_000
"""No field that is read here is larger; a bigger one is no count of anything in a network."""
_PRECISIONS: Mapping[str, Precision] = {
    "fp8": "fp8",
    "compressed-tensors": "fp8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
    "awq": "int4",
    "gptq": "int4",
}
"""Methods of quantisation by their names in `quantization_config`."""


class _Config:
    """Fields by any of the names that publishers give them."""

    def __init__(self, document: object) -> None:
        if not isinstance(document, Mapping):
            message = f"must be an object, not {describe(document)}"
            raise InvalidInput("config", message)
        # Networks that see pictures, too, keep the language part in an object of its own.
        nested = document.get("text_config")
        self._document = nested if isinstance(nested, Mapping) else document

    def has(self, *names: str) -> bool:
        """Whether one of the fields is there, and says something."""
        return any(self._document.get(name) not in (None, 0) for name in names)

    def count(self, *names: str, default: int | None = None) -> int:
        """A whole number above 0, by the first of these names that is there."""
        for name in names:
            value = self._document.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                message = f"must be a whole number, not {describe(value)}"
                raise InvalidInput(f"config.{name}", message)
            if not 0 <= value <= _MAX:
                message = f"must be between 0 and {_MAX}, not {describe(value)}"
                raise InvalidInput(f"config.{name}", message)
            return value
        if default is None:
            message = "is missing: give the config.json that lies beside the weights"
            raise InvalidInput(f"config.{names[0]}", message)
        return default

    def text(self, name: str, field: str) -> str:
        """A text in an object of the configuration; empty where there is none."""
        own = self._document.get(name)
        value = own.get(field) if isinstance(own, Mapping) else None
        return value if isinstance(value, str) else ""


def architecture_from_config(document: object) -> Architecture:
    """The shape that a parsed `config.json` states. Raises InvalidInput, which names the field and the remedy."""
    config = _Config(document)
    layers = config.count("num_hidden_layers", "n_layer")
    hidden = config.count("hidden_size", "n_embd")
    heads = config.count("num_attention_heads", "n_head")
    _refuse_zeros(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads
    )
    experts = _experts(config)
    # Layers without experts stand at the beginning, as in DeepSeek's networks.
    first = config.count("first_k_dense_replace", default=0)
    return Architecture(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=config.count("num_key_value_heads", default=heads) or heads,
        head_dim=config.count("head_dim", default=hidden // heads) or hidden // heads,
        vocab=config.count("vocab_size"),
        dense_layers=layers if experts is None else min(first, layers),
        dense_intermediate=config.count("intermediate_size", "n_inner", default=0),
        experts=experts,
        compressed_keys=_compressed_keys(config),
    )


def _refuse_zeros(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise InvalidInput(f"config.{name}", "must be at least 1")


def precision_from_config(document: object) -> Precision:
    """The precision of the weights that a `config.json` states; bf16 where it states none."""
    method = _Config(document).text("quantization_config", "quant_method").lower()
    return _PRECISIONS.get(method, "bf16")


def _experts(config: _Config) -> Experts | None:
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    if not config.has(*names):
        return None
    intermediate = ("moe_intermediate_size", "intermediate_size")
    return Experts(
        count=config.count(*names),
        per_token=config.count("num_experts_per_tok", "experts_per_token"),
        intermediate=config.count(*intermediate),
        shared=config.count("n_shared_experts", default=0),
    )


def _compressed_keys(config: _Config) -> CompressedKeys | None:
    if not config.has("kv_lora_rank"):
        return None
    return CompressedKeys(
        kv_rank=config.count("kv_lora_rank"),
        rope_dim=config.count("qk_rope_head_dim"),
        q_rank=config.count("q_lora_rank", default=0),
        nope_dim=config.count("qk_nope_head_dim"),
        v_dim=config.count("v_head_dim"),
    )
