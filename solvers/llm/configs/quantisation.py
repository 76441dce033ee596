"""What a configuration states its weights are kept in: the method of quantisation, its bits, blocks and exceptions."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from solvers.llm.configs.fields import ConfigFields, Fields
from solvers.types.llm import Precision

_PLACES = ("quantization_config", "compression_config", "quantization")
_METHODS: Mapping[str, Precision] = {
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "finegrained_fp8": "fp8",
    "ptpc_fp8": "fp8",
    "w8a8_fp8": "fp8",
    "deepseek_v4_fp8": "fp8",
    "fp8_per_tensor": "fp8",
    "fp8_per_channel": "fp8",
    "fp8_per_block": "fp8",
    "modelopt_mxfp8": "fp8",
    "mxfp8": "fp8",
    "modelopt_fp4": "fp4",
    "nvfp4": "fp4",
    "nvfp4_per_token": "fp4",
    "mxfp4": "fp4",
    "gpt_oss_mxfp4": "fp4",
    "petit_nvfp4": "fp4",
}
"""Methods whose name says it all."""
_BY_BITS = (
    "awq",
    "gptq",
    "auto-round",
    "auto_round",
    "inc",
    "hqq",
    "aqlm",
    "moe_wna16",
    "quip",
    "vptq",
    "spqr",
    "higgs",
    "humming",
    "exl2",
    "exl3",
    "bitnet",
)
"""Methods of integers, of 4 bits where they state no others; a name that begins so is one."""
_EIGHT_BITS = (
    "eetq",
    "experts_int8",
    "tpu_int8",
    "int8_per_channel_weight_only",
    "w8a8_int8",
)
_BITS = ("bits", "w_bit", "nbits", "num_bits", "wbits", "weight_bits", "bpw")
_GROUPS = ("group_size", "q_group_size")
_EXCEPTIONS = (
    "ignore",
    "modules_to_not_convert",
    "exclude_modules",
    "ignored_layers",
    "llm_int8_skip_modules",
    "exclude",
)
_FORMATS: tuple[tuple[str, Precision], ...] = (
    ("nvfp4", "fp4"),
    ("mxfp4", "fp4"),
    ("mxfp8", "fp8"),
    ("fp4", "fp4"),
    ("float4", "fp4"),
    ("fp8", "fp8"),
    ("float8", "fp8"),
    ("e4m3", "fp8"),
    ("w4a", "int4"),
    ("int4", "int4"),
    ("uint4", "int4"),
    ("nf4", "int4"),
    ("int8", "fp8"),
    ("w8a", "fp8"),
)
"""Parts of names of formats, the first that is found decides."""
_SMALL_BLOCK = 32
"""Experts of GPTQ and AWQ are read in groups that are halved as far as needed, down to this many values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """What weights are kept in, and what that asks of the parts that GPUs share them out in."""

    precision: Precision = "bf16"
    method: str = ""
    """As the publisher names it; empty: the weights are not quantised."""
    block: int = 1
    """Values that have one scale: no GPU's part may cut through them."""
    expert_block: int = 1
    keeps_attention: bool = False
    """Whether attention's weights stay in bf16."""
    keeps_shared_experts: bool = False
    keeps_mixers: bool = False
    """Whether those of Mamba and linear attention do."""


def read_quantisation(config: ConfigFields, layers: int) -> Quantisation:
    """What the configuration states; a method that is not known is noted."""
    stated = _stated(config)
    if not stated:
        return Quantisation()
    method = _method(stated)
    precision = _precision(config, stated, method)
    if config.text("expert_dtype") == "fp4":
        # DeepSeek V4: nearly all weights are those of experts.
        config.notes.append("experts are in fp4: other layers are taken as fp4, too")
        precision = "fp4"
    block = _block(config, stated, method, precision)
    # Their experts have a kernel that reads smaller groups.
    is_small = method.startswith(("gptq", "awq", "auto_gptq", "auto_awq"))
    patterns = list(_exceptions(stated))
    has_experts_alone = "mxfp4" in method
    return Quantisation(
        precision=precision,
        method=method or "unnamed",
        block=block,
        expert_block=min(block, _SMALL_BLOCK) if is_small else block,
        keeps_attention=has_experts_alone
        or _covers(patterns, r"self_attn|attention|\battn", layers),
        keeps_shared_experts=_covers(patterns, "shared_expert", layers),
        keeps_mixers=_covers(patterns, "linear_attn|mixer|mamba", layers),
    )


