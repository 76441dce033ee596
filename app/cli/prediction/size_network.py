"""The network that `plimsoll size` was given: its configuration read, and said how it was read."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from app.catalogue.catalogue import CatalogueError
from app.catalogue.language_models import find_architecture
from app.cli.common.errors import CliError
from app.measurements.rows import read_bytes
from solvers.llm.architecture import Architecture, Precision
from solvers.llm.config_json import read_config
from solvers.llm.configs.context import Context, refuse_longer
from solvers.types.errors import InvalidInput

if TYPE_CHECKING:
    from solvers.llm.sizing import SizeRequest

_USUAL_LONGEST = 16_384
_GIGA = 1e9
_KIB = 1024.0


class KnownNetwork(NamedTuple):
    """What is known of a network."""

    architecture: Architecture
    precision: Precision
    """As its publisher states."""
    method: str = ""
    """Of quantisation, as its publisher names it."""
    context: Context | None = None
    notes: tuple[str, ...] = ()


def known_network(name: str) -> KnownNetwork:
    """What a file or the catalogue says of it. Raises CliError."""
    path = Path(name)
    if not path.is_file():
        try:
            return KnownNetwork(find_architecture(name), "bf16")
        except CatalogueError as error:
            raise CliError(str(error)) from error
    try:
        stated = read_config(_document(path))
    except (ValueError, InvalidInput) as error:
        raise CliError(f"{name}: {error}") from error
    return KnownNetwork(
        stated.architecture,
        stated.precision,
        stated.quantisation.method,
        stated.context,
        stated.notes,
    )


def _document(path: Path) -> object:
    """The configuration, with what ModelOpt writes next to it. Raises InvalidInput or ValueError."""
    document = json.loads(read_bytes(path))
    quantised = path.with_name("hf_quant_config.json")
    if isinstance(document, dict) and quantised.is_file():
        # Engines look there where the configuration itself says nothing.
        document.setdefault("quantization_config", json.loads(read_bytes(quantised)))
    return document


def longest_request(known: KnownNetwork, asked: int | None) -> int:
    """As asked for, else the usual length as far as the network goes, with a note. Raises CliError."""
    if asked is not None:
        try:
            refuse_longer(known.context, asked)
        except InvalidInput as error:
            raise CliError(f"--max-model-len: {error.problem}") from error
        return asked
    context = known.context
    if context is None or context.tokens >= _USUAL_LONGEST:
        return _USUAL_LONGEST
    _note(
        f"--max-model-len is {context.tokens} in place of {_USUAL_LONGEST}: "
        f"{context.field} of config.json allows no more"
    )
    return context.tokens


def say_network(known: KnownNetwork, request: "SizeRequest", *, is_asked: bool) -> None:
    """Say on stderr how the network was read: stdout has the sizes alone."""
    network = request.network
    reason = "by --precision" if is_asked else "as published"
    if known.method:
        reason = f"{reason}; quantization_config says {known.method}"
    typer.echo(
        f"Network: {network.parameters / _GIGA:.2f} G parameters; weights in {request.precision} ({reason}), "
        f"{network.weight_bytes(request.precision) / _GIGA:.1f} GB; "
        f"{network.kv_bytes_per_token(1) / _KIB:g} KiB of cache per token",
        err=True,
    )
    for note in known.notes:
        _note(note)


def _note(text: str) -> None:
    typer.echo(f"Note: {text}", err=True)
