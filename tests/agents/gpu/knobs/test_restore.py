"""Agents that are killed anywhere, and `plimsoll-agent restore` after them, on the fake driver's GPUs."""

import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from agents.base.durable_files import read_boot_id
from agents.gpu.knobs.journal import NAME, KnobJournal
from agents.gpu.knobs.knobs import KnobWriter
from agents.gpu.nvml.session import Nvml
from tests.agents.commands import COPIES, Ended, agent, killable
from tests.agents.fakes.nvml.fake_gpus import KILL_AFTER, KILL_BEFORE, FakeGpus
from tests.agents.fakes.nvml.fixtures import fake, library
from tests.waiting import PATIENCE_S

__all__ = ("fake", "library")

CLOCK, FREE, LIMIT = (
    "nvmlDeviceSetGpuLockedClocks",
    "nvmlDeviceResetGpuLockedClocks",
    "nvmlDeviceSetPowerManagementLimit",
)


def turn(state: Path, told: Connection | None = None, *, goes_on: bool = False) -> None:
    """What an agent does: turn its knobs three times, say so, and put them back; where it is told to go on, no end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    journal = KnobJournal(state)
    with Nvml() as nvml, KnobWriter(nvml, journal, boot_id=read_boot_id()) as knobs:
        gpu = nvml.gpus()[0]
        for clock_mhz, limit_w in ((1200.0, 400.0), (900.0, 300.0), (1500.0, 500.0)):
            knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=clock_mhz)
            knobs.limit_power_w(gpu, limit_w)
        if told is not None:
            told.send("turned")
        while goes_on:
            knobs.unlock_clock(gpu)
            knobs.limit_power_w(gpu, None)
            knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=1200.0)
            knobs.limit_power_w(gpu, 400.0)
        if told is not None:
            signal.pause()
        knobs.unlock_clock(gpu)
        knobs.limit_power_w(gpu, None)


class Node:
    """One machine with the fake driver."""

    def __init__(self, fake: FakeGpus, state: Path) -> None:
        self.gpu, self.state = fake.gpu(0), state
        self.gpu.load_percent = 100

    @contextmanager
    def turning(self, *, goes_on: bool = False) -> Iterator[BaseProcess]:
        """An agent that has turned its knobs and waits, or goes on to turn them; it has ended afterwards."""
        hear, tell = COPIES.Pipe(duplex=False)
        started = COPIES.Process(
            target=turn, args=(self.state, tell), kwargs={"goes_on": goes_on}
        )
        started.start()
        assert hear.poll(PATIENCE_S) and hear.recv() == "turned"
        yield started
        started.join(PATIENCE_S)
        assert started.exitcode is not None

    def die_turned(self) -> None:
        """An agent that has turned its knobs and is killed."""
        with self.turning() as started:
            started.kill()
        assert not self.is_untouched, "nothing else puts them back"

    def restore(self) -> tuple[int, str]:
        ended = self.command()
        return ended.code, ended.out

    def command(self) -> Ended:
        return agent("restore", "--state-dir", str(self.state))

    @property
    def is_untouched(self) -> bool:
        return (self.gpu.lock_high, self.gpu.power_limit) == (0, 700_000)

    def is_put_back(self, words: str | None = None) -> bool:
        """The command does it, says these words, and nothing is left to do."""
        code, message = self.restore()
        assert code == 0, message
        assert words in (None, message)
        with closing(KnobJournal(self.state)) as journal:
            assert journal.held() == ()
        assert self.restore() == (0, "nothing to put back\n")
        return self.is_untouched


@pytest.fixture
def node(fake: FakeGpus, tmp_path: Path) -> Node:
    return Node(fake, tmp_path / "state")


# Three writes of either function turn the knobs; one more each puts them back. Before the second lock, from 1200 to
# 900 MHz, the clock is above what was journalled last.
@pytest.mark.parametrize("moment", [KILL_BEFORE, KILL_AFTER], ids=["before", "after"])
@pytest.mark.parametrize(
    ("function", "skip"),
    [(CLOCK, 0), (CLOCK, 1), (CLOCK, 2), (LIMIT, 0), (LIMIT, 1), (LIMIT, 3), (FREE, 0)],
)
def test_killed_at_any_write_every_knob_is_put_back(
    node: Node, fake: FakeGpus, function: str, skip: int, moment: int
) -> None:
    fake.fail(function, moment, times=1, skip=skip)
    assert killable(lambda: turn(node.state)) == -signal.SIGKILL
    assert node.is_put_back()


def test_killed_while_putting_back_the_next_run_ends_it(
    node: Node, fake: FakeGpus
) -> None:
    node.die_turned()
    for function in (FREE, LIMIT):
        fake.fail(function, KILL_AFTER, times=1)
        assert killable(node.restore) == -signal.SIGKILL
    assert node.is_put_back("power_limit_w of GPU-0 is at 700 W already\n")


def test_an_agent_that_ends_well_or_by_sigterm_leaves_nothing_to_put_back(
    node: Node,
) -> None:
    assert killable(lambda: turn(node.state)) == 0
    assert node.is_untouched
    with node.turning() as started:
        assert (node.gpu.lock_high, node.gpu.power_limit) == (1500, 500_000)
        started.terminate()
    assert (started.exitcode, node.is_untouched) == (0, True)
    assert node.is_put_back("nothing to put back\n")


def test_a_running_agent_keeps_its_knobs(node: Node) -> None:
    with node.turning() as started:
        code, message = node.restore()
        assert node.gpu.lock_high == 1500
        started.terminate()
    assert (code, "another agent has this state directory" in message) == (1, True)


def test_where_no_agent_ever_ran_there_is_nothing_to_do_and_nothing_is_made(
    node: Node,
) -> None:
    assert node.restore() == (0, "nothing to put back\n")
    assert not node.state.exists()


def test_without_the_right_or_the_driver_the_journal_stays_and_the_command_fails(
    node: Node, fake: FakeGpus
) -> None:
    node.die_turned()
    fake.state.may_write = 0
    code, message = node.restore()
    assert (code, message.count("CAP_SYS_ADMIN")) == (1, 2)
    fake.state.may_write, fake.state.is_loaded = 1, 0
    code, message = node.restore()
    assert (code, "kernel driver is not loaded" in message) == (1, True)
    fake.state.is_loaded = 1
    assert node.is_put_back()
    node.die_turned()
    fake.reload()
    code, message = node.restore()
    assert (code, message.count("the driver was reloaded")) == (0, 2)


def test_a_damaged_tail_is_said_and_the_rest_is_put_back(node: Node) -> None:
    node.die_turned()
    with (node.state / NAME).open("ab") as file:
        file.write(b"torn")
    code, message = node.restore()
    assert (code, "is damaged" in message) == (0, True)
    assert node.is_untouched
