"""Our CSV: what is read, what is refused with file, line and column, and what is written."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.base.errors import InvalidRequest
from app.measurements.csv_files import (
    PredictionErrors,
    prediction_rows,
    read_queries,
    read_samples,
    sample_rows,
)
from solvers.predict.data.fit import Predictions
from solvers.predict.data.samples import Group, Neighbour, Samples

DATA = Path(__file__).parents[2] / "data" / "measurements"
HEADER = "network,gpu_type,batch,sm_percent,latency_ms"
QUERY_HEADER = "network,gpu_type,batch,sm_percent"

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes runs.csv and returns its path."""

    def written(text: str | bytes) -> Path:
        path = tmp_path / "runs.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


def one(path: Path) -> Samples:
    return read_samples([path]).samples


def test_every_column_is_read_with_its_meaning(write: Write) -> None:
    header = (
        "latency_ms,network,gpu_type,batch,sm_percent,clock_mhz,time_quota_pct,power_limit_w,power_w,memory_mib,"
        "l2_util_percent,neighbours"
    )
    samples = one(
        write(
            f"{header}\n"
            "4.5, resnet50 ,V100,8,40,1380,50,250,181.5,1704,12.5,vgg19:4:20+alexnet:2:40\n"
            '9,"a,b",V100,1.5,100,,,,,,,\n'
        )
    )
    at = samples.at
    assert at.network == ("resnet50", "a,b")
    assert at.batch.tolist() == [8, 1.5]
    assert at.time_quota_percent.tolist() == [50, 100]
    assert at.neighbours == (
        (Neighbour("alexnet", 2, 40), Neighbour("vgg19", 4, 20)),
        (),
    )
    assert samples.latency_ms.tolist() == [4.5, 9]
    first = [
        at.clock_mhz,
        at.power_limit_w,
        samples.power_w,
        samples.memory_mib,
        samples.l2_util_percent,
    ]
    assert [values[0] for values in first] == [1380, 250, 181.5, 1704, 12.5]
    assert all(math.isnan(values[1]) for values in first)


@pytest.mark.parametrize(
    "text",
    [
        f"{HEADER}\nn,g,1,50,2\n".encode("utf-8-sig"),
        f"{HEADER}\r\nn,g,1,50,2\r\n",
        f'{HEADER}\n"n","g","1","50","2"',
        f"\n{HEADER}\n\nn,g, 1 ,5e1,2.0\n   \n",
        " network , gpu_type,batch,sm_percent,latency_ms\nn,g,1,50,2\n",
    ],
    ids=[
        "byte order mark",
        "CRLF",
        "quotes, no last newline",
        "blanks",
        "blanks in the header",
    ],
)
def test_spellings_of_the_same_table_are_equal(write: Write, text: str | bytes) -> None:
    samples = one(write(text))
    assert (
        samples.at.network,
        samples.at.batch.tolist(),
        samples.at.sm_percent.tolist(),
    ) == (("n",), [1], [50])
    assert samples.latency_ms.tolist() == [2]


@pytest.mark.parametrize(
    ("rows", "place", "words"),
    [
        ("n,g,1,50,nan", "2: column latency_ms", "must be a number above 0, not 'nan'"),
        ("n,g,1,50,inf", "2: column latency_ms", "must be a number above 0, not 'inf'"),
        ("n,g,1,50,0", "2: column latency_ms", "must be above 0, not 0"),
        ("n,g,1,50,2\n\nn,g,1,50,-3", "4: column latency_ms", "above 0, not -3"),
        ("n,g,1,50,", "2: column latency_ms", "the cell is empty"),
        ("n,g,1,50,1_0", "2: column latency_ms", "must be a number above 0, not '1_0'"),
        ("n,g,1,50,2e13", "2: column latency_ms", "must be above 0, not 2e13"),
        ("n,g,0.5,50,2", "2: column batch", "must be at least 1 and at most 65536"),
        ("n,g,eight,50,2", "2: column batch", "must be a number at least 1 and at"),
        ("n,g,1,100.5,2", "2: column sm_percent", "must be above 0 and at most 100"),
        ("n,g,1,0,2", "2: column sm_percent", "must be above 0 and at most 100, not 0"),
        (",g,1,50,2", "2: column network", "the cell is empty"),
        ("n,g\x07,1,50,2", "2: column gpu_type", "cannot be printed"),
        ("n,g,1,50", "2", "the row has 4 cells, the header names 5 columns"),
        ("n,g,1,50,2,3", "2", "the row has 6 cells, the header names 5 columns"),
        ('n,"g,1,50,2', "2", "not CSV: unexpected end of data"),
        ('n,"g"x,1,50,2', "2", "not CSV: "),
    ],
)
def test_a_bad_row_is_refused_with_file_line_and_column(
    write: Write, rows: str, place: str, words: str
) -> None:
    path = write(f"{HEADER}\n{rows}\n")
    with pytest.raises(InvalidRequest) as raised:
        read_samples([path])
    assert str(raised.value).startswith(f"{path}:{place}: ")
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "runs.csv: the file is empty"),
        ("\n\n", "runs.csv: the file is empty"),
        (HEADER, "runs.csv: there are no rows below the header"),
        ("network,gpu_type,batch\nn,g,1", "runs.csv:1: the header lacks the columns"),
        (f"\n{HEADER},colour\n", "runs.csv:2: column colour: unknown column; the"),
        (f"{HEADER},powr_w\n", "runs.csv:1: column powr_w: unknown column; did you"),
        (f"model,{HEADER}\n", "column model: unknown column; did you mean network?"),
        (f"{HEADER},batch\n", "runs.csv:1: column batch: the header names this column"),
        (f"{HEADER},time_quota_percent,time_quota_pct\n", "column time_quota_pct: the"),
        (f"{HEADER}\n".replace(",", ";"), "separated by ';'; only commas separate"),
        (f"{HEADER}\nn,g,1,50,2\n".encode("utf-16"), "runs.csv:1: not UTF-8 text"),
        (f"{HEADER}\n".encode() + b"n\xff,g,1,50,2", "runs.csv:2: not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_samples_file_is_refused(
    write: Write, text: str | bytes, words: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        one(write(text))
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("vgg19", "must be network:batch:sm_percent, joined by +, not 'vgg19'"),
        ("vgg19:4", "must be network:batch:sm_percent"),
        (":4:20", "must be network:batch:sm_percent"),
        ("vgg19:4:20+", "must be network:batch:sm_percent, joined by +, not ''"),
        ("vgg19:0:20", "neighbour 'vgg19:0:20': must be at least 1"),
        ("vgg19:4:101", "neighbour 'vgg19:4:101': must be above 0 and at most 100"),
        ("vgg19:4:nan", "neighbour 'vgg19:4:nan': must be a number above 0"),
    ],
)
def test_neighbours_that_cannot_be_are_refused(
    write: Write, cell: str, words: str
) -> None:
    path = write(f"{HEADER},neighbours\nn,g,1,50,2,\nn,g,1,50,2,{cell}\n")
    with pytest.raises(
        InvalidRequest, match=r"runs.csv:3: column neighbours: "
    ) as raised:
        read_samples([path])
    assert words in str(raised.value)


