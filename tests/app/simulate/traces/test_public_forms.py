"""Every public form of a file, under any name, by files of a few lines; and real sets where they are."""

import json
from pathlib import Path

import pytest

from app.base.errors import InvalidRequest
from app.measurements.times import TimeUnit, Values
from app.simulate.traces.importing import (
    FileKind,
    ImportOptions,
    assumptions,
    import_file,
)
from app.simulate.traces.jobs import JobList
from app.simulate.traces.series import Missing
from tests.app.simulate.traces.test_importing import (
    ALIBABA,
    FUNCTIONS,
    LLM,
    PHILLY,
    read,
    read_jobs,
    read_trace,
)

BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
BURST_ROWS = "5,ChatGPT,472,18,490,Conversation log\n5,GPT-4,10,0,10,API log\n7,ChatGPT,1,1,2,API log\n"
SESSIONS = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
MOONCAKE = "".join(
    f'{{"timestamp": {ms}, "input_length": 9, "output_length": 5, "hash_ids": [0, 1]}}\n'
    for ms in (0, 900, 2100)
)
QWEN = "".join(
    f'{{"chat_id": 1, "timestamp": {at}, "input_length": 9, "output_length": 5, "type": "{kind}", "hash_ids": [7]}}\n'
    for at, kind in (("61.114", "text"), ("61.9", "file"), ("63.0", "text"))
)
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,1,2\n0.75,1,2\n2.9,3,4\n"
AZURE_LLM = "TIMESTAMP,ContextTokens,GeneratedTokens"


def dated(year: int, header: str = AZURE_LLM) -> str:
    rest = ",1" * header.count(",")
    rows = (f"{year}-05-10 00:00:0{second}{rest}\n" for second in ("0.5", "0.7", "2"))
    return f"{header}\n" + "".join(rows)


@pytest.mark.parametrize(
    "kind", [FileKind.AUTO, FileKind.REQUESTS, LLM, FileKind.RATES]
)
@pytest.mark.parametrize(
    ("text", "cited"),
    [
        (f"{BURST}\n{BURST_ROWS}", "BurstGPT"),
        (f"{BURST}\n{BURST_ROWS}".replace("\n", "\r\n"), "BurstGPT"),
        (
            f"{SESSIONS}\n19440110.0,u,43,GPT-4,906,446,1352,API log\n19440110.0,u,43,GPT-4,9,6,15,API log\n"
            "19440112.0,u,2,ChatGPT,36,29,65,API log\n",
            "arXiv:2401.17644",
        ),
        (MOONCAKE, "Mooncake, FAST 2025"),
        (QWEN, "KVCache Cache in the Wild, ATC 2025"),
        (f"[{','.join(QWEN.splitlines())}]", "KVCache Cache in the Wild"),
        (VIDUR, ""),
        (dated(2023), "Splitwise, ISCA 2024"),
        (dated(2024), "DynamoLLM"),
        (dated(2026), "the paper of its year"),
        (dated(2024, "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"), "ModServe"),
    ],
)
def test_requests_are_counted_by_the_second_and_their_set_is_cited(
    tmp_path: Path, kind: FileKind, text: str, cited: str
) -> None:
    trace = read_trace(tmp_path, kind, text)
    assert (trace.names, trace.step_s) == (("requests",), 1.0)
    assert trace.rates_rps[:, 0].tolist() == [2.0, 0.0, 1.0]
    assert cited in " ".join(trace.notes)


def test_whole_numbers_that_span_more_than_a_set_is_long_are_milliseconds(
    tmp_path: Path,
) -> None:
    text = QWEN.replace("61.114", "0").replace("61.9", "900").replace("63.0", "20000")
    trace = read_trace(tmp_path, LLM, text)
    assert len(trace.rates_rps) == 21
    assert "in milliseconds" in trace.notes[-1]
    seconds = read_trace(tmp_path, LLM, MOONCAKE, unit=TimeUnit.S)
    assert (len(seconds.rates_rps), seconds.requests.tolist()) == (2101, [3.0])


def test_a_column_makes_series_of_requests_the_busiest_first(tmp_path: Path) -> None:
    text = f"{BURST}\n{BURST_ROWS}"
    both = read_trace(tmp_path, FileKind.REQUESTS, text, by="model")
    assert both.names == ("ChatGPT", "GPT-4")
    assert both.rates_rps.tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    one = read_trace(tmp_path, FileKind.REQUESTS, text, by="Model", top=1)
    assert (one.names, one.requests.tolist()) == (("ChatGPT",), [2.0])
    assert "left out: 1 requests of 1 less busy series" in one.notes


def test_requests_without_an_answer_came_all_the_same(tmp_path: Path) -> None:
    notes = read_trace(tmp_path, LLM, f"{BURST}\n{BURST_ROWS}").notes
    assert (
        "read: 1 request without a token of an answer: failed, but came all the same"
        in notes
    )


