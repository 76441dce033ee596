"""Weights of layers that keep a state instead of a cache: Mamba, linear attention and convolutions."""

from typing import NamedTuple

from solvers.llm.configs.fields import ConfigFields, checked_count
from solvers.llm.configs.layers import Kinds, LayerKind
from solvers.llm.configs.parts import DividedPart


class Mixers(NamedTuple):
    """All such layers of a network."""

    parameters: float
    divided: tuple[DividedPart, ...]
    """What the GPUs of a replica share out among each other."""


class _Shape(NamedTuple):
    hidden: int
    heads: int
    head_dim: int


def read_mixers(
    config: ConfigFields, kinds: Kinds, *, hidden: int, heads: int, head_dim: int
) -> Mixers:
    """The weights of one layer of each kind, as often as there are such layers."""
    shape = _Shape(hidden, heads, head_dim)
    # Layers with both parts have all weights of both.
    states = sum(each in (LayerKind.STATE, LayerKind.BOTH) for each in kinds)
    convolutions = kinds.count(LayerKind.CONVOLUTION)
    # Three matrices in and one out (LFM2).
    found = convolutions * 4.0 * hidden * hidden
    if not states:
        return Mixers(found, ())
    each = _state_layer(config, shape)
    return Mixers(found + states * each.parameters, each.divided)


def _state_layer(config: ConfigFields, shape: _Shape) -> Mixers:
    """One layer, by the fields that its family states."""
    is_qwen = config.kind.startswith(("qwen3_next", "qwen3_5"))
    if is_qwen or config.has("linear_num_value_heads"):
        return _delta_net(config, shape)
    if config.has("linear_attn_config", "linear_num_heads"):
        return _kimi(config, shape)
    if config.has("mamba_num_heads", "mamba_n_heads"):
        return _mamba2(config, shape)
    if config.has("mamba_expand", "mamba_d_state", "mamba_dt_rank"):
        return _mamba(config, shape)
    return _lightning(shape)


def _delta_net(config: ConfigFields, shape: _Shape) -> Mixers:
    """A gated delta network (Qwen3-Next): queries, keys, values and a gate in, values out."""
    key_heads = config.count("linear_num_key_heads", default=16)
    value_heads = config.count("linear_num_value_heads", default=32)
    keys = key_heads * config.count("linear_key_head_dim", default=128)
    values = value_heads * config.count("linear_value_head_dim", default=128)
    found = shape.hidden * (2.0 * keys + 3.0 * values + 2.0 * value_heads)
    return Mixers(
        found,
        (
            DividedPart(what="heads of linear attention", count=key_heads),
            DividedPart(what="value heads of linear attention", count=value_heads),
        ),
    )


def _kimi(config: ConfigFields, shape: _Shape) -> Mixers:
    """Kimi's delta attention: four wide matrices, and two gates through a narrow one."""
    inner = config.part_of("linear_attn_config")
    heads = checked_count("num_heads", inner.get("num_heads", shape.heads))
    dim = checked_count("head_dim", inner.get("head_dim", 128))
    width = heads * dim
    # Gates go through the width of one head.
    gates = 2.0 * dim * (shape.hidden + width) + shape.hidden * heads
    found = 4.0 * shape.hidden * width + gates
    return Mixers(found, (DividedPart(what="heads of linear attention", count=heads),))


def _mamba2(config: ConfigFields, shape: _Shape) -> Mixers:
    heads = config.count("mamba_num_heads", "mamba_n_heads")
    head_dim = config.count("mamba_head_dim", "mamba_d_head", default=64)
    groups = config.count("mamba_n_groups", "n_groups", default=1)
    state = config.count("mamba_d_state", "ssm_state_size", default=128)
    inner = config.count("mamba_d_ssm", default=heads * head_dim)
    # The convolution mixes the inner width with both inputs of the state.
    mixed = inner + 2 * groups * state
    # A gate, what the convolution mixes, and a step per head in; the inner width out.
    found = shape.hidden * (inner + mixed + heads) + inner * shape.hidden
    kernel = config.count("mamba_d_conv", "conv_kernel", default=4)
    return Mixers(
        float(found + kernel * mixed),
        (
            DividedPart(what="Mamba heads", count=heads),
            DividedPart(what="Mamba groups", count=groups, may_be_one=True),
        ),
    )


def _mamba(config: ConfigFields, shape: _Shape) -> Mixers:
    """The first Mamba (Jamba): in, out, and the selection of its state."""
    inner = config.count("mamba_expand", default=2) * shape.hidden
    state = config.count("mamba_d_state", default=16)
    rank = config.count("mamba_dt_rank", default=-(-shape.hidden // 16))
    found = 3.0 * inner * shape.hidden + inner * (2.0 * rank + 3.0 * state)
    return Mixers(found, (DividedPart(what="Mamba channels", count=inner),))


def _lightning(shape: _Shape) -> Mixers:
    """Linear attention of as many heads as the others (MiniMax-01): five matrices with the gate."""
    width = shape.heads * shape.head_dim
    found = 5.0 * shape.hidden * width
    return Mixers(
        found, (DividedPart(what="heads of linear attention", count=shape.heads),)
    )
