"""`plimsoll size`: what one replica of a language model carries, by GPU type and tensor-parallel degree."""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from app.catalogue.catalogue import CatalogueError, load_gpu_types
from app.catalogue.language_models import find_architecture, load_hardware
from app.cli.common.errors import CliError
from app.cli.common.output import (
    Cells,
    Format,
    amount,
    faint,
    show_items,
    show_table,
    usd,
)
from app.measurements.rows import read_bytes
from solvers.llm.architecture import Architecture, Precision
from solvers.llm.hardware import LlmHardware
from solvers.llm.lengths import NAMED, LengthTable, MeanLengths
from solvers.types.errors import InvalidInput
from solvers.types.llm import TokenSlo

if TYPE_CHECKING:
    from solvers.llm.sizing import Sized

MAX_CONTEXT = 1_048_576
_SECONDS_PER_HOUR = 3600.0
_MILLION = 1e6
_WHY = {
    "weights": "the weights do not fit on so many GPUs",
    "context": "its cache does not hold the longest request: more GPUs, or a lower --max-model-len",
    "ttft": "too slow for --ttft-ms even for a request alone",
    "itl": "one step takes longer than --itl-ms",
}


class PrecisionName(StrEnum):
    """Precisions of weights."""

    BF16 = "bf16"
    FP8 = "fp8"
    FP4 = "fp4"
    INT4 = "int4"


class ItlName(StrEnum):
    """What the time between tokens is promised of."""

    TOKEN = "token"
    REQUEST = "request"


def size(
    network: Annotated[
        str,
        typer.Argument(
            metavar="NETWORK",
            help="The config.json beside the weights, or the name of a shipped network such as Llama-3.1-8B-Instruct",
        ),
    ],
    *,
    ttft_ms: Annotated[
        float, typer.Option(min=1.0, max=1e7, help="SLO until the first token")
    ],
    itl_ms: Annotated[float, typer.Option(min=0.1, max=1e6, help="SLO between tokens")],
    percentile: Annotated[
        float, typer.Option(min=0.5, max=0.999, help="Share that keeps each SLO")
    ] = 0.95,
    itl: Annotated[
        ItlName, typer.Option(help="Whether itl-ms holds of tokens or request means")
    ] = ItlName.TOKEN,
    lengths: Annotated[
        str,
        typer.Option(
            help=f"Token lengths: PROMPT,OUTPUT (means) or one of {', '.join(NAMED)}"
        ),
    ] = "conversation",
    cv: Annotated[
        float,
        typer.Option(
            min=0.1, max=10.0, help="Variation of the gaps between requests; 1: Poisson"
        ),
    ] = 1.0,
    max_model_len: Annotated[
        int,
        typer.Option(min=16, max=MAX_CONTEXT, help="Tokens of prompt and answer"),
    ] = 16_384,
    precision: Annotated[
        PrecisionName | None,
        typer.Option(help="Of the weights; default: what config.json says, else bf16"),
    ] = None,
    gpu_type: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="GPU type; repeatable; default: all shipped"),
    ] = None,
    output: Annotated[
        Format, typer.Option("-o", "--output", help="How to print")
    ] = Format.TABLE,
) -> None:
    """Print what one replica of a language model carries on each GPU type, without any server.

    Nothing is measured: step times follow from the architecture and the data sheet, and rps is what nine in ten such
    predictions allow. `between` holds nine in ten true capacities. Tokens/s and USD per million are those of answers
    at that rate.
    """
    slo = TokenSlo(
        ttft_ms=ttft_ms,
        itl_ms=itl_ms,
        percentile=percentile,
        itl="token" if itl is ItlName.TOKEN else "request",
    )
    chosen: Precision | None = precision.value if precision else None
    table = _table(lengths, max_model_len)
    found = _sizes(network, chosen, table, slo, cv=cv, names=gpu_type)
    rows = [_row(each, table) for each in found]
    if not show_items(rows, output):
        _show(rows)


def _sizes(
    network: str,
    precision: Precision | None,
    table: LengthTable,
    slo: TokenSlo,
    *,
    cv: float,
    names: Sequence[str] | None,
) -> "Sequence[Sized]":
    """Every way to run the network. Raises CliError."""
    # Here: the laws take SciPy and numba, and --help does not.
    from solvers.llm.sizing import SizeRequest
    from solvers.llm.sizing import size as size_of

    architecture, stated = _network(network)
    request = SizeRequest(
        network=architecture,
        precision=precision or stated,
        lengths=table,
        slo=slo,
        arrival_cv=cv,
    )
    return size_of(request, _hardware(names))