def test_invocations_of_2021_count_from_their_beginning(tmp_path: Path) -> None:
    text = (
        "app,func,end_timestamp,duration\naaaaaaaaaa,ffffffffff,10.5,0.25\naaaaaaaaaa,ffffffffff,13.0,3.0\n"
        "bbbbbbbbbb,ffffffffff,12.0,0.5\n"
    )
    trace = read_trace(tmp_path, FUNCTIONS, text)
    # A function is unique only within its application.
    assert trace.names == ("ffffffff", "ffffffff-2")
    assert trace.rates_rps.tolist() == [[2.0, 0.0], [0.0, 1.0]]
    assert "SOSP 2021" in trace.notes[0]


TASK = "4f05,tensorflow,1.0,Terminated,100.0,138.0,600.0,29.3,50.0,MISC"
HELIOS = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    "1,u,v,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:42:01,2020-06-09 18:52:01,600,60\n"
    "2,u,v,4,16,2,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0\n"
    "3,u,v,0,16,1,FAILED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-09 18:45:36,248,0\n"
)


def attempt(start: str, end: str | None, gpus: int) -> dict[str, object]:
    names = [f"gpu{number}" for number in range(gpus)]
    detail = [{"ip": "m1", "gpus": names[:2]}, {"ip": "m2", "gpus": names[2:]}]
    return {"start_time": start, "end_time": end, "detail": detail}


JOB_LOG = json.dumps(
    [
        {
            "status": "Pass",
            "vc": "ee",
            "jobid": "j-1",
            "submitted_time": "2017-10-07 01:11:39",
            "attempts": [
                attempt("2017-10-07 01:12:00", "2017-10-07 01:13:00", 4),
                attempt("2017-10-07 01:20:00", "2017-10-07 01:29:00", 4),
            ],
        },
        {
            "status": "Killed",
            "vc": "ee",
            "jobid": "j-2",
            "submitted_time": "2017-10-07 01:12:39",
            "attempts": [attempt("2017-10-07 01:13:00", None, 1)],
        },
        {"vc": "ee", "jobid": "j-3", "submitted_time": "None", "attempts": []},
    ]
)


@pytest.mark.parametrize("kind", [FileKind.AUTO, FileKind.JOBS, PHILLY, ALIBABA])
@pytest.mark.parametrize(
    ("text", "jobs", "cited"),
    [
        # Half a GPU; four instances with one each; one that runs on, and one without a GPU.
        (
            f"{TASK}\na,worker,4.0,Terminated,120.0,130.0,600.0,29.3,100.0,T4\n"
            "b,worker,4.0,Running,121.0,,600.0,29.3,100.0,T4\nc,ps,1.0,Terminated,121.0,122.0,600.0,29.3,,\n",
            [("4f05", 0.0, 38.0, 0.5), ("a", 20.0, 10.0, 4.0)],
            "MLaaS in the Wild, NSDI 2022",
        ),
        (
            f"job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n{TASK}\n",
            [("4f05", 0.0, 38.0, 0.5)],
            "cluster-trace-gpu-v2020",
        ),
        (HELIOS, [("1", 0.0, 600.0, 1.0), ("2", 26.0, 249.0, 4.0)], "SC 2021"),
        (JOB_LOG, [("j-1", 0.0, 600.0, 4.0)], "Jeon et al."),
        (
            "instance_sn,role,app_name,gpu_request,creation_time,scheduled_time,deletion_time\n"
            "i-1,HN,a,1,,,\ni-2,HN,a,2,10.0,12.0,20.0\n",
            [("i-2", 0.0, 8.0, 2.0)],
            "NSDI 2025",
        ),
        (
            "id_job,time_submit,time_start,time_end,gpus_req\n7,10,12,20,2\n8,10,Unknown,Unknown,1\n",
            [("7", 0.0, 8.0, 2.0)],
            "",
        ),
        (
            "id,submit_time,run_time,gpu_count\nx,10,60,2\ny,20,30,1\n",
            [("x", 0.0, 60.0, 2.0), ("y", 10.0, 30.0, 1.0)],
            "",
        ),
    ],
    ids=[
        "PAI",
        "PAI with header",
        "Helios",
        "Philly",
        "Alibaba 2025",
        "Slurm",
        "another",
    ],
)
def test_jobs_are_read_by_what_their_columns_mean(
    tmp_path: Path,
    kind: FileKind,
    text: str,
    jobs: list[tuple[str, float, float, float]],
    cited: str,
) -> None:
    found = read_jobs(tmp_path, kind, text)
    columns = (found.submit_s.tolist(), found.duration_s.tolist(), found.gpus.tolist())
    assert list(zip(found.names, *columns, strict=True)) == jobs
    assert cited in " ".join(found.notes)


