"""A network that a user names: one that ships, or the `config.json` of another."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from app.catalogue.language_models import find_architecture
from app.measurements.rows import read_bytes
from solvers.llm.architecture import Architecture, Precision, window_factor
from solvers.llm.config_json import StatedNetwork, read_config
from solvers.llm.configs.context import refuse_longer
from solvers.llm.configs.quantisation import Quantisation

_USUAL_LONGEST = 16_384
_GIGA = 1e9
_KIB = 1024.0


def known_network(name: str) -> StatedNetwork:
    """What a file or the catalogue says of it. Raises CatalogueError, or InvalidInput or ValueError of a file."""
    path = Path(name)
    return read_config(_document(path)) if path.is_file() else shipped_network(name)


def shipped_network(name: str) -> StatedNetwork:
    """One of the catalogue, whose weights are published in bf16. Raises CatalogueError."""
    return StatedNetwork(
        architecture=find_architecture(name),
        quantisation=Quantisation(),
        context=None,
        notes=(),
    )


def _document(path: Path) -> object:
    """The configuration, with what ModelOpt writes next to it."""
    document = json.loads(read_bytes(path))
    quantised = path.with_name("hf_quant_config.json")
    if isinstance(document, dict) and quantised.is_file():
        # Engines look there where the configuration itself says nothing.
        document.setdefault("quantization_config", json.loads(read_bytes(quantised)))
    return document


class Longest(NamedTuple):
    """How long requests may be, with their answers."""

    tokens: int
    note: str = ""
    """Why it is not the usual length."""


def longest_request(network: StatedNetwork, asked: int | None) -> Longest:
    """As asked for, else the usual length as far as the network goes. Raises InvalidInput for more than that."""
    context = network.context
    if asked is not None:
        refuse_longer(context, asked)
        return Longest(asked)
    if context is None or context.tokens >= _USUAL_LONGEST:
        return Longest(_USUAL_LONGEST)
    note = f"{context.tokens} in place of {_USUAL_LONGEST}: {context.field} of config.json allows no more"
    return Longest(context.tokens, note)


def _of_windows(shape: Architecture) -> str:
    """What layers with a window cache of each of a sequence's last tokens; nothing where none do."""
    per_token = shape.kv_bytes_per_token(1)
    # Of one token all layers keep the same.
    more = per_token * (window_factor(shape, 1, 1.0) - 1.0)
    tokens = max((each.window_tokens for each in shape.attention), default=0)
    if not more:
        return ""
    return f", and {more / _KIB:g} KiB for each of the last {tokens} in layers with a window"


def reading_of(
    network: StatedNetwork, precision: Precision, *, is_asked: bool
) -> Iterator[str]:
    """How the network was read, and what was assumed: one line each."""
    shape = network.architecture
    reason = "by --precision" if is_asked else "as published"
    method = network.quantisation.method
    if method:
        reason = f"{reason}; quantization_config says {method}"
    yield (
        f"Network: {shape.parameters / _GIGA:.2f} G parameters; weights in {precision} ({reason}), "
        f"{shape.weight_bytes(precision) / _GIGA:.1f} GB; {shape.kv_bytes_per_token(1) / _KIB:g} KiB of cache per token"
        f"{_of_windows(shape)}"
    )
    yield from (f"Note: {note}" for note in network.notes)