def _stated(config: ConfigFields) -> Fields:
    """The object, wherever publishers put it: at the top, in the language part, or in between."""
    # Files of several senses keep it at the top, next to the part that it is about.
    holders: list[Fields] = [config.document, config.part]
    holders += [each for each in config.document.values() if isinstance(each, Mapping)]
    for name in _PLACES:
        for holder in holders:
            found = holder.get(name)
            if isinstance(found, Mapping) and found:
                # ModelOpt's hf_quant_config.json has one object more.
                inner = found.get("quantization")
                return inner if isinstance(inner, Mapping) else found
    return {}


def _method(stated: Fields) -> str:
    for name in ("quant_method", "method", "quant_library"):
        value = stated.get(name)
        if isinstance(value, str) and value:
            return value.lower().replace("compressed_tensors", "compressed-tensors")
    if "quant_algo" in stated:
        return "modelopt"
    if "config_groups" in stated:
        return "compressed-tensors"
    return "mistral" if "qformat_weight" in stated else ""


def _precision(config: ConfigFields, stated: Fields, method: str) -> Precision:
    if method in _METHODS:
        return _METHODS[method]
    if method in ("bitsandbytes", "bnb"):
        return _of_bits(config, method, _loaded_bits(stated))
    if method in _EIGHT_BITS:
        return _of_bits(config, method, 8)
    if method == "compressed-tensors":
        return _compressed(config, stated, method)
    named = _named_format(stated)
    if named is not None:
        return named
    bits = _bits(stated)
    if bits is not None or method.replace("auto_", "").startswith(_BY_BITS):
        if bits is None:
            config.notes.append(f"{method} states no bits: weights are taken as int4")
        # MXFP4 and NVFP4 are told from integers by this alone.
        is_float = "fp" in str(stated.get("data_type", ""))
        return _of_bits(config, method, bits or 4, is_float=is_float)
    config.notes.append(
        f"quantization_config: {method or 'a method without a name'} is not known: weights are taken as bf16; "
        "--precision states another"
    )
    return "bf16"


def _loaded_bits(stated: Fields) -> float:
    """Bitsandbytes' bits per weight, as vLLM takes them: 4 where neither width is stated."""
    if any(stated.get(f"{prefix}load_in_8bit") is True for prefix in ("", "_")):
        return 8
    wide = [stated.get(f"{prefix}load_in_4bit") is False for prefix in ("", "_")]
    return 16 if any(wide) else 4


def _of_bits(
    config: ConfigFields, method: str, bits: float, *, is_float: bool = False
) -> Precision:
    """The precision that is the nearest one from above, with a note where it is not the same."""
    # More than 8 bits have no kernel of their own.
    if bits > 8:
        return "bf16"
    if bits > 4:
        if not is_float or bits != 8:
            config.notes.append(
                f"{bits:g}-bit weights ({method}): taken as large and as fast as fp8"
            )
        return "fp8"
    if bits < 4:
        config.notes.append(f"{bits:g}-bit weights ({method}): taken as int4")
    return "fp4" if is_float else "int4"