PROMETHEUS = [
    {
        "metric": {"job": "x", "service": "a"},
        "values": [[1772359200, "5"], [1772359230, "7"]],
    },
    {
        "metric": {"job": "x", "service": "b"},
        "values": [[1772359200, "1"], [1772359230, "2.5"]],
    },
]
EXPORTED = (
    '{"metric": {"__name__": "rps", "service": "a"}, "values": [5, 7], "timestamps": [1772359200000, 1772359230000]}\n'
    '{"metric": {"__name__": "rps", "service": "b"}, "values": [1,2.5], "timestamps": [1772359200000, 1772359230000]}\n'
)
"""The same as VictoriaMetrics exports it: a line for each series, times in milliseconds."""
MATRIX = {"resultType": "matrix", "result": PROMETHEUS}
RATES = [[5.0, 1.0], [7.0, 2.5]]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"status": "success", "data": MATRIX}),
        json.dumps(MATRIX, indent=2),
        json.dumps(PROMETHEUS),
        EXPORTED,
        '"Time","a","b"\n1772359200000,5,1\n1772359230000,7,2.5\n',
        'sep=,\r\n"Time","a","b"\r\n1772359200000,5,1\r\n1772359230000,7,2.5\r\n',
        '"Time","a","b"\n2026-03-01 10:00:00,5 req/s,60 req/m\n2026-03-01 10:00:30,7 req/s,150 req/m\n',
        '"Time","a","b"\n2026-03-01 10:00:00,0.005K req/s,1 rps\n2026-03-01 10:00:30,7 req/s,2.5 rps\n',
        '"Time","{job=""x"", service=""a""}","{job=""x"", service=""b""}"\n1772359200,5,1\n1772359230,7,2.5\n',
        "timestamp,a_rps,b_rps\n1772359200000000000,5,1\n1772359230000000000,7,2.5\n",
    ],
)
def test_exports_of_dashboards_hold_rates(tmp_path: Path, text: str) -> None:
    trace = read_trace(tmp_path, FileKind.RATES, text)
    assert (trace.names, trace.step_s) == (("a", "b"), 30.0)
    assert trace.rates_rps.tolist() == RATES
    assert read_trace(tmp_path, FileKind.AUTO, text).rates_rps.tolist() == RATES


@pytest.mark.parametrize(
    ("header", "values", "mean_rps", "note"),
    [
        (
            "time,rate",
            None,
            5.0,
            "rate: cells are requests per second; --values counts",
        ),
        ("time,qps", None, 5.0, "per second"),
        (
            "time,value",
            None,
            5.0 / 30.0,
            "value: cells are requests of the step of 30 s; --values rates",
        ),
        ("time,requests", None, 5.0 / 30.0, "--values rates"),
        ("time,rate", Values.COUNTS, 5.0 / 30.0, ""),
        ("time,value", Values.RATES, 5.0, ""),
        ("time,a_rps", None, 5.0, ""),
        ("Time,value", None, 5.0, "--values counts"),
        ("Time,increase(x[30s])", None, 5.0 / 30.0, "--values rates"),
    ],
)
def test_what_cells_were_taken_for_is_said(
    tmp_path: Path, header: str, values: Values | None, mean_rps: float, note: str
) -> None:
    text = f"{header}\n0,5\n30,5\n"
    trace = read_trace(tmp_path, FileKind.RATES, text, values=values)
    assert trace.means_rps.tolist() == pytest.approx([mean_rps])
    said = assumptions(trace)
    assert (note in said[0]) if note else not said


def test_steps_of_a_second_need_no_word_about_their_cells(tmp_path: Path) -> None:
    assert not assumptions(read_trace(tmp_path, FileKind.RATES, "time,a\n0,5\n1,5\n"))


def test_missing_values_of_series_are_filled_where_that_is_asked(
    tmp_path: Path,
) -> None:
    late = [{**PROMETHEUS[0], "values": [[1772359200, "NaN"], [1772359230, "7"]]}]
    late.append({**PROMETHEUS[1], "values": [[1772359230, "2"]]})
    text = json.dumps(late)
    with pytest.raises(InvalidRequest, match=r"step:1: column a: .*--missing zero"):
        read(tmp_path, FileKind.RATES, text)
    filled = read_trace(tmp_path, FileKind.RATES, text, missing=Missing.ZERO)
    assert filled.rates_rps.tolist() == [[0.0, 0.0], [7.0, 2.0]]


LONG = "time,service,rate_rps\n0,a,1\n0,b,2\n5,b,4\n5,a,3\n"


