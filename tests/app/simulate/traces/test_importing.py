"""Public formats by hand-made files of a few lines, and the shared sets where they are."""

from pathlib import Path

import pytest

from app.base.errors import InvalidRequest
from app.measurements.traces import MAX_STEPS
from app.simulate.traces.importing import (
    FileKind,
    ImportOptions,
    import_file,
)
from app.simulate.traces.jobs import JobList
from app.simulate.traces.trace import RateTrace

LLM, FUNCTIONS = FileKind.AZURE_LLM, FileKind.AZURE_FUNCTIONS
PHILLY, ALIBABA = FileKind.PHILLY, FileKind.ALIBABA
JOBS = "submit_s,duration_s,num_gpus,virtual_cluster"
MINUTES = ",".join(str(minute) for minute in range(1, 1441))


def read(
    tmp_path: Path, kind: FileKind, text: str, **options: object
) -> RateTrace | JobList:
    path = tmp_path / "file.csv"
    # Line ends of their own are kept.
    path.write_bytes(text.encode())
    return import_file(kind, path, ImportOptions(**options))  # type: ignore[arg-type]


def read_trace(
    tmp_path: Path, kind: FileKind, text: str, **options: object
) -> RateTrace:
    found = read(tmp_path, kind, text, **options)
    assert isinstance(found, RateTrace)
    return found


def read_jobs(tmp_path: Path, kind: FileKind, text: str) -> JobList:
    found = read(tmp_path, kind, text)
    assert isinstance(found, JobList)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:48.1,1,1\n"
        "2023-11-16 18:15:46.9999999,5,6\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.5+00:00,3,4\n2024-05-10 00:00:02.5+00:00,3,4\n"
        "2024-05-10 00:00:00.9+00:00,3,4\n",
        "t_s,context_tokens,generated_tokens\n0.98,48,10\n0.99,1,1\n2.0,3,4\n",
        "second,requests,context_tokens,generated_tokens\n0,2,49,11\n1,0,0,0\n2,1,3,4\n",
    ],
    ids=["2023", "2024", "by seconds", "counted"],
)
def test_llm_requests_are_counted_by_the_second(tmp_path: Path, text: str) -> None:
    trace = read_trace(tmp_path, LLM, text)
    assert (trace.names, trace.step_s, trace.rates_rps[:, 0].tolist()) == (
        ("requests",),
        1.0,
        [2.0, 0.0, 1.0],
    )


def functions_text(*rows: tuple[str, str, dict[int, int]]) -> str:
    lines = [
        f"o,a,{name},{trigger},"
        + ",".join(str(counts.get(minute, 0)) for minute in range(1, 1441))
        for name, trigger, counts in rows
    ]
    return (
        "\n".join([f"HashOwner,HashApp,HashFunction,Trigger,{MINUTES}", *lines]) + "\n"
    )


def one_function(trigger: str, count: int) -> str:
    return functions_text(("f", trigger, {7: count}))


def test_the_busiest_functions_become_series_by_the_minute(tmp_path: Path) -> None:
    text = functions_text(
        ("aaaaaaaa11", "http", {1: 60, 1440: 120}),
        ("bbbbbbbb22", "timer", {2: 6000}),
        ("cccccccc33", "http", {3: 1}),
        ("aaaaaaaa44", "http", {1: 30}),
    )
    trace = read_trace(tmp_path, FUNCTIONS, text, top=3)
    assert (trace.names, trace.step_s, trace.rates_rps.shape) == (
        ("bbbbbbbb", "aaaaaaaa", "aaaaaaaa-2"),
        60.0,
        (1440, 3),
    )
    assert trace.requests.tolist() == pytest.approx([6000.0, 180.0, 30.0])
    assert (trace.rates_rps[1, 0], trace.rates_rps[0, 1], trace.rates_rps[-1, 1]) == (
        100.0,
        1.0,
        2.0,
    )
    by_http = read_trace(tmp_path, FUNCTIONS, text, trigger="http")
    assert by_http.names == ("aaaaaaaa", "aaaaaaaa-2", "cccccccc")


def test_training_jobs_are_called_by_their_cluster(tmp_path: Path) -> None:
    text = f"{JOBS}\n100,50,8,blue\n130,0,1,blue\n160,25,1,red\n"
    jobs = read_jobs(tmp_path, PHILLY, text)
    assert (jobs.submit_s.tolist(), jobs.duration_s.tolist()) == ([0, 60], [50, 25])
    assert (jobs.gpus.tolist(), jobs.names) == ([8, 1], ("blue-1", "red-3"))
    assert jobs.notes[-1] == "left out: 0 without a GPU, 1 that never ran"


@pytest.mark.parametrize(
    "header",
    [
        "pod,num_gpu,gpu_milli,creation_s,deletion_s,scheduled_s",
        "name,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time",
    ],
    ids=["shared", "published"],
)
def test_pods_hold_shares_of_gpus_from_when_they_are_scheduled(
    tmp_path: Path, header: str
) -> None:
    text = f"{header}\nlate,1,460,500,900,600\nfirst,2,1000,100,200,100\ncpu,0,0,0,50,0\nwaiting,1,1000,300,400,\n"
    jobs = read_jobs(tmp_path, ALIBABA, text)
    assert jobs.names == ("first", "late")
    assert (jobs.submit_s.tolist(), jobs.duration_s.tolist(), jobs.gpus.tolist()) == (
        [0, 400],
        [100, 300],
        [2, 0.46],
    )
    assert jobs.notes[-1] == "left out: 1 without a GPU, 1 that never ran"


@pytest.mark.parametrize(
    ("kind", "text", "place", "problem"),
    [
        (LLM, "when,tokens\n1,2\n", ":1:", "one of the columns second, t_s"),
        (LLM, "TIMESTAMP,a\nyesterday,2\n", ":2: column TIMESTAMP:", "'yesterday'"),
        (LLM, "t_s,a\n1,2\nx,2\n", ":3: column t_s:", "'x'"),
        (LLM, f"t_s,a\n1,2\n{MAX_STEPS + 2},2\n", ":3: column t_s:", "more than"),
        (LLM, "t_s,a\n1,2\n1.5,2\n", ":", "at least two steps"),
        (FUNCTIONS, "HashFunction,Trigger,1,2\na,http,1,2\n", ":1:", "lacks 3"),
        (FUNCTIONS, one_function("queue", 1), ": column Trigger:", "'http'"),
        (FUNCTIONS, one_function("http", -1), ":2: column 7:", "at least 0"),
        (PHILLY, "submit_s,duration_s\n1,2\n", ":1:", "GPUs (such as num_gpus)"),
        (PHILLY, f"{JOBS}\n1,2,-1,a\n", ":2: column num_gpus:", "-1"),
        (PHILLY, f"{JOBS}\n1,2,0,a\n", ":", "no job needs a GPU"),
        (
            ALIBABA,
            "pod,num_gpu,gpu_milli\na,1,1\n",
            ":1:",
            "submission (such as submit_time), duration",
        ),
    ],
)
def test_errors_name_file_line_and_column(
    tmp_path: Path, kind: FileKind, text: str, place: str, problem: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(tmp_path, kind, text, trigger="http" if kind is FUNCTIONS else "")
    assert str(caught.value).startswith(f"{tmp_path / 'file.csv'}{place}")
    assert problem in str(caught.value)