def _compressed(config: ConfigFields, stated: Fields, method: str) -> Precision:
    """Compressed-tensors: one group or several, each with its bits. Those of linear layers count."""
    groups = list(_group_weights(stated))
    if not groups:
        named = _named_format(stated)
        # Weights that are only pruned are as wide as before.
        usual = 8 if "quant" in str(stated.get("format", "")) else 16
        bits = _bits(stated) or usual
        return named or _of_bits(config, method, bits, is_float=True)
    found = [
        _of_bits(
            config, method, _bits(each) or 16, is_float=each.get("type") == "float"
        )
        for each in groups
    ]
    if len(set(found)) > 1:
        config.notes.append(
            f"quantization_config has groups of {', '.join(sorted(set(found)))}: all are taken as {found[0]}"
        )
    return found[0]


def _group_weights(stated: Fields) -> Iterator[Fields]:
    groups = stated.get("config_groups")
    if not isinstance(groups, Mapping):
        return
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            yield weights


def _named_format(stated: Fields) -> Precision | None:
    """By the name of a format, anywhere in the object but in its lists of layers."""
    stated_text = " ".join(_texts(stated)).lower()
    for part, precision in _FORMATS:
        if part in stated_text:
            return precision
    return None


def _texts(stated: Fields, depth: int = 0) -> Iterator[str]:
    # What activations and caches are kept in says nothing of weights.
    others = ("kv_cache", "activation", "input", "output", "producer", "quant_method")
    for name, value in stated.items():
        if any(other in name for other in others) or depth > 4:
            continue
        if isinstance(value, str):
            yield value
        # Quark lists the steps of weights: they are kept in the last one's format.
        last = value[-1] if isinstance(value, list) and value else value
        if isinstance(last, Mapping):
            yield from _texts(last, depth + 1)


def _bits(stated: Fields, depth: int = 0) -> float | None:
    """Bits per weight, here or in an object within."""
    for name in _BITS:
        value = stated.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    for value in stated.values():
        if isinstance(value, Mapping) and depth < 4:
            found = _bits(value, depth + 1)
            if found is not None:
                return found
    return None


def _block(
    config: ConfigFields, stated: Fields, method: str, precision: Precision
) -> int:
    """How many values of a row have one scale, where a part of a GPU may not cut through them."""
    shape = stated.get("weight_block_size")
    if shape is None:
        weights = [*_group_weights(stated), stated]
        shape = weights[0].get("block_structure")
    # Blocks are square in practice; where not, the longer side decides.
    if isinstance(shape, list) and shape and all(isinstance(i, int) for i in shape):
        longer = max(1, *(int(each) for each in shape))
        if len(set(shape)) > 1:
            config.notes.append(
                f"blocks of {' × '.join(map(str, shape))} values: degrees cut through none of {longer}"
            )
        return longer
    if method in ("bitsandbytes", "bnb", "torchao", "hqq") or "mx" in method:
        # These are cut anywhere, or padded.
        return 1
    # Groups run along a row, which row-parallel layers cut.
    size = _group_size(stated)
    if size:
        return size
    return 16 if precision == "fp4" else 1


def _group_size(stated: Fields) -> int:
    for fields in (*_group_weights(stated), stated):
        for name in _GROUPS:
            value = fields.get(name)
            if isinstance(value, int) and value > 0:
                return value
    return 0


def _exceptions(stated: Fields) -> Iterator[str]:
    for name in _EXCEPTIONS:
        listed = stated.get(name)
        if isinstance(listed, list):
            # Names of norms have "attention" in them, and are never quantised.
            yield from (
                each for each in listed if isinstance(each, str) and "norm" not in each
            )


def _covers(patterns: list[str], part: str, layers: int) -> bool:
    """Whether such parts of nearly all layers are excepted: by one pattern, or each by its number."""
    # Lists name every layer by its number, or all by one expression.
    matching = [each for each in patterns if re.search(part, each)]
    numbered = {found[1] for each in matching if (found := _LAYER.search(each))}
    general = any(
        _LAYER.search(each) is None and "vision" not in each and "visual" not in each
        for each in matching
    )
    return general or len(numbered) >= 0.9 * layers


_LAYER = re.compile(r"layers\.([0-9]+)\.")
