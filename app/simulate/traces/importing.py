"""Published sets and other people's files as traces and job lists, with a note of source and licence."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from app.simulate.traces.azure_functions import read_azure_functions
from app.simulate.traces.azure_llm import read_azure_llm
from app.simulate.traces.files import Missing, read_trace
from app.simulate.traces.job_lists import read_alibaba, read_philly
from app.simulate.traces.jobs import JobList
from app.simulate.traces.trace import RateTrace

USUAL_FUNCTIONS = 10


class FileKind(StrEnum):
    """Whose file it is."""

    RATES = "rates"
    """A time column and one column per series, such as the per-second traces of Twitter."""
    AZURE_LLM = "azure-llm"
    AZURE_FUNCTIONS = "azure-functions"
    PHILLY = "philly"
    ALIBABA = "alibaba"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """What a kind of file leaves open; each option is read by the kinds that its line names."""

    columns: Sequence[str] = ()
    """rates: which to take; none = all."""
    missing: Missing = Missing.REFUSE
    """rates: what to do about gaps."""
    top: int = USUAL_FUNCTIONS
    """azure-functions: how many of the busiest."""
    trigger: str = ""
    """azure-functions: of this trigger only."""
    source: str = ""
    """Words; else those of the published set."""
    licence: str = ""


_ORIGINS = {
    FileKind.AZURE_LLM: (
        "Azure LLM inference trace, AzurePublicDataset; cite Patel et al., Splitwise, ISCA 2024",
        "CC BY 4.0 as published",
    ),
    FileKind.AZURE_FUNCTIONS: (
        "Azure Functions trace, AzurePublicDataset; cite Shahrad et al., Serverless in the Wild, ATC 2020",
        "CC BY 4.0 as published",
    ),
    FileKind.PHILLY: (
        "Philly traces, Microsoft; cite Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters, ATC 2019",
        "CC BY 4.0 as published",
    ),
    FileKind.ALIBABA: (
        "Alibaba cluster-trace-gpu-v2023; cite Weng et al., Beware of Fragmentation, ATC 2023",
        "none stated as published",
    ),
}
"""Source and licence of the published sets. The user's copy may have another one: then the user says so."""


def import_file(
    kind: FileKind,
    source: Path,
    options: ImportOptions,
) -> RateTrace | JobList:
    """What a file holds (`-` = stdin, .gz = packed). Raises InvalidRequest, which names file, line and column."""
    imported = _read(kind, source, options)
    # The origin first: a licence that asks to be named must not be lost below other notes.
    return replace(imported, notes=(*_origin(kind, options), *imported.notes))


def _read(kind: FileKind, source: Path, options: ImportOptions) -> RateTrace | JobList:
    match kind:
        case FileKind.RATES:
            return read_trace(source, columns=options.columns, missing=options.missing)
        case FileKind.AZURE_LLM:
            return read_azure_llm(source)
        case FileKind.AZURE_FUNCTIONS:
            return read_azure_functions(
                source,
                top=options.top,
                trigger=options.trigger,
            )
        case FileKind.PHILLY:
            return read_philly(source)
        case FileKind.ALIBABA:
            return read_alibaba(source)


def _origin(kind: FileKind, options: ImportOptions) -> list[str]:
    source, licence = _ORIGINS.get(kind, ("", ""))
    lines = (
        ("source", options.source or source),
        ("licence", options.licence or licence),
    )
    return [f"{title}: {value}" for title, value in lines if value]
