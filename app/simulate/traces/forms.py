"""Published traces and job lists: how their files are recognised, and whom to cite.

Each form is recognised by columns, so that a file may be imported under any name. Sources: the README or the schema
that is published with each set.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.measurements.records import HeaderlessForm
from app.measurements.series_json import PHILLY, PROMETHEUS
from app.measurements.times import TimeUnit, listed

_CC_BY = "CC BY 4.0 as published"
_APACHE = "Apache-2.0 as published"
_UNSTATED = "none stated as published"
_AZURE = "AzurePublicDataset; cite"
_AZURE_LLM = listed("timestamp, contexttokens, generatedtokens")


class RowMeaning(StrEnum):
    """What the rows of a file are."""

    SERIES = "rates"
    """A step each, with a column per series."""
    REQUESTS = "requests"
    """A request each."""
    MINUTES = "azure-functions"
    """A function each, with a column per minute of a day."""
    JOBS = "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a set comes from, and under which licence."""

    source: str
    licence: str = _CC_BY


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownForm:
    """The files of one set, or of one program."""

    rows: RowMeaning
    needs: tuple[str, ...]
    """Columns that tell it from others, in lower case."""
    origin: Origin | None = None
    written_by: str = ""
    """The program that a JSON document was written by."""
    time: str | None = None
    """The column of times where its name does not say so."""
    unit: TimeUnit | None = None
    """What times are counted in, where the set's description says it and the column's name does not."""
    longest_s: float = float("inf")
    """How long the published files are: multiples of it in whole numbers are milliseconds."""
    duration: str | None = None
    """The column of what lies between a request and the time of its row."""
    by: tuple[str, ...] = ()
    """Columns that tell the series apart; the last one names them."""
    year: int | None = None
    """When the requests came, where sets differ in nothing else."""


def _llm(source: str, *, year: int | None = None, more: str = "") -> KnownForm:
    return KnownForm(
        rows=RowMeaning.REQUESTS,
        needs=(*_AZURE_LLM, more) if more else _AZURE_LLM,
        origin=Origin(source=source),
        year=year,
    )


AZURE_LLM_UNDATED = Origin(
    source=f"Azure LLM inference trace, {_AZURE} the paper of its year: Splitwise (2023), DynamoLLM (2024), "
    "ModServe (2025)"
)
_JSON_LENGTHS = listed("timestamp, input_length, output_length")

