"""Every form of a file of records becomes the same rows, and what is none is refused with its place."""

import gzip
import json
from pathlib import Path

import pytest

from app.base.errors import InvalidRequest
from app.measurements.records import HeaderlessForm, open_records, read_json_records
from app.measurements.rows import MAX_LINE

RECORDS = [{"t": 0, "size": 2.5, "word": "a"}, {"t": 1, "size": 3, "word": None}]
ROWS = [["0", "2.5", "a"], ["1", "3", ""]]
LINES = "\n".join(map(json.dumps, RECORDS))


def written(folder: Path, text: str | bytes, name: str = "file.txt") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "text",
    [
        "t,size,word\n0,2.5,a\n1,3,\n",
        "\ufeffsep=,\nt,size,word\n0,2.5,a\n1,3,\n",
        LINES,
        f"\n\ufeff{LINES}\n\n".replace("\n\ufeff", "\ufeff\n"),
        json.dumps(RECORDS),
        json.dumps(RECORDS, indent=2),
        json.dumps({"name": "n", "records": RECORDS}, indent=1),
        "\n".join(json.dumps(each, indent=2) for each in RECORDS),
    ],
    ids=["csv", "excel", "lines", "bom", "list", "indented", "inner", "one by one"],
)
def test_every_form_has_the_same_rows(tmp_path: Path, text: str) -> None:
    opened = open_records(written(tmp_path, text))
    assert tuple(opened.names) == ("t", "size", "word")
    assert [cells for _, cells in opened.rows] == ROWS


def test_fields_of_fields_are_columns_and_lists_are_empty(tmp_path: Path) -> None:
    record = {"usage": {"prompt": 5}, "hash_ids": [1, 2], "ok": True}
    opened = open_records(written(tmp_path, json.dumps(record)))
    assert tuple(opened.names) == ("usage.prompt", "hash_ids", "ok")
    assert [cells for _, cells in opened.rows] == [["5", "", "true"]]


def test_lines_of_records_keep_their_numbers_and_need_not_have_all_fields(
    tmp_path: Path,
) -> None:
    packed = gzip.compress(b'\n{"a": 1, "b": 2}\n\n{"b": 3, "c": 4}\n')
    opened = open_records(written(tmp_path, packed, "file.jsonl.gz"))
    assert list(opened.rows) == [(2, ["1", "2"]), (4, ["", "3"])]


FORM = HeaderlessForm(names=("name", "start"), numbers=("start",))


@pytest.mark.parametrize(
    ("text", "names", "rows"),
    [
        ("a,5\nb,\n", ("name", "start"), 2),
        ("a,\nb,7\n", ("name", "start"), 2),
        ("job,begin\nb,7\n", ("job", "begin"), 1),
        ("a,5,6\nb,7,8\n", ("a", "5", "6"), 1),
    ],
)
def test_a_known_form_without_header_is_known_by_its_first_row(
    tmp_path: Path, text: str, names: tuple[str, ...], rows: int
) -> None:
    opened = open_records(written(tmp_path, text), headerless=[FORM])
    assert (tuple(opened.names), len(list(opened.rows))) == (names, rows)


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        ("", "f.csv", "the file is empty"),
        (
            "version https://git-lfs.github.com/spec/v1\noid 5\n",
            "f.csv",
            "git lfs pull",
        ),
        ("x", "trace.tar.gz", "unpack it first"),
        ("x", "trace.rar", "unpack it first"),
        ('{"a": 1}\n{"a": \n', "f", "f:2: not JSON"),
        ('{"a": 1}\n5\n', "f", "f:2: must be an object with fields"),
        ("[1, 2]", "f", "f: entry:1: must be an object with fields"),
        ("[]", "f", "there are no records"),
        ('[{"a": 1},', "f", "f:1:11: not JSON"),
        ("[" * 100_000, "f", "not JSON that can be read"),
        # An integer that no float can hold.
        (
            '[{"metric": {"job": "a"}, "values": [[1' + "0" * 400 + ', "1"]]}]',
            "f",
            "f: a time must be a number of seconds",
        ),
        (b"\xff\xfet\x00", "f.csv", "save it as UTF-8"),
        ("a;b\n1;2\n", "f.csv", "export it with commas"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_remedy(
    tmp_path: Path, text: str | bytes, name: str, problem: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        list(open_records(written(tmp_path, text, name)).rows)
    assert problem in str(caught.value)


def test_a_document_may_be_one_long_line(tmp_path: Path) -> None:
    records = [{"t": at, "word": "x" * 50} for at in range(MAX_LINE // 50)]
    opened = open_records(written(tmp_path, json.dumps(records)))
    assert sum(1 for _ in opened.rows) == len(records)


def test_objects_one_behind_the_other_are_found_with_their_places(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, '{"a": 1}\n{\n "a": 2}[{"a": 3}]')
    records = list(read_json_records(path))
    assert [record.fields for record in records] == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert str(records[1].refusal("wrong", "a")) == f"{path}:3:2: a: wrong"
