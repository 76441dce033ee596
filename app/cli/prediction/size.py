"""`plimsoll size`: what one replica of a language model carries, by GPU type and tensor-parallel degree."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

import typer

from app.catalogue.catalogue import CatalogueError, load_gpu_types
from app.catalogue.known_networks import known_network, longest_request, reading_of
from app.catalogue.language_models import (
    find_hardware,
    load_hardware,
    load_runs,
    stated_runs,
    usual_conditions,
)
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
from app.cli.prediction.size_problem import problem_target, write_problem
from app.measurements.llm_runs import ServerRun, read_runs
from solvers.llm.architecture import Architecture, Precision
from solvers.llm.config_json import StatedNetwork
from solvers.llm.hardware import LlmHardware
from solvers.llm.lengths import NAMED, LengthTable, MeanLengths
from solvers.llm.measured import RunConditions
from solvers.types.errors import InvalidInput
from solvers.types.llm import MAX_CONTEXT, StatedRun, TokenSlo

if TYPE_CHECKING:
    from solvers.llm.belief import StepBelief
    from solvers.llm.sizing import Sized, SizeRequest

_SECONDS_PER_HOUR = 3600.0
_MILLION = 1e6
_WHY = {
    "weights": "the weights do not fit on this number of GPUs",
    "context": "its cache does not hold the longest request: more GPUs, or a lower --max-model-len",
    "ttft": "too slow for --ttft-ms even for a request alone",
    "itl": "one step takes longer than --itl-ms",
}


_Cv = Annotated[
    float,
    typer.Option(
        min=0.1, max=10.0, help="Variation of the gaps between requests; 1: Poisson"
    ),
]
_Measured = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GPU_TYPE/TP=FILE",
        help="Closed-loop runs of vLLM or SGLang bench, GuideLLM, AIPerf or GenAI-Perf; repeatable",
    ),
]
_Problem = Annotated[
    str | None,
    typer.Option(
        metavar="RPS=FILE",
        help="Write the Problem of a service with RPS requests per second, for `plimsoll plan`, and print nothing",
    ),
]


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
            help="The config.json next to the weights, or the name of a shipped network such as Llama-3.1-8B-Instruct",
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
    cv: _Cv = 1.0,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            min=16,
            max=MAX_CONTEXT,
            help="Tokens of prompt and answer; default: 16384, or what config.json allows",
        ),
    ] = None,
    precision: Annotated[
        PrecisionName | None,
        typer.Option(help="Of the weights; default: what config.json says, else bf16"),
    ] = None,
    gpu_type: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="GPU type; repeatable; default: all shipped"),
    ] = None,
    measured: _Measured = None,
    problem: _Problem = None,
    output: Annotated[
        Format, typer.Option("-o", "--output", help="How to print")
    ] = Format.TABLE,
) -> None:
    """Print what one replica of a language model carries on each GPU type, without any server.

    Step times follow from the architecture and the data sheet, corrected by measured servers: those that ship, and
    your own. rps is what nine in ten such predictions allow; `between` holds nine in ten true capacities. Tokens/s and
    USD per million are those of answers at that rate.
    """
    slo = TokenSlo(
        ttft_ms=ttft_ms,
        itl_ms=itl_ms,
        percentile=percentile,
        itl=itl.value,
    )
    # All that may be wrong with the options is found before anything takes seconds.
    known = _network(network)
    table = _table(lengths, _longest(known, max_model_len))
    asked = _Asked(network, known, precision, _hardware(gpu_type), _files(measured))
    target = None if problem is None else problem_target(problem)
    request, found = _sizes(asked, table, slo, cv=cv)
    if target is not None:
        write_problem(target, network, request, found)
        return
    _show([_row(each, table, request) for each in found], output)


class _Asked(NamedTuple):
    """What is to be sized, and on what."""

    network: str
    known: StatedNetwork
    precision: PrecisionName | None
    hardware: Mapping[str, LlmHardware]
    measured: Sequence[tuple[str, int, tuple[ServerRun, ...]]]
    """Runs with the GPU type and the degree that each was measured on."""


def _sizes(
    asked: _Asked, table: LengthTable, slo: TokenSlo, *, cv: float
) -> "tuple[SizeRequest, Sequence[Sized]]":
    """What is asked, and every way to run the network. Raises CliError."""
    # Here: the laws take SciPy and numba, and --help does not.
    from solvers.llm.sizing import SizeRequest
    from solvers.llm.sizing import size as size_of

    architecture = asked.known.architecture
    precision = asked.precision.value if asked.precision else asked.known.precision
    request = SizeRequest(
        network=architecture,
        precision=precision,
        lengths=table,
        slo=slo,
        arrival_cv=cv,
        beliefs=_beliefs(asked, architecture, precision, table),
    )
    # Stdout has the sizes alone.
    for line in reading_of(asked.known, precision, is_asked=bool(asked.precision)):
        typer.echo(line, err=True)
    return request, size_of(request, asked.hardware)


def _beliefs(
    asked: _Asked,
    architecture: Architecture,
    precision: Precision,
    table: LengthTable,
) -> "Mapping[tuple[str, int], StepBelief]":
    """What the shipped runs and the user's say of steps on each GPU type and degree."""
    from solvers.llm.correction import StepBeliefs
    from solvers.llm.sizing import DEGREES

    def conditions(gpu_type: str, tp: int) -> RunConditions:
        return usual_conditions(asked.network, precision, table, gpu_type, tp)

    stated = [
        StatedRun(
            gpu_type=gpu_type,
            tp=tp,
            precision=precision,
            clients=run.clients,
            prompt_tokens=run.prompt,
            output_tokens=run.output,
            tpot_ms=run.tpot_ms,
        )
        for gpu_type, tp, runs in asked.measured
        for run in runs
    ]
    own = stated_runs(stated, asked.network, architecture, table)
    # Shipped runs of other networks, too: they tell how the runtime does on each GPU type.
    beliefs = StepBeliefs(load_runs()).with_stated(list(own))
    places = [(name, tp) for name in asked.hardware for tp in DEGREES]
    known = beliefs.of_each([conditions(*place) for place in places])
    return dict(zip(places, known, strict=True))