FORMS = (
    KnownForm(rows=RowMeaning.SERIES, needs=(), written_by=PROMETHEUS),
    KnownForm(
        rows=RowMeaning.JOBS,
        needs=(),
        written_by=PHILLY,
        origin=(
            philly := Origin(
                source="Philly traces, Microsoft; cite Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters, "
                "ATC 2019"
            )
        ),
    ),
    # Minutes 1 and 1440 are enough to know a day by; the reader checks those between.
    KnownForm(
        rows=RowMeaning.MINUTES,
        needs=listed("hashfunction, trigger, 1, 1440"),
        origin=Origin(
            source=f"Azure Functions trace 2019, {_AZURE} Shahrad et al., Serverless in the Wild, ATC 2020"
        ),
    ),
    KnownForm(
        rows=RowMeaning.REQUESTS,
        # A row says when an invocation ended, so its duration is taken away.
        needs=listed("app, func, end_timestamp, duration"),
        time="end_timestamp",
        unit=TimeUnit.S,
        duration="duration",
        by=("app", "func"),
        origin=Origin(
            source=f"Azure Functions invocation trace 2021, {_AZURE} Zhang et al., Faster and Cheaper "
            "Serverless Computing on Harvested Resources, SOSP 2021"
        ),
    ),
    _llm(
        f"Azure LMM inference trace 2025, {_AZURE} Qiu et al., ModServe, SoCC 2025",
        more="numimages",
    ),
    _llm(
        f"Azure LLM inference trace 2023, {_AZURE} Patel et al., Splitwise, ISCA 2024",
        year=2023,
    ),
    _llm(
        f"Azure LLM inference trace 2024, {_AZURE} Stojkovic et al., DynamoLLM, arXiv:2408.00741",
        year=2024,
    ),
    _llm(AZURE_LLM_UNDATED.source),
    KnownForm(
        rows=RowMeaning.REQUESTS,
        # Releases have more columns between these, such as Session ID and Elapsed time.
        needs=("timestamp", "request tokens", "response tokens"),
        unit=TimeUnit.S,
        origin=Origin(source="BurstGPT; cite Wang et al., BurstGPT, arXiv:2401.17644"),
    ),
    KnownForm(
        rows=RowMeaning.REQUESTS,
        # Before Mooncake, whose columns a line of this set has, too, in another unit.
        needs=("chat_id", *_JSON_LENGTHS),
        unit=TimeUnit.S,
        longest_s=7200.0,
        origin=Origin(
            source="Qwen-Bailian usage traces, Alibaba; cite Wang et al., KVCache Cache in the Wild, ATC 2025",
            licence=_APACHE,
        ),
    ),
    KnownForm(
        rows=RowMeaning.REQUESTS,
        # Blocks of the prompt, `hash_ids`, are missing in files that other tools make of this form.
        needs=_JSON_LENGTHS,
        unit=TimeUnit.MS,
        origin=Origin(
            source="Mooncake traces, or a file of their form; cite Qin et al., Mooncake, FAST 2025",
            licence=_APACHE,
        ),
    ),
    KnownForm(
        rows=RowMeaning.JOBS,
        needs=listed("job_id, vc, gpu_num, submit_time, duration"),
        origin=Origin(
            source="Helios traces, SenseTime; cite Hu et al., Characterization and Prediction of Deep Learning "
            "Workloads in Large-Scale GPU Datacenters, SC 2021",
            licence="as stated where it was published",
        ),
    ),
    KnownForm(
        rows=RowMeaning.JOBS,
        # Published without a header; HEADERLESS gives it these names.
        needs=listed("job_name, inst_num, start_time, end_time, plan_gpu"),
        origin=Origin(
            source="Alibaba cluster-trace-gpu-v2020; cite Weng et al., MLaaS in the Wild, NSDI 2022",
            licence=_UNSTATED,
        ),
    ),
    KnownForm(
        rows=RowMeaning.JOBS,
        needs=listed("instance_sn, app_name, gpu_request, creation_time"),
        origin=Origin(
            source="Alibaba cluster-trace-gpu-v2025; cite Yang et al., GPU-Disaggregated Serving, NSDI 2025",
            licence=_UNSTATED,
        ),
    ),
    KnownForm(
        rows=RowMeaning.JOBS,
        # Both the published names of the other columns and shorter ones are in use.
        needs=("num_gpu", "gpu_milli"),
        origin=Origin(
            source="Alibaba cluster-trace-gpu-v2023; cite Weng et al., Beware of Fragmentation, ATC 2023",
            licence=_UNSTATED,
        ),
    ),
    KnownForm(
        rows=RowMeaning.JOBS,
        needs=listed("submit_s, duration_s, num_gpus, virtual_cluster"),
        origin=philly,
    ),
)
"""The first one whose columns a file has is its form."""

_START_AND_END = ("start_time", "end_time")
HEADERLESS = (
    HeaderlessForm(
        names=listed(
            "job_name, task_name, inst_num, status, start_time, end_time, plan_cpu, plan_mem, plan_gpu, gpu_type"
        ),
        numbers=listed("inst_num, start_time, end_time, plan_cpu, plan_gpu"),
    ),
    HeaderlessForm(
        names=listed(
            "job_name, task_name, inst_name, worker_name, inst_id, status, start_time, end_time, machine"
        ),
        numbers=_START_AND_END,
    ),
    HeaderlessForm(
        names=listed("job_name, inst_id, user, status, start_time, end_time"),
        numbers=_START_AND_END,
    ),
)
"""The tables of Alibaba's PAI, 2020: tasks, instances and jobs. Only tasks say how many GPUs they hold."""

PROMPTS = listed(
    "contexttokens, context_tokens, input_length, input_tokens, input_len, prompt_tokens, prompt_len, "
    "prompt_length, num_prefill_tokens, prompt_size, isl, request tokens"
)
ANSWERS = listed(
    "generatedtokens, generated_tokens, output_length, output_tokens, output_len, completion_tokens, "
    "response_tokens, num_decode_tokens, token_size, osl, response tokens"
)
"""Columns of the tokens of a request and of its answer, in lower case."""


def find_form(names: Sequence[str], written_by: str) -> KnownForm | None:
    """The known form of a file with these columns."""
    lowered = {name.casefold() for name in names}
    for form in FORMS:
        if form.written_by:
            if form.written_by == written_by:
                return form
        elif lowered.issuperset(form.needs):
            return form
    return None


def origin_in(form: KnownForm, year: int) -> Origin | None:
    """Whom to cite for a file of a form that begins in this year."""
    alike = [each for each in FORMS if each.needs == form.needs and not each.written_by]
    # A year that no set has may be a copy with moved dates: then the set is left open.
    dated = [each.origin for each in alike if each.year == year]
    undated = [each.origin for each in alike if each.year is None]
    return (dated or undated or [form.origin])[0]


def column_of(names: Sequence[str], known: Sequence[str]) -> str | None:
    """The first of the known columns that a header has, without regard to case."""
    lowered = {name.casefold(): name for name in reversed(names)}
    return next((lowered[each] for each in known if each in lowered), None)
