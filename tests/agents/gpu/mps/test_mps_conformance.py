"""What nvidia-cuda-mps-control says and leaves, one table: run against the fake one always, and against the real
one where it is installed (it starts without a GPU; only its servers need one)."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.thorough
FAKE = Path(__file__).parents[2] / "fakes" / "nvidia-cuda-mps-control"
REAL = shutil.which("nvidia-cuda-mps-control")


@dataclass(frozen=True)
class Program:
    """One implementation: where it is, and which release the fake one plays."""

    path: str
    release: int


@dataclass(frozen=True)
class Said:
    """What one call did."""

    out: str
    err: str
    exit: int


class Place:
    """A daemon's directories, and calls of the program there."""

    def __init__(self, program: Program, directory: Path) -> None:
        self.program = program
        self.pipe = directory / "pipe"
        self.log = directory / "log"
        # Without the fake server: a server that cannot start, as on a machine without a driver.
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
            "FAKE_MPS_RELEASE": str(program.release),
            # Of no GPU: tests of others would take the daemon for somebody else's on theirs.
            **({} if self.is_real else {"CUDA_VISIBLE_DEVICES": ""}),
        }

    @property
    def is_real(self) -> bool:
        return self.program.path != str(FAKE)

    def call(
        self, *options: str, given: str = "", uid: int | None = None, **environment: str
    ) -> Said:
        """Run the program; `uid`: as that user, really (needs root) or fake."""
        by_whom = {} if uid is None or self.is_real else {"FAKE_MPS_UID": str(uid)}
        done = subprocess.run(
            [self.program.path, *options],
            input=given,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={**self.environment, **by_whom, **environment},
            user=uid if self.is_real else None,
        )
        return Said(done.stdout, done.stderr, done.returncode)

    def say(self, command: str) -> Said:
        return self.call(given=f"{command}\n")

    def has_logged(self, text: str) -> bool:
        return text in (self.log / "control.log").read_text()

    def find_release(self) -> int:
        """535 lacks get_server_status."""
        return 535 if self.say("get_server_status").out.startswith("Unknown") else 550


PROGRAMS = [
    pytest.param(Program(str(FAKE), 550), id="fake-550"),
    pytest.param(Program(str(FAKE), 535), id="fake-535"),
    pytest.param(
        Program(REAL or "", 0),
        id="real",
        marks=pytest.mark.skipif(REAL is None, reason="no NVIDIA MPS installed"),
    ),
]


def make_place(program: Program) -> Iterator[Place]:
    """A place on a short path, without a daemon before and after."""
    with tempfile.TemporaryDirectory(prefix="mps") as directory:
        Path(directory).chmod(0o755)
        place = Place(program, Path(directory))
        yield place
        place.say("quit -t 1")


place = pytest.fixture(params=PROGRAMS)(
    lambda request: (yield from make_place(request.param))
)


@pytest.fixture(scope="module", params=PROGRAMS)
def running(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A place whose daemon runs, shared by all rows of the table."""
    for place in make_place(request.param):
        assert place.call("-d") == Said("", "", 0)
        yield place


SET, GET = (
    "set_default_active_thread_percentage",
    "get_default_active_thread_percentage",
)
GONE = "Server 99999 not found\n"
# (commands, what the last one prints). All of them leave 0 as exit status.
TABLE = [
    (["get_server_list"], ""),
    ([f"{SET} 100", GET], "100.0\n"),
    ([f"{SET} 37.5"], "37.5\n"),
    ([f"{SET} 37.5", f"{SET} 0"], "37.5\n"),
    ([f"{SET} 37.5", f"{SET} 120"], "37.5\n"),
    ([f"{SET} 37.5", f"{SET} abc"], "37.5\n"),
    ([f"{SET} 37.5", SET], "37.5\n"),
    ([f"{SET} 33.3333"], "33.3\n"),
    ([f"{SET} 12.36"], "12.4\n"),
    ([f"{SET} 0.04"], "0.0\n"),
    (["get_active_thread_percentage 99999"], GONE),
    (["set_active_thread_percentage 99999 20"], GONE),
    (["get_client_list 99999"], GONE),
    (["shutdown_server 99999"], GONE),
    (["get_device_client_list"], ""),
    (["set_device_pinned_mem_limit 1 0 1G"], "Server 1 not found\n"),
    (["get_client_list"], "Server 0 not found\n"),
    (["start_server"], "A user id (UID) is required to start a new server\n"),
    (["start_server -uid abc"], "A user id (UID) is required to start a new server\n"),
    (["ps"], "Server not found\n"),
    (["terminate_client 1 2"], "Server 1 not found\nServer 1 not found!\n1\n"),
    (["set_default_device_pinned_mem_limit 0 2G"], ""),
    (
        [
            "set_default_device_pinned_mem_limit 0 2G",
            "get_default_device_pinned_mem_limit 0",
        ],
        "2G\n",
    ),
    (
        [
            "set_default_device_pinned_mem_limit 0 1024",
            "get_default_device_pinned_mem_limit 0",
        ],
        "1G\n",
    ),
    (["get_default_device_pinned_mem_limit 3"], ""),
    (["set_default_client_priority 1"], ""),
    (["set_default_client_priority 1", "get_default_client_priority"], "1\n"),
    (["set_default_client_priority 2"], "Invalid priority value - must be 0 or 1!\n"),
    (["foo"], 'Unknown command "foo"\n'),
    (["help"], 'Unknown command "help"\n'),
    (["lspart"], 'Unknown command "lspart"\n'),
    (["sm_partition add a 1"], 'Unknown command "sm_partition"\n'),
    ([""], 'Unknown command ""\n'),
    (["get_server_list\nfoo\nget_server_list"], 'Unknown command "foo"\n'),
]


@pytest.mark.parametrize(
    ("commands", "says"),
    TABLE,
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_command_answers_by_text_and_exits_0(
    running: Place, commands: list[str], says: str
) -> None:
    answers = [running.say(command) for command in commands]
    assert answers[-1] == Said(says, "", 0)


def test_quit_leaves_sockets_and_lock(place: Place) -> None:
    place.call("-d")
    assert place.say("quit") == Said("", "", 0)
    until(lambda: place.has_logged("Exit with status 0"))
    until(lambda: place.say(GET).exit == 1)
    assert {path.name for path in place.pipe.iterdir()} == {
        "control",
        "control_lock",
        "control_privileged",
    }
