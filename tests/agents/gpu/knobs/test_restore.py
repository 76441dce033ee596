"""Agents that are killed anywhere, and `plimsoll-agent restore` after them: real processes, the fake driver's GPUs."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from agents.gpu.knobs.journal import NAME, KnobJournal
from tests.agents.fakes.nvml.fake_gpus import KILL_AFTER, KILL_BEFORE, FakeGpus
from tests.agents.fakes.nvml.fixtures import fake, library

__all__ = ("fake", "library")

ROOT = Path(__file__).parents[4]

TURN = """
import signal, sys
from pathlib import Path
from agents.gpu.knobs.journal import KnobJournal
from agents.base.durable_files import read_boot_id
from agents.gpu.knobs.knobs import KnobWriter
from agents.gpu.nvml.session import Nvml

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with Nvml() as nvml, KnobWriter(nvml, KnobJournal(Path(sys.argv[1])), boot_id=read_boot_id()) as knobs:
    gpu = nvml.gpus()[0]
    for clock_mhz, limit_w in ((1200.0, 400.0), (900.0, 300.0), (1500.0, 500.0)):
        knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=clock_mhz)
        knobs.limit_power_w(gpu, limit_w)
    if "wait" in sys.argv:
        print("turned", flush=True)
        signal.pause()
    while "on" in sys.argv:
        print("turned", flush=True)
        knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=1200.0)
        knobs.limit_power_w(gpu, 400.0)
        knobs.unlock_clock(gpu)
        knobs.limit_power_w(gpu, None)
    knobs.unlock_clock(gpu)
    knobs.limit_power_w(gpu, None)