def test_several_files_are_one_set_and_a_row_of_it_keeps_its_place(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_text(f"{HEADER}\nn,g,1,50,2\nn,g,2,50,3\n")
    (tmp_path / "b.csv").write_text(f"{HEADER},power_w\nm,g,1,50,2,90\n")
    files = read_samples([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert files.samples.at.network == ("n", "n", "m")
    assert np.array_equal(files.samples.power_w, [np.nan, np.nan, 90], equal_nan=True)
    assert (
        str(files.refusal("bad", row=1, column="batch"))
        == f"{tmp_path}/a.csv:3: column batch: bad"
    )
    assert (
        str(files.refusal("bad", row=2, column="batch"))
        == f"{tmp_path}/b.csv:2: column batch: bad"
    )


def test_written_samples_read_back_the_same(tmp_path: Path) -> None:
    samples = one(DATA / "samples.csv")
    path = tmp_path / "again.csv"
    path.write_text("".join(",".join(row) + "\n" for row in sample_rows(samples)))
    again = one(path)
    assert (again.at.network, again.at.neighbours) == (
        samples.at.network,
        samples.at.neighbours,
    )
    for name in ("latency_ms", "power_w", "memory_mib"):
        assert np.array_equal(
            getattr(again, name), getattr(samples, name), equal_nan=True
        )
    assert "memory_mib" not in path.read_text()
    assert list(samples.at.groups()) == [
        Group("alexnet", "V100"),
        Group("resnet50", "V100"),
    ]


def predictions(*latency_ms: float) -> Predictions:
    values = np.array(latency_ms)
    names = tuple(f"t{index}" for index in range(len(values)))
    return Predictions(
        latency_ms=values,
        latency_ms_low=values * 0.9,
        latency_ms_high=values * 1.1,
        technique=names,
    )


def test_predictions_follow_the_queries_columns_as_they_were_written(
    write: Write,
) -> None:
    query = read_queries(
        write(
            "sm_percent,latency_ms,network,time_quota_pct,gpu_type,batch,power_w\n050,10,n,,g,1.0,\n20,,m,50,g,2,7\n"
        )
    )
    rows = list(
        prediction_rows(
            query, predictions(8, 1 / 3), {"power_w": np.array([np.nan, 99.5])}
        )
    )
    assert rows == [
        (
            *("sm_percent", "network", "time_quota_pct", "gpu_type", "batch"),
            *(
                "latency_ms",
                "latency_ms_low",
                "latency_ms_high",
                "technique",
                "power_w",
            ),
        ),
        ("050", "n", "", "g", "1.0", "8", "7.2", "8.8", "t0", ""),
        ("20", "m", "50", "g", "2", "0.333333333", "0.3", "0.366666667", "t1", "99.5"),
    ]
    assert query.queries.time_quota_percent.tolist() == [100, 50]


def test_predictions_are_compared_with_the_latencies_that_a_query_file_holds(
    write: Write,
) -> None:
    query = read_queries(write(f"{HEADER}\nn,g,1,50,10\nn,g,1,50,\nn,g,1,50,4\n"))
    assert query.compare(predictions(8, 1, 4)) == PredictionErrors(
        size=2, mean=0.1, p90=pytest.approx(0.18), within=0.5
    )
    without = read_queries(write(f"{QUERY_HEADER}\nn,g,1,50\n"))
    assert without.compare(predictions(1)) is None
