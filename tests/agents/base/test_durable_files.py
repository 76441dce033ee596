"""Files that are whole after any death, and lines that tell when they were damaged."""

import os
import threading
from pathlib import Path

import pytest

from agents.base.durable_files import checked_body, checked_line, lock, replace_file


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


@pytest.mark.parametrize(
    "damaged", [b"", b"x", b"torn", checked_line(b"body")[:-2], b"0" * 16 + b" body"]
)
def test_a_torn_or_altered_line_is_told(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="checksum"):
        checked_body(damaged)


def test_a_lock_is_held_by_one_and_refused_to_others(tmp_path: Path) -> None:
    held = lock(tmp_path / "lock", 0.0)
    with pytest.raises(BlockingIOError):
        lock(tmp_path / "lock", 0.05)
    os.close(held)
    os.close(lock(tmp_path / "lock", 0.0))


def test_who_waits_gets_the_lock_when_it_is_given_back(tmp_path: Path) -> None:
    held = lock(tmp_path / "lock", 0.0)
    threading.Timer(0.05, os.close, (held,)).start()
    os.close(lock(tmp_path / "lock", 30.0))


def test_a_lock_that_cannot_be_made_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        lock(tmp_path / "gone" / "lock", 30.0)
