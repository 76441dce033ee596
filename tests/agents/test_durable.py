"""Files that are whole after any death, and lines that tell when they were damaged."""

from pathlib import Path

import pytest

from agents.durable import checked_body, checked_line, replace_file


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for content in (b"old", b"new"):
        replace_file(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    replace_file(path, b"old")
    (tmp_path / "state.json.new").mkdir()
    with pytest.raises(OSError, match=r"state\.json\.new"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_line_tells_its_body() -> None:
    line = checked_line(b'{"a": 1}')
    assert line.endswith(b"\n")
    assert checked_body(line[:-1]) == b'{"a": 1}'


@pytest.mark.parametrize("damaged", [b"", b"x", b"torn", checked_line(b"body")[:-2], b"0" * 16 + b" body"])
def test_a_torn_or_altered_line_is_told(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="checksum"):
        checked_body(damaged)