@pytest.mark.parametrize("columns", [(), ("RATE_rps",)])
def test_a_row_for_each_step_and_series_becomes_a_column_for_each(
    tmp_path: Path, columns: tuple[str, ...]
) -> None:
    options = {"by": "Service", "columns": columns, "values": Values.RATES}
    trace = read_trace(tmp_path, FileKind.RATES, LONG, **options)
    assert (trace.names, trace.step_s) == (("a", "b"), 5.0)
    assert trace.rates_rps.tolist() == [[1.0, 2.0], [3.0, 4.0]]


COUNTER = {"metric": {"__name__": "requests_total"}, "values": [[1, "5"], [2, "6"]]}
FALLS_BACK = (
    "2026-10-25 02:30:00,1,1\n2026-10-25 02:59:00,1,1\n2026-10-25 02:00:00,1,1\n"
)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (FileKind.RATES, json.dumps([COUNTER]), "query sum(rate(requests_total[1m]))"),
        (FileKind.RATES, '"Time","up_total{job=""a""}"\n1,2\n2,3\n', "is a counter"),
        (
            FileKind.RATES,
            json.dumps({"status": "error", "error": "parse error"}),
            "refusal of a query: parse error",
        ),
        (
            FileKind.RATES,
            json.dumps(
                {"resultType": "vector", "result": [{"metric": {}, "value": [1, "2"]}]}
            ),
            "ask query_range",
        ),
        (
            FileKind.RATES,
            json.dumps({"resultType": "matrix", "result": []}),
            "0 series",
        ),
        (FileKind.RATES, '"Time","a"\n1,5 ms\n2,5 ms\n', "in ms, which is no rate"),
        (FileKind.RATES, '"Time","a"\n1,5%\n2,5%\n', "must be a number"),
        (
            FileKind.RATES,
            '"Time","a"\n1,5 req/s\n2,5 rpm\n',
            "the cells above in req/s",
        ),
        (FileKind.RATES, "time,a,b\n" + FALLS_BACK, "when summer time ends"),
        (FileKind.REQUESTS, AZURE_LLM + "\n" + FALLS_BACK, "when summer time ends"),
        (
            FileKind.RATES,
            "time,a\n2026-03-29 01:00:00,1\n2026-03-29 01:30:00,1\n2026-03-29 03:00:00,1\n",
            "summer time ends or begins",
        ),
        (
            FileKind.RATES,
            "time,a\n5,1\n5,1\n",
            "`plimsoll trace import requests` counts",
        ),
        (FileKind.RATES, "time,a\n6,1\n5,1\n", "sort the rows by time"),
        (
            FileKind.RATES,
            '"Series","Time","Value"\n"a",5,1\n"b",5,1\n',
            "--by Series makes a series of each",
        ),
        (FileKind.RATES, "when,a\n5,1\n6,1\n", "Say by --time-column"),
        (FileKind.RATES, "t_s,a\n1772359200000,1\n1772359201000,1\n", "divide by 1000"),
        (FileKind.REQUESTS, "time,a\n5,1\n20000000,1\n", "say --time-unit ms"),
        (FileKind.JOBS, "a,b,c,Terminated,5.0,6.0\n", "take pai_task_table.csv"),
        (FileKind.AUTO, "job_id,submit_time\n1,2\n", "needs columns for duration"),
    ],
)
def test_what_is_refused_says_how_to_convert_it(
    tmp_path: Path, kind: FileKind, text: str, words: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(tmp_path, kind, text)
    assert words in str(caught.value)


def test_options_of_other_forms_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="a row for each request"):
        read(tmp_path, FileKind.RATES, MOONCAKE, columns=("a",))


def test_any_file_of_rows_is_counted_with_its_column_of_times(tmp_path: Path) -> None:
    text = "user,when\nx,2026-03-01T10:00:00Z\ny,2026-03-01T10:00:00.5Z\nx,2026-03-01T10:00:02Z\n"
    trace = read_trace(tmp_path, FileKind.REQUESTS, text, time="When")
    assert trace.rates_rps[:, 0].tolist() == [2.0, 0.0, 1.0]


SHARED = Path(__file__).parents[5] / "shared" / "data"


@pytest.mark.parametrize(
    ("file", "kind", "size"),
    [
        ("philly_jobs/jobs.csv", PHILLY, 82_247),
        ("llm_traces/mooncake_conversation.csv.gz", FileKind.AUTO, 5606),
        ("azure_llm_2023/requests_conv.csv", LLM, 19_366),
        ("alibaba_gpu_2023/pods_default.csv", ALIBABA, 1000),
    ],
)
def test_real_sets_are_read(file: str, kind: FileKind, size: int) -> None:
    path = SHARED / file
    if not path.exists():
        pytest.skip("the shared sets are not here")
    found = import_file(kind, path, ImportOptions())
    if isinstance(found, JobList):
        assert len(found) >= size * 0.9
    else:
        assert found.requests.sum() == pytest.approx(size, rel=0.01)