"""


class Node:
    """One machine with the fake driver."""

    def __init__(self, fake: FakeGpus, library: Path, state: Path) -> None:
        self.gpu, self.state = fake.gpu(0), state
        self.gpu.load_percent = 100
        self.environment = fake.environment(library)

    def turn(self, *, killed_by: int = 0) -> None:
        """An agent that turns its knobs three times and puts them back."""
        command = [sys.executable, "-c", TURN, str(self.state)]
        ended = subprocess.run(
            command,
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == -killed_by, ended.stderr

    def start_turning(self, then: str = "wait") -> "subprocess.Popen[str]":
        """An agent that has turned its knobs and waits, or goes on to turn them."""
        command = [sys.executable, "-c", TURN, str(self.state), then]
        agent = subprocess.Popen(
            command, env=self.environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert agent.stdout is not None
        assert agent.stdout.readline() == "turned\n"
        return agent

    def die_turned(self) -> None:
        """An agent that has turned its knobs and is killed."""
        with self.start_turning() as agent:
            agent.kill()
        assert not self.is_untouched, "nothing else puts them back"

    def restore(self, *arguments: str) -> tuple[int, str]:
        """Exit code and words of the command."""
        given = arguments or ("--state-dir", str(self.state))
        command = [sys.executable, "-m", "agents.main", "restore", *given]
        ended = subprocess.run(
            command,
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in ended.stderr
        return ended.returncode, ended.stdout

    @property
    def is_untouched(self) -> bool:
        return (self.gpu.lock_high, self.gpu.power_limit) == (0, 700_000)

    @property
    def is_forgotten(self) -> bool:
        with closing(KnobJournal(self.state)) as journal:
            return journal.held() == ()


@pytest.fixture
def node(fake: FakeGpus, library: Path, tmp_path: Path) -> Node:
    return Node(fake, library, tmp_path / "state")


# Three writes of either function turn the knobs; one more each puts them back.
@pytest.mark.parametrize("moment", [KILL_BEFORE, KILL_AFTER], ids=["before", "after"])
@pytest.mark.parametrize(
    ("function", "skip"),
    [
        ("nvmlDeviceSetGpuLockedClocks", 0),
        (
            "nvmlDeviceSetGpuLockedClocks",
            1,
        ),  # from 1200 to 900 MHz: before it the clock is above what was journalled last
        ("nvmlDeviceSetGpuLockedClocks", 2),
        ("nvmlDeviceSetPowerManagementLimit", 0),
        ("nvmlDeviceSetPowerManagementLimit", 1),
        ("nvmlDeviceSetPowerManagementLimit", 3),
        ("nvmlDeviceResetGpuLockedClocks", 0),
    ],
)
def test_killed_at_any_write_every_knob_is_put_back(
    node: Node, fake: FakeGpus, function: str, skip: int, moment: int
) -> None:
    fake.fail(function, moment, times=1, skip=skip)
    node.turn(killed_by=signal.SIGKILL)
    code, message = node.restore()
    assert code == 0, message
    assert node.is_untouched, message
    assert node.is_forgotten


@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_moment_every_knob_is_put_back(node: Node, seed: int) -> None:
    """Whatever the moment is, the outcome is the same; one in about six turns of the loop."""
    with node.start_turning("on") as agent:
        time.sleep(Random(seed).uniform(0.0, 0.05))
        agent.kill()
    code, message = node.restore()
    assert code == 0, message
    assert node.is_untouched, message
    assert node.is_forgotten


def test_killed_while_putting_back_the_next_run_ends_it(
    node: Node, fake: FakeGpus
) -> None:
    node.die_turned()
    for function in (
        "nvmlDeviceResetGpuLockedClocks",
        "nvmlDeviceSetPowerManagementLimit",
    ):
        fake.fail(function, KILL_AFTER, times=1)
        assert node.restore()[0] == -signal.SIGKILL
    assert node.restore() == (0, "power_limit_w of GPU-0 is at 700 W already\n")
    assert node.is_untouched
    assert node.is_forgotten


def test_an_agent_that_ends_well_leaves_nothing_to_put_back(node: Node) -> None:
    node.turn()
    assert node.is_untouched
    assert node.restore() == (0, "nothing to put back\n")


def test_sigterm_puts_everything_back(node: Node) -> None:
    with node.start_turning() as agent:
        assert (node.gpu.lock_high, node.gpu.power_limit) == (1500, 500_000)
        agent.terminate()
    assert agent.returncode == 0
    assert node.is_untouched
    assert node.is_forgotten


def test_sigkill_leaves_it_to_the_command_which_says_what_it_did(node: Node) -> None:
    node.die_turned()
    assert node.restore() == (
        0,
        "clock_mhz of GPU-0 was unlocked\npower_limit_w of GPU-0 was set to 700 W again\n",
    )
    assert node.is_untouched
    assert node.restore() == (0, "nothing to put back\n")


def test_a_running_agent_keeps_its_knobs(node: Node) -> None:
    with node.start_turning() as agent:
        code, message = node.restore()
        agent_has_it = node.gpu.lock_high
        agent.terminate()
    assert (code, "another agent has this state directory" in message) == (1, True)
    assert agent_has_it == 1500


def test_where_no_agent_ever_ran_there_is_nothing_to_do_and_nothing_is_made(
    node: Node,
) -> None:
    assert node.restore() == (0, "nothing to put back\n")
    assert not node.state.exists()


def test_without_the_right_the_journal_stays_and_the_command_fails(
    node: Node, fake: FakeGpus
) -> None:
    node.die_turned()
    fake.state.may_write = 0
    code, message = node.restore()
    assert (code, message.count("CAP_SYS_ADMIN")) == (1, 2)
    fake.state.may_write = 1
    assert node.restore()[0] == 0
    assert node.is_untouched


def test_without_a_driver_the_journal_stays_and_the_command_fails(
    node: Node, fake: FakeGpus
) -> None:
    node.die_turned()
    fake.state.is_loaded = 0
    code, message = node.restore()
    assert (code, "kernel driver is not loaded" in message) == (1, True)
    fake.state.is_loaded = 1
    fake.reload()
    code, message = node.restore()
    assert (code, message.count("the driver was loaded anew")) == (0, 2)


def test_a_damaged_tail_is_said_and_the_rest_is_put_back(node: Node) -> None:
    node.die_turned()
    with (node.state / NAME).open("ab") as file:
        file.write(b"torn")
    code, message = node.restore()
    assert (code, "is damaged" in message) == (0, True)
    assert node.is_untouched


@pytest.mark.parametrize("arguments", [("--nonsense",), ("--state-dir",)])
def test_wrong_arguments_are_exit_code_2(
    node: Node, arguments: tuple[str, ...]
) -> None:
    assert node.restore(*arguments)[0] == 2


def test_the_agents_own_arguments_are_read_as_before() -> None:
    command = [sys.executable, "-m", "agents.main", "--help"]
    ended = subprocess.run(
        command,
        env=dict(os.environ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--url" in ended.stdout
    assert "plimsoll-agent restore --state-dir" in ended.stdout
