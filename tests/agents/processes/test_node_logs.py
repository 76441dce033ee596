"""What a node answers of its logs: ends, what follows a position, what was written since, and hostile output."""

import os
import time
from pathlib import Path

import pytest

from agents.base.protocol import LOG_BYTES, LogAnswer, LogRequest
from agents.processes.logs import rotate
from agents.processes.node_logs import NodeLogs
from agents.processes.records import REPLICAS_FOLDER, log_path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = log_path(tmp_path / REPLICAS_FOLDER, "chat-g1-1")
    path.parent.mkdir(parents=True)
    return path


@pytest.fixture
def logs(tmp_path: Path) -> NodeLogs:
    return NodeLogs(tmp_path)


def ask(logs: NodeLogs, **how: float) -> LogAnswer:
    """`lines`, `after` a position or of the last `age_s`."""
    return logs.read(LogRequest(id="1", kind="replica", name="chat-g1-1", **how))  # type: ignore[arg-type]


def write(path: Path, content: bytes) -> None:
    """As a worker does, at the end."""
    with path.open("ab") as file:
        file.write(content)


def test_the_last_lines_are_answered_with_the_last_one_unfinished(
    log: Path, logs: NodeLogs
) -> None:
    write(log, b"one\ntwo\nthree\nand then it die")
    answer = ask(logs, lines=2)
    assert answer.text == "three\nand then it die"
    assert (answer.start, answer.end) == (8, 29)


def test_who_follows_gets_each_byte_once(log: Path, logs: NodeLogs) -> None:
    write(log, b"one\ntw")
    first = ask(logs)
    write(log, b"o\nthree\n")
    second = ask(logs, after=first.end)
    assert first.text + second.text == "one\ntwo\nthree\n"
    assert ask(logs, after=second.end) == LogAnswer(start=14, end=14)


def test_a_character_that_is_half_written_waits_for_its_other_half(
    log: Path, logs: NodeLogs
) -> None:
    loss = "loss µ".encode()
    write(log, loss[:-1])
    first = ask(logs)
    write(log, loss[-1:])
    assert [first.text, ask(logs, after=first.end).text] == ["loss ", "µ"]


def test_of_a_gigabyte_the_end_is_read_from_whole_lines_on(
    log: Path, logs: NodeLogs
) -> None:
    with log.open("wb") as file:
        # A hole in the file takes no room on the disk, and is as long to its reader.
        file.truncate(2**30)
    write(log, b"\n" + b"0123456789\n" * 20_000)
    answer = ask(logs)
    assert LOG_BYTES - 11 < len(answer.text) <= LOG_BYTES
    assert set(answer.text.splitlines()) == {"0123456789"}
    assert answer.end == log.stat().st_size
    assert ask(logs, after=5).start == answer.end - LOG_BYTES


def test_a_log_that_was_just_rotated_still_has_its_last_lines(
    log: Path, logs: NodeLogs
) -> None:
    write(log, b"first\n" * 100 + b"last before\n")
    before = ask(logs).end
    assert rotate(log, limit_bytes=64)
    assert ask(logs, lines=1).text == "last before\n"
    write(log, b"new\n")
    assert ask(logs, lines=2).text == "last before\nnew\n"
    # The position is one of before: the reader goes on with the beginning of the new log.
    assert ask(logs, after=before).text == "new\n"


def test_since_goes_by_when_the_log_was_seen_to_grow(log: Path, logs: NodeLogs) -> None:
    now_s = time.time()
    write(log, b"long ago\n")
    os.utime(log, (now_s - 600.0, now_s - 600.0))
    logs.note_sizes()
    write(log, b"just now\n")
    assert ask(logs, age_s=300.0).text == "just now\n"
    assert ask(logs, age_s=900.0).text == "long ago\njust now\n"


def test_of_a_replica_and_its_successor_the_one_that_writes_is_read(
    log: Path, logs: NodeLogs, tmp_path: Path
) -> None:
    write(log, b"batch 4\n")
    os.utime(log, (1.0, 1.0))
    write(log_path(tmp_path / REPLICAS_FOLDER, "chat-g1-1~8"), b"batch 8\n")
    write(log_path(tmp_path / REPLICAS_FOLDER, "chat-g1-10"), b"another replica\n")
    os.utime(log_path(tmp_path / REPLICAS_FOLDER, "chat-g1-1~8"), (2.0, 2.0))
    assert ask(logs).text == "batch 8\n"


def test_without_a_log_the_answer_says_so(logs: NodeLogs) -> None:
    logs.note_sizes()
    assert "no log of replica chat-g1-1" in ask(logs).problem