def _files(texts: Sequence[str] | None) -> list[tuple[str, int, tuple[ServerRun, ...]]]:
    """The runs that --measured names. Raises CliError."""
    found = []
    for text in texts or ():
        place, equals, path = text.partition("=")
        gpu_type, _, degree = place.partition("/")
        if not equals or degree not in ("1", "2", "4", "8"):
            raise CliError(
                f"--measured {text}: must be GPU_TYPE/TP=FILE, such as H100/2=run.json"
            )
        # Only its name is checked here.
        _hardware([gpu_type])
        try:
            runs = read_runs(Path(path))
        except InvalidInput as error:
            raise CliError(f"--measured: {error}") from error
        show_run_notes(runs)
        found.append((gpu_type, int(degree), runs))
    return found


def show_run_notes(runs: Sequence[ServerRun]) -> None:
    """Say on stderr what is to be known of benchmarks; what is made of them may go to stdout."""
    for run in runs:
        if run.note:
            typer.echo(f"Note: {run.note}", err=True)


def _table(lengths: str, max_model_len: int) -> LengthTable:
    """The lengths that the options state. Raises CliError."""
    from solvers.llm.lengths import length_table

    try:
        return length_table(_lengths(lengths), longest=max_model_len)
    except InvalidInput as error:
        raise CliError(str(error)) from error


def _network(name: str) -> StatedNetwork:
    """What a file or the catalogue says of it. Raises CliError."""
    try:
        return known_network(name)
    except CatalogueError as error:
        raise CliError(str(error)) from error
    except (ValueError, InvalidInput) as error:
        raise CliError(f"{name}: {error}") from error


def _longest(known: StatedNetwork, asked: int | None) -> int:
    """The longest request, with a note where it is not the usual one. Raises CliError."""
    try:
        longest = longest_request(known, asked)
    except InvalidInput as error:
        raise CliError(f"--max-model-len: {error.problem}") from error
    if longest.note:
        typer.echo(f"Note: --max-model-len is {longest.note}", err=True)
    return longest.tokens


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
    if not names:
        return load_hardware()
    found = {}
    for name in names:
        hardware = find_hardware(name)
        if hardware is None:
            known = ", ".join(load_hardware())
            raise CliError(
                f"--gpu-type {name}: nothing is known of it for language models; there are {known}, and their slices, "
                "such as H100-MIG-3g.40gb"
            )
        found[name] = hardware
    return found


def _row(
    sized: "Sized", table: LengthTable, request: "SizeRequest"
) -> Mapping[str, object]:
    """One way to run a replica, as programs read it."""
    from app.catalogue.llm_rows import provenance_of

    # Types that the catalogue has no price for are sized all the same.
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
        "provenance": provenance_of(sized.gpu_type, [sized]),
        "limit": None if sized.limit is None else sized.limit.value,
        "why_none": _why(sized),
        "precision": request.precision,
        "parameters": round(request.network.parameters),
        "weight_bytes": round(request.network.weight_bytes(request.precision)),
        "kv_bytes_per_token": request.network.kv_bytes_per_token(sized.tp),
    }


def _why(sized: "Sized") -> str | None:
    """Why it carries nothing, in words; None: it carries something."""
    if sized.limit is None:
        return None
    if sized.undivided is not None:
        return sized.undivided.reason
    return _WHY[sized.limit.value]


def _show(rows: Sequence[Mapping[str, object]], output: Format) -> None:
    """As programs read them, or a line per GPU type and degree."""
    if show_items(rows, output):
        return
    titles = "GPU type,>TP,weights,>tokens/step,>rps,between,>cache,>tokens/s,>USD/M"
    show_table([*titles.split(","), "known", "why none"], [_cells(row) for row in rows])


def _cells(row: Mapping[str, object]) -> Cells:
    place = (str(row["gpu_type"]), str(row["tp"]), str(row["precision"]))
    # No figure of what cannot run: a zero would look like a measurement.
    if row["limit"] is not None:
        return (*place, *["-"] * 7, faint(str(row["why_none"])))
    low, high = cast(list[float], row["interval_rps"])
    return (
        *place,
        str(row["max_num_batched_tokens"]),
        amount(cast(float, row["capacity_rps"]), 2),
        f"{amount(low, 2)} to {amount(high, 2)}",
        str(row["kv_tokens"]),
        amount(cast(float, row["output_tokens_per_s"]), 0),
        usd(cast(float | None, row["usd_per_million_output_tokens"]), 2),
        str(row["provenance"]),
        "",
    )