def _table(lengths: str, max_model_len: int) -> LengthTable:
    """The lengths that the options state. Raises CliError."""
    from solvers.llm.lengths import length_table

    try:
        return length_table(_lengths(lengths), longest=max_model_len)
    except InvalidInput as error:
        raise CliError(str(error)) from error


def _network(name: str) -> tuple[Architecture, Precision]:
    """The architecture, and the precision that its publisher states. Raises CliError."""
    path = Path(name)
    if not path.is_file():
        try:
            return find_architecture(name), "bf16"
        except CatalogueError as error:
            raise CliError(str(error)) from error
    from solvers.llm.config_json import architecture_from_config, precision_from_config

    try:
        document = json.loads(read_bytes(path))
        return architecture_from_config(document), precision_from_config(document)
    except (ValueError, InvalidInput) as error:
        raise CliError(f"{name}: {error}") from error


def _lengths(text: str) -> MeanLengths:
    """The distribution that --lengths names or states. Raises CliError."""
    if text in NAMED:
        return NAMED[text]
    prompt, _, answer = text.partition(",")
    try:
        means = MeanLengths(prompt=float(prompt), output=float(answer))
    except ValueError:
        names = ", ".join(NAMED)
        raise CliError(
            f"--lengths {text}: must be PROMPT,OUTPUT such as 800,150, or one of {names}"
        ) from None
    # Written so that NaN is refused, too.
    if not (1.0 <= means.prompt <= MAX_CONTEXT and 1.0 <= means.output <= MAX_CONTEXT):
        raise CliError(f"--lengths {text}: both must be between 1 and {MAX_CONTEXT}")
    return means


def _hardware(names: Sequence[str] | None) -> Mapping[str, LlmHardware]:
    """The GPU types asked for. Raises CliError."""
    known = load_hardware()
    for name in names or ():
        if name not in known:
            raise CliError(
                f"--gpu-type {name}: nothing is known of it for language models; there are {', '.join(known)}"
            )
    return {name: known[name] for name in names or known}


def _row(sized: "Sized", table: LengthTable) -> Mapping[str, object]:
    """One way to run a replica, as programs read it."""
    prices = {each.name: each.price_usd_per_hour for each in load_gpu_types()}
    price = prices.get(sized.gpu_type)
    tokens_per_s = sized.capacity_rps * table.mean_output
    usd_per_million = None
    if price is not None and tokens_per_s > 0.0:
        per_hour = tokens_per_s * _SECONDS_PER_HOUR
        usd_per_million = sized.tp * price / per_hour * _MILLION
    return {
        "gpu_type": sized.gpu_type,
        "tp": sized.tp,
        "max_num_batched_tokens": sized.limits.max_num_batched_tokens,
        "max_num_seqs": sized.limits.max_num_seqs,
        "capacity_rps": sized.capacity_rps,
        "interval_rps": list(sized.interval_rps),
        "kv_tokens": round(sized.kv_tokens),
        "output_tokens_per_s": tokens_per_s,
        "usd_per_million_output_tokens": usd_per_million,
        "limit": None if sized.limit is None else sized.limit.value,
    }


def _show(rows: Sequence[Mapping[str, object]]) -> None:
    """A line per GPU type and degree."""
    titles = [
        "GPU type",
        ">TP",
        ">tokens/step",
        ">rps",
        "between",
        ">cache",
        ">tokens/s",
        ">USD/M",
        "why none",
    ]
    show_table(titles, [_cells(row) for row in rows])


def _cells(row: Mapping[str, object]) -> Cells:
    limit = row["limit"]
    if limit is not None:
        why = faint(_WHY[str(limit)])
        return (str(row["gpu_type"]), str(row["tp"]), *["-"] * 6, why)
    low, high = cast(list[float], row["interval_rps"])
    return (
        str(row["gpu_type"]),
        str(row["tp"]),
        str(row["max_num_batched_tokens"]),
        amount(cast(float, row["capacity_rps"]), 2),
        f"{amount(low, 2)} to {amount(high, 2)}",
        str(row["kv_tokens"]),
        amount(cast(float, row["output_tokens_per_s"]), 0),
        usd(cast(float | None, row["usd_per_million_output_tokens"]), 2),
        "",
    )
