"""`plimsoll samples send`: measurements from files to the control plane, each kept there once."""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Annotated

import typer

from app.base.errors import InvalidRequest, no_such
from app.cli.common.client import Api, Document, number, text
from app.cli.common.context import cli_context
from app.cli.common.errors import ApiProblem
from app.cli.common.options import Output
from app.cli.common.output import Format, show_items, show_table
from app.measurements.csv_files import SampleFiles, read_samples
from solvers.predict.data.samples import Samples

CHUNK = 1000
"""Samples per request; with 16 neighbours each they make 2.5 MB, and the control plane reads 4 MiB."""

_PLACE = re.compile(r"/samples/(\d+)/(\w+)")


def send(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES", help="CSV files of measurements; - = stdin"),
    ],
    source: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="Who measured, and with what; the same numbers from another source are new",
        ),
    ] = "",
    output: Output = Format.TABLE,
) -> None:
    """Send measurements to the control plane.

    It fits them within minutes. docs/measure.md describes the columns. Known samples change nothing, so
    a file may be sent again. Networks and GPU types must exist.
    """
    measured = read_samples(files)
    rows_of: dict[str, list[int]] = {}
    for row, network in enumerate(measured.samples.at.network):
        # The API takes samples by network.
        rows_of.setdefault(network, []).append(row)
    with Api(cli_context(context)) as api:
        _require_networks(api, measured, rows_of)
        sent = [
            _send(api, measured, network, rows, source)
            for network, rows in rows_of.items()
        ]
    if not show_items(sent, output):
        headings = ["network", ">samples", ">new", ">known"]
        show_table(
            headings,
            [
                [str(entry[name]) for name in ("network", "received", "added", "known")]
                for entry in sent
            ],
        )


def _require_networks(
    api: Api, measured: SampleFiles, rows_of: Mapping[str, Sequence[int]]
) -> None:
    """Before anything is sent, since half of a file is worse than none. Raises InvalidRequest."""
    known = [text(entry, "metadata.name") for entry in api.items("/api/v1/networks")]
    for network, rows in rows_of.items():
        if network not in known:
            problem = f"{no_such('network', network, known)}; `plimsoll apply` of a Network manifest creates it"
            raise measured.refusal(problem, row=rows[0], column="network")


def _send(
    api: Api, measured: SampleFiles, network: str, rows: Sequence[int], source: str
) -> Document:
    """All samples of one network, in chunks; what became of them."""
    received = added = 0
    documents = list(_documents(measured.samples, rows))
    for start in range(0, len(rows), CHUNK):
        end = start + CHUNK
        try:
            answer = api.post(
                f"/api/v1/networks/{network}/samples",
                {"source": source, "samples": documents[start:end]},
            )
        except ApiProblem as problem:
            # The API counts within one request; users look for the line of their file.
            if refusal := _refusal(problem, measured, rows[start:end]):
                raise refusal from problem
            raise
        received += int(number(answer, "received") or 0)
        added += int(number(answer, "added") or 0)
    return {
        "network": network,
        "received": received,
        "added": added,
        # What was sent before is counted as received and not added.
        "known": received - added,
    }


def _documents(samples: Samples, rows: Sequence[int]) -> Iterator[Document]:
    """These samples as the API takes them; what is not known is left out."""
    at = samples.at
    columns = {
        name: values.tolist()
        for name, values in {
            "batch": at.batch,
            "sm_percent": at.sm_percent,
            "clock_mhz": at.clock_mhz,
            "time_quota_percent": at.time_quota_percent,
            "power_limit_w": at.power_limit_w,
            "latency_ms": samples.latency_ms,
            "power_w": samples.power_w,
            "memory_mib": samples.memory_mib,
            "l2_util_percent": samples.l2_util_percent,
        }.items()
    }
    for row in rows:
        yield {
            "gpu_type": at.gpu_type[row],
            "neighbours": [neighbour._asdict() for neighbour in at.neighbours[row]],
            **{
                name: values[row]
                for name, values in columns.items()
                # NaN is no JSON; an absent field means unknown.
                if not isnan(values[row])
            },
        }


def _refusal(
    problem: ApiProblem, measured: SampleFiles, rows: Sequence[int]
) -> InvalidRequest | None:
    """The problem with the place in the file, if it is about one sample."""
    for field in problem.fields:
        if (place := _PLACE.match(field.place)) and int(place[1]) < len(rows):
            return measured.refusal(
                field.detail, row=rows[int(place[1])], column=place[2]
            )
    return None
