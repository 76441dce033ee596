"""A network's architecture from the `config.json` that its publisher ships with the weights (Hugging Face).

Also from Mistral's `params.json`. What is read, and how engines read it, is in `solvers.llm.configs`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from solvers.llm.architecture import Architecture, Precision
from solvers.llm.configs.attention import Attention, read_attention
from solvers.llm.configs.context import LongestRequest, read_context
from solvers.llm.configs.degrees import DENSE, EXPERT
from solvers.llm.configs.feed_forward import FeedForward, read_feed_forward
from solvers.llm.configs.fields import NAMES, ConfigFields, checked_count
from solvers.llm.configs.generation import refuse_without_generation
from solvers.llm.configs.layers import layer_count, layer_kinds
from solvers.llm.configs.mixers import read_mixers
from solvers.llm.configs.parts import CompressedKeys, DividedPart
from solvers.llm.configs.quantisation import Quantisation, read_quantisation
from solvers.llm.configs.towers import idle_parameters
from solvers.types.errors import InvalidInput

_MAX_LAYERS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedNetwork:
    """Everything that a configuration says of a network."""

    architecture: Architecture
    quantisation: Quantisation
    context: LongestRequest | None
    """The longest request; None: nothing limits it."""
    notes: tuple[str, ...]
    """What was assumed, in words."""

    @property
    def precision(self) -> Precision:
        """Its weights are kept in."""
        return self.quantisation.precision


def architecture_from_config(document: object) -> Architecture:
    """The shape that a parsed `config.json` states. Raises InvalidInput, which names the field and the remedy."""
    return read_config(document).architecture


def read_config(document: object) -> StatedNetwork:
    """Raises InvalidInput, which names the field and the remedy."""
    config = ConfigFields(document)
    # First: what else is missing in such a file would be no help.
    refuse_without_generation(config)
    # Hybrid networks may state a mark per layer and no number.
    layers = layer_count(config)
    hidden, heads = config.known("hidden"), config.known("heads")
    _refuse_zeros(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads
    )
    quantisation = read_quantisation(config, layers)
    kinds = layer_kinds(config, layers)
    attention = read_attention(config, kinds, hidden=hidden, heads=heads)
    mixers = read_mixers(
        config, kinds, hidden=hidden, heads=heads, head_dim=attention.head_dim
    )
    feed_forward = read_feed_forward(config, hidden, kinds)
    architecture = replace(
        _shape(config, attention, feed_forward, layers=layers, hidden=hidden),
        mixer_parameters=mixers.parameters,
        idle_parameters=idle_parameters(config, layers, hidden),
    )
    return StatedNetwork(
        architecture=replace(
            architecture,
            # What stays in 16 bits depends on the shape, and so do the widths that blocks divide.
            kept_parameters=_kept(architecture, quantisation),
            divided=(*mixers.divided, *_divided(architecture, quantisation)),
        ),
        quantisation=quantisation,
        context=read_context(config),
        notes=tuple(dict.fromkeys(config.notes)),
    )


def _refuse_zeros(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise InvalidInput(f"config.{name}", "must be at least 1")
    # Each layer is looked at by itself.
    if counts["num_hidden_layers"] > _MAX_LAYERS:
        message = f"must be at most {_MAX_LAYERS}"
        raise InvalidInput("config.num_hidden_layers", message)


def _shape(
    config: ConfigFields,
    attention: Attention,
    feed_forward: FeedForward,
    *,
    layers: int,
    hidden: int,
) -> Architecture:
    return Architecture(
        layers=layers,
        hidden=hidden,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        vocab=_vocabulary(config),
        dense_layers=feed_forward.dense_layers,
        dense_intermediate=feed_forward.dense_intermediate,
        full_attention_layers=attention.full_layers,
        experts=feed_forward.experts,
        compressed_keys=_compressed_keys(config),
        feed_forward_matrices=feed_forward.matrices,
        is_tied=_is_tied(config),
        attention=attention.groups,
    )


def _vocabulary(config: ConfigFields) -> int:
    # Networks of several senses may state it once for all of them.
    for_all = config.document.get("vocab_size")
    if for_all is not None and config.value(*NAMES["vocab"]) is None:
        return checked_count("vocab_size", for_all)
    return config.known("vocab")


_EXPANDED = ("minicpm3",)
"""Types with compressed keys that vLLM runs without their compressed cache."""
_TIED = ("minicpm", "phi3small")
"""Types that have no class in transformers, and leave out that embedding and output are one."""


def _is_tied(config: ConfigFields) -> bool:
    # The language part knows best; some files say it for all parts at once.
    for fields in (config.part, config.document):
        for name in ("tie_word_embeddings", "tied_embeddings"):
            stated = fields.get(name)
            if isinstance(stated, bool):
                return stated
    return bool(config.assumed("tied")) or config.kind in _TIED


def _compressed_keys(config: ConfigFields) -> CompressedKeys | None:
    if not config.has("kv_lora_rank") or config.value("use_mla") is False:
        return None
    nope_dim = config.count("qk_nope_head_dim")
    return CompressedKeys(
        kv_rank=config.count("kv_lora_rank"),
        rope_dim=config.count("qk_rope_head_dim"),
        q_rank=config.count("q_lora_rank", default=0),
        nope_dim=nope_dim,
        # Where it is left out, values are as wide as the part of keys without positions.
        v_dim=config.count("v_head_dim", default=nope_dim),
        is_expanded=config.kind in _EXPANDED,
    )


def _kept(network: Architecture, quantisation: Quantisation) -> float:
    """Weights that the method leaves in bf16, other than embedding and output."""
    # Routers and norms stay in 16 bits as well: too few weights to count.
    found = 0.0
    if quantisation.keeps_attention:
        found += network.attention_parameters
    if quantisation.keeps_shared_experts:
        found += network.shared_parameters
    if quantisation.keeps_mixers:
        found += network.mixer_parameters
    return found


def _divided(
    network: Architecture, quantisation: Quantisation
) -> Iterator[DividedPart]:
    """Widths with blocks that no part may cut through, and what else a family divides."""
    block, experts = quantisation.block, network.experts
    # Attention that is not quantised has no blocks, and compressed keys are divided by heads alone.
    has_heads = not (quantisation.keeps_attention or network.compressed_keys)
    if block > 1 and has_heads:
        head_dim = network.head_dim
        what = f"heads of {head_dim} values"
        yield DividedPart(what=what, count=network.heads, unit=head_dim, block=block)
    if block > 1 and network.dense_layers and network.dense_intermediate:
        yield DividedPart(what=DENSE, count=network.dense_intermediate, block=block)
    if experts and quantisation.expert_block > 1:
        width = experts.intermediate
        yield DividedPart(what=EXPERT, count=width, block=quantisation.expert_block)
    if experts and experts.shared and not quantisation.keeps_shared_experts:
        what = "columns of the shared expert"
        yield DividedPart(what=what, count=experts.shared_width, block=block)
