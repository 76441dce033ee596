"""Results that go to stdout: where there is no room for them it is said, once and in words."""

import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from app.cli.common.errors import CliError
from app.cli.common.files import STDIO, write_csv, write_text

FULL = Path("/dev/full")

pytestmark = pytest.mark.skipif(
    not FULL.exists(), reason="this system has no device that is always full"
)


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_result_for_which_there_is_no_room_is_an_error_in_words(size: int) -> None:
    full = pytest.raises(
        CliError, match="cannot write to standard output: No space left on device"
    )
    with FULL.open("w") as stream, redirect_stdout(stream), full:
        write_text(STDIO, "x" * size, stream=sys.stderr)
    with FULL.open("w") as stream, redirect_stdout(stream), full:
        write_csv(STDIO, [["x" * 100]] * (size // 100 + 1))


@pytest.mark.parametrize("arguments", [["version", "--help"], ["--help"]])
def test_also_what_is_printed_for_people_ends_without_a_traceback(
    arguments: list[str],
) -> None:
    command = [
        sys.executable,
        "-c",
        "from app.cli.main import main; main()",
        *arguments,
    ]
    with FULL.open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (
        1,
        "Error: cannot write to standard output: No space left on device\n",
    )


def test_a_reader_that_went_away_needs_no_word() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as gone:
        command = [
            sys.executable,
            "-c",
            "from app.cli.main import main; main()",
            "version",
            "--help",
        ]
        done = subprocess.run(
            command, stdout=gone, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "")
