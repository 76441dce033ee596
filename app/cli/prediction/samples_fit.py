"""`plimsoll samples fit`: fit what the control plane knows of a network, and use what is no worse."""

from collections.abc import Sequence
from typing import Annotated

import typer

from app.cli.common.client import Api, Document, documents, number, text
from app.cli.common.context import cli_context
from app.cli.common.errors import ApiProblem, CliError
from app.cli.common.options import Output
from app.cli.common.output import (
    Cells,
    Format,
    faint,
    good,
    show_document,
    show_line,
    show_table,
)
from app.cli.objects.show.predictions import percent

_HEADINGS = ("quantity", "GPU type", ">samples", "technique", ">error", ">p90")


def fit(
    context: typer.Context,
    network: Annotated[
        str, typer.Argument(metavar="NETWORK", help="Name of the network")
    ],
    apply: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="Use the new operating points where they are no worse",
        ),
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Fit a network's samples on the control plane, now.

    New samples are also fitted automatically within minutes. Errors are cross-validated: each sample is predicted by a
    fit without it.
    """
    with Api(cli_context(context)) as api:
        try:
            answer = api.post(
                f"/api/v1/networks/{network}/fit",
                query={"apply": "true" if apply else "false"},
            )
        except ApiProblem as problem:
            # The API cannot know which command sends samples.
            if problem.status == 422:
                raise CliError(
                    problem.detail, hint="`plimsoll samples send FILES` sends samples"
                ) from problem
            raise
    if not show_document(answer, output):
        _show(
            documents(answer, "fits"),
            documents(answer, "verdicts"),
            is_asked=apply,
        )


def _show(
    fits: Sequence[Document], verdicts: Sequence[Document], *, is_asked: bool
) -> None:
    """The fits in force, then what became of the operating points."""
    # Latency first, as it decides; the API's order is by age.
    ordered = sorted(
        fits,
        key=lambda entry: (
            text(entry, "quantity") != "latency_ms",
            text(entry, "quantity"),
        ),
    )
    show_table(_HEADINGS, [_fit_row(entry) for entry in ordered])
    if not verdicts:
        return
    show_line()
    headings = ["GPU type", "operating points", "why"]
    show_table(headings, [_verdict_row(entry) for entry in verdicts])
    if not is_asked:
        show_line("`--apply` uses them where they are no worse.")


def _fit_row(entry: Document) -> Cells:
    return (
        text(entry, "quantity"),
        text(entry, "gpu_type"),
        text(entry, "sample_count"),
        text(entry, "technique"),
        percent(number(entry, "cross_validated_error")),
        percent(number(entry, "cross_validated_error_p90")),
    )


def _verdict_row(entry: Document) -> Cells:
    is_applied = entry.get("applied") is True
    state = good("new ones in force") if is_applied else faint("unchanged")
    return text(entry, "gpu_type"), state, text(entry, "reason")
