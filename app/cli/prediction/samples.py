"""`plimsoll samples`: what to measure, other tools' results as our CSV, and samples on the control plane."""

import math
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from agents.base.plurals import counted
from app.base.yaml_lines import dotted
from app.cli.common.errors import CliError
from app.cli.common.files import STDIO, write_csv
from app.cli.common.options import command_group
from app.cli.common.output import show_yaml
from app.cli.prediction.samples_fit import fit
from app.cli.prediction.samples_plan import plan
from app.cli.prediction.samples_send import send
from app.cli.prediction.size import PrecisionName, show_run_notes
from app.manifests import objects as manifests
from app.measurements.benchmarks import BenchmarkConditions, Imported, Latency
from app.measurements.csv_files import sample_rows
from app.measurements.llm_runs import read_runs
from solvers.types.errors import InvalidInput

app = command_group("Plan, convert, send and fit measurements.")
_DEGREES = (1, 2, 4, 8)


class Source(StrEnum):
    """Whose file it is."""

    PERF_ANALYZER = "perf-analyzer"
    MODEL_ANALYZER = "model-analyzer"
    VLLM = "vllm"


NetworkOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Network [default: as the file says]",
    ),
]
BatchOption = Annotated[
    float | None,
    typer.Option(
        min=1.0,
        help="Batch size [default: as the file says]",
    ),
]
SmPercent = Annotated[
    float,
    typer.Option(
        min=0.01,
        max=100.0,
        help="SM percent that the server had",
    ),
]
ClockMhz = Annotated[
    float | None,
    typer.Option(
        min=1.0,
        help="Graphics clock, if it was locked",
    ),
]
TimeQuota = Annotated[
    float,
    typer.Option(
        min=0.01,
        max=100.0,
        help="Share of time",
    ),
]
PowerLimit = Annotated[
    float | None,
    typer.Option(
        min=1.0,
        help="Power limit, if one was set",
    ),
]
GpuMetrics = Annotated[
    Path | None,
    typer.Option(
        metavar="CSV",
        help="Model Analyzer's metrics-model-gpu.csv, for power and memory",
    ),
]


@app.command()
def convert(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="What the tool wrote; - = stdin",
        ),
    ],
    source: Annotated[Source, typer.Option("--format", help="Which tool")],
    *,
    gpu_type: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="GPU type of the measurement",
        ),
    ],
    network: NetworkOption = None,
    batch: BatchOption = None,
    sm_percent: SmPercent = 100.0,
    clock_mhz: ClockMhz = None,
    time_quota_percent: TimeQuota = 100.0,
    power_limit_w: PowerLimit = None,
    latency: Annotated[
        Latency | None,
        typer.Option(help="Which time to take [default: server; request of vllm]"),
    ] = None,
    gpu_metrics: GpuMetrics = None,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="SAMPLES",
            help="Where to write the samples; - = stdout",
        ),
    ] = STDIO,
) -> None:
    """Turn another tool's results into samples.

    docs/measure.md says which of a tool's columns are taken, and what is left out. Several files are fitted
    together: `plimsoll fit batch1.csv batch8.csv -o fit.json`.
    """
    conditions = BenchmarkConditions(
        gpu_type=gpu_type,
        network=network,
        batch=batch,
        sm_percent=sm_percent,
        clock_mhz=math.nan if clock_mhz is None else clock_mhz,
        time_quota_percent=time_quota_percent,
        power_limit_w=math.nan if power_limit_w is None else power_limit_w,
    )
    if gpu_metrics is not None and source is not Source.MODEL_ANALYZER:
        raise typer.BadParameter(
            f"{source} has no such file", param_hint="'--gpu-metrics'"
        )
    imported = _read(
        file,
        source,
        conditions,
        latency,
        gpu_metrics,
    )
    for note in imported.notes:
        # On stderr, as the samples may go to stdout.
        sys.stderr.write(f"Note: {note}\n")
    write_csv(output, sample_rows(imported.samples))
    sys.stderr.write(f"{counted(len(imported.samples), 'sample')}\n")


def _read(
    file: Path,
    source: Source,
    conditions: BenchmarkConditions,
    latency: Latency | None,
    gpu_metrics: Path | None,
) -> Imported:
    # Each reader is imported for its own files: none needs the others' parsers.
    if source is Source.PERF_ANALYZER:
        from app.measurements.perf_analyzer import read_perf_analyzer

        return read_perf_analyzer(
            file,
            conditions,
            latency=latency or Latency.SERVER,
        )
    if source is Source.MODEL_ANALYZER:
        from app.measurements.model_analyzer import read_model_analyzer

        return read_model_analyzer(
            file, conditions, latency=latency or Latency.SERVER, gpu_metrics=gpu_metrics
        )
    from app.measurements.vllm import read_vllm

    # vLLM's results have no server time: a request's is what a client saw.
    return read_vllm(
        file,
        conditions,
        latency=latency or Latency.REQUEST,
    )


@app.command()
def runs(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="What vLLM or SGLang bench, GuideLLM, AIPerf or GenAI-Perf wrote",
        ),
    ],
    *,
    network: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The Network's name",
        ),
    ],
    gpu_type: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="GPU type of the server",
        ),
    ],
    tp: Annotated[int, typer.Option(help="GPUs that it spanned: 1, 2, 4 or 8")] = 1,
    dtype: Annotated[
        PrecisionName, typer.Option(help="What its weights were kept in")
    ] = PrecisionName.BF16,
) -> None:
    """Turn benchmarks of a language model's server into a Network manifest.

    Sizes of the network's services are corrected by them. Only runs with a fixed number of clients tell how long
    steps take. A Network that exists is replaced: add what else it states, such as its config.
    """
    if tp not in _DEGREES:
        raise CliError(f"--tp {tp}: must be 1, 2, 4 or 8")
    conditions = {"gpu_type": gpu_type, "tp": tp, "dtype": dtype.value}
    document = {
        "apiVersion": manifests.API_VERSION,
        "kind": "Network",
        "metadata": {"name": network},
        "spec": {"runs": [conditions | each for each in _stated(files)]},
    }
    try:
        manifests.Network.model_validate(document)
    except ValidationError as error:
        raise CliError(_refused(error)) from error
    show_yaml([document])


def _stated(files: Sequence[Path]) -> list[dict[str, object]]:
    """The figures of all runs as a manifest states them. Raises CliError."""
    try:
        found = [run for file in files for run in read_runs(file)]
    except InvalidInput as error:
        raise CliError(str(error)) from error
    show_run_notes(found)
    return [
        {
            "clients": run.clients,
            "prompt_tokens": round(run.prompt, 1),
            "output_tokens": round(run.output, 1),
            # Digits and not decimals: a small time must not become 0.
            "tpot_ms": float(f"{run.tpot_ms:.6g}"),
        }
        for run in found
    ]


def _refused(error: ValidationError) -> str:
    """Why `plimsoll apply` would refuse the manifest, so that it is not printed."""
    problems = [f"{dotted(each['loc'])}: {each['msg']}" for each in error.errors()[:3]]
    return "no manifest can be made of the runs: " + "; ".join(problems)


app.command()(plan)
app.command()(send)
app.command()(fit)
