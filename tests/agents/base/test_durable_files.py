"""Files that are whole after any death, and lines that tell when they were damaged."""

import os
import threading
from pathlib import Path

import pytest

from agents.base.durable_files import checked_body, checked_line, lock, replace_file
from tests.waiting import PATIENCE_S


def test_a_file_is_replaced_or_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for content in (b"old", b"new"):
        replace_file(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / "state.json.new").mkdir()
    with pytest.raises(OSError, match=r"state\.json\.new"):
        replace_file(path, b"newer")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(
    "damaged", [b"", b"x", b"torn", checked_line(b"body")[:-2], b"0" * 16 + b" body"]
)
def test_a_torn_or_altered_line_is_told(damaged: bytes) -> None:
    line = checked_line(b'{"a": 1}')
    assert line.endswith(b"\n")
    assert checked_body(line[:-1]) == b'{"a": 1}'
    with pytest.raises(ValueError, match="checksum"):
        checked_body(damaged)


def test_a_lock_is_held_by_one_and_refused_to_others(tmp_path: Path) -> None:
    held = lock(tmp_path / "lock", 0.0)
    with pytest.raises(BlockingIOError):
        lock(tmp_path / "lock", 0.05)
    os.close(held)
    os.close(lock(tmp_path / "lock", 0.0))
    with pytest.raises(FileNotFoundError):
        lock(tmp_path / "gone" / "lock", PATIENCE_S)


def test_who_waits_gets_the_lock_when_it_is_given_back(tmp_path: Path) -> None:
    held = lock(tmp_path / "lock", 0.0)
    threading.Timer(0.05, os.close, (held,)).start()
    os.close(lock(tmp_path / "lock", PATIENCE_S))
