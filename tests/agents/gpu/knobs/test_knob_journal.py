"""The journal of turned knobs, and knobs that are put back whatever happens, on the fake driver's GPUs."""

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agents.base.device import DeviceError, NotPermitted, OutOfRange
from agents.gpu.knobs.journal import (
    MAX_LINES,
    NAME,
    Held,
    Knob,
    KnobJournal,
    KnobTurn,
    Setting,
)
from agents.gpu.knobs.knobs import KnobWriter
from agents.gpu.nvml.session import Nvml
from tests.agents.fakes.nvml.fake_gpus import FakeGpus
from tests.agents.fakes.nvml.fixtures import fake, library
from tests.waiting import PATIENCE_S

__all__ = ("fake", "library")

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def a_change(
    new: Setting = (345.0, 1200.0),
    *,
    old: Setting = (),
    knob: Knob = "clock_mhz",
    gpu: str = "G",
) -> KnobTurn:
    return KnobTurn(
        gpu_uuid=gpu,
        boot_id="b1",
        driver_version="580",
        energy_j=5.0,
        knob=knob,
        old=old,
        new=new,
        at=AT,
    )


def reopened(directory: Path) -> tuple[tuple[Held, ...], tuple[str, ...]]:
    """What the next process would find."""
    with closing(KnobJournal(directory)) as journal:
        return journal.held(), journal.problems


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[KnobJournal]:
    with closing(KnobJournal(tmp_path / "state")) as opened:
        yield opened


def filled(directory: Path, *gpus: str) -> Path:
    """A closed journal in which the clocks of these GPUs were locked; its file."""
    with closing(KnobJournal(directory)) as journal:
        for gpu in gpus:
            journal.write(a_change(gpu=gpu))
    return directory / NAME


def test_until_a_change_is_settled_either_value_may_be_in_force(
    journal: KnobJournal,
) -> None:
    journal.write(a_change((300.0,), old=(700.0,), knob="power_limit_w"))
    journal.settle("G", "power_limit_w")
    journal.write(a_change((250.0,), old=(300.0,), knob="power_limit_w"))
    (held,) = journal.held()
    assert (held.old, held.settings) == ((700.0,), ((300.0,), (250.0,)))
    journal.settle("G", "power_limit_w")
    (held,) = journal.held()
    assert (held.old, held.settings) == ((700.0,), ((250.0,),))


def test_a_refused_change_leaves_the_one_before_it(tmp_path: Path) -> None:
    with closing(KnobJournal(tmp_path)) as journal:
        journal.write(a_change())
        journal.settle("G", "clock_mhz")
        journal.write(a_change((345.0, 9999.0)))
        journal.withdraw("G", "clock_mhz")
    ((held,), _) = reopened(tmp_path)
    assert held.settings == ((345.0, 1200.0),)


def test_the_file_stays_small_however_often_a_knob_is_turned(
    journal: KnobJournal,
) -> None:
    for turn in range(2 * MAX_LINES):
        journal.write(a_change((345.0, 1000.0 + turn)))
        journal.settle("G", "clock_mhz")
        assert journal.path.read_bytes().count(b"\n") <= MAX_LINES
    (held,) = journal.held()
    assert held.settings == ((345.0, 1000.0 + 2 * MAX_LINES - 1),)


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_a_torn_tail_is_ignored_and_said(tmp_path: Path, cut: int) -> None:
    path = filled(tmp_path, "A", "B")
    path.write_bytes(path.read_bytes()[:-cut])
    # Without its newline alone the line is whole.
    whole = ["A", "B"] if cut == 1 else ["A"]
    with closing(KnobJournal(tmp_path)) as journal:
        assert [held.last.gpu_uuid for held in journal.held()] == whole
        assert len(journal.problems) == (0 if cut == 1 else 1)
        journal.write(a_change(gpu="C"))
    held, problems = reopened(tmp_path)
    assert [each.last.gpu_uuid for each in held] == [*whole, "C"]
    assert problems == (), "nothing was glued to the torn line"


@pytest.mark.parametrize(
    "tail", [b"\x00" * 700, b"\xff garbage\n", b"{}\n", b"0123456789abcdef {}\n"]
)
def test_what_is_no_change_does_not_hide_the_others(
    tmp_path: Path, tail: bytes
) -> None:
    with filled(tmp_path, "A").open("ab") as file:
        file.write(tail)
    held, problems = reopened(tmp_path)
    assert [each.last.gpu_uuid for each in held] == ["A"]
    assert "line 2, is damaged" in problems[0]


def test_an_altered_line_is_not_believed(tmp_path: Path) -> None:
    path = filled(tmp_path, "A", "B")
    path.write_bytes(path.read_bytes().replace(b"1200", b"1300", 1))
    held, problems = reopened(tmp_path)
    assert [each.last.gpu_uuid for each in held] == ["B"]
    assert "line 1, is damaged" in problems[0]


def test_two_processes_cannot_have_it_and_one_waits_for_the_others_end(
    tmp_path: Path,
) -> None:
    # As after SIGKILL, when a child that the agent was just making has the lock until it is a program of its own.
    before = KnobJournal(tmp_path)
    before.write(a_change())
    with pytest.raises(BlockingIOError, match="another agent has this state directory"):
        KnobJournal(tmp_path, lock_wait_s=0.05)
    closing_soon = threading.Timer(0.1, before.close)
    closing_soon.start()
    with closing(KnobJournal(tmp_path, lock_wait_s=PATIENCE_S)) as journal:
        assert [each.last for each in journal.held()] == [a_change()]
    closing_soon.join()


class Node:
    """One machine with the fake driver, and agents on it, one after the other."""

    def __init__(self, fake: FakeGpus, nvml: Nvml, state: Path) -> None:
        self.fake, self.nvml, self.state = fake, nvml, state
        self.gpu, self.board = nvml.gpus()[0], fake.gpu(0)
        self.board.load_percent = 100
        self.journal: KnobJournal

    def knobs(self, *, boot_id: str = "b1") -> KnobWriter:
        self.journal = KnobJournal(self.state)
        return KnobWriter(self.nvml, self.journal, boot_id=boot_id, now=lambda: AT)

    def lock(self, knobs: KnobWriter, clock_mhz: float = 1200.0) -> None:
        knobs.lock_clock_mhz(self.gpu, low_mhz=345.0, high_mhz=clock_mhz)

    def die(self) -> None:
        """As SIGKILL does: the lock on the journal goes, nothing is put back."""
        self.journal.close()

    def restored(self, *, boot_id: str = "b1") -> str:
        """What the next start says that it did."""
        knobs = self.knobs(boot_id=boot_id)
        message = "; ".join(each.message for each in knobs.restore())
        self.die()
        return message


@pytest.fixture
def node(fake: FakeGpus, tmp_path: Path) -> Iterator[Node]:
    with Nvml() as nvml:
        yield Node(fake, nvml, tmp_path / "state")


def test_knobs_are_put_back_at_the_end_and_after_an_exception(node: Node) -> None:
    node.board.power_limit = 450_000  # an operator's, from before us
    with node.knobs() as knobs:
        node.lock(knobs)
        knobs.limit_power_w(node.gpu, 300.0)
        assert (node.board.lock_high, node.board.power_limit) == (1200, 300_000)
    assert (node.board.lock_high, node.board.power_limit) == (0, 450_000)
    assert reopened(node.state) == ((), ())
    with pytest.raises(ZeroDivisionError), node.knobs() as knobs:
        node.lock(knobs)
        raise ZeroDivisionError
    assert node.board.lock_high == 0


def test_the_next_start_puts_back_what_a_killed_agent_left(node: Node) -> None:
    knobs = node.knobs()
    for clock_mhz, limit_w in ((1200.0, 400.0), (900.0, 300.0)):
        node.lock(knobs, clock_mhz)
        knobs.limit_power_w(node.gpu, limit_w)
    node.die()
    said = (
        "clock_mhz of GPU-0 was unlocked; power_limit_w of GPU-0 was set to 700 W again"
    )
    assert node.restored() == said
    assert (node.board.lock_high, node.board.power_limit) == (0, 700_000)
    assert node.restored() == ""


def test_what_is_in_force_is_known_and_gone_with_the_driver_or_by_another_hand(
    node: Node,
) -> None:
    gpu = node.gpu
    with node.knobs() as knobs:
        assert knobs.in_force(gpu, "clock_mhz") == ()
        assert knobs.in_force(gpu, "power_limit_w") == ()
        node.lock(knobs)
        knobs.limit_power_w(gpu, 500.0)
        assert knobs.in_force(gpu, "clock_mhz") == (345.0, 1200.0)
        assert knobs.in_force(gpu, "power_limit_w") == (500.0,)
        assert knobs.in_force(node.nvml.gpus()[1], "clock_mhz") == ()
        for by_hand_mw in (600_000, 700_000):  # another one, and the one before ours
            node.board.power_limit = by_hand_mw
            assert knobs.in_force(gpu, "power_limit_w") == ()
        node.fake.reload()
        assert knobs.in_force(gpu, "clock_mhz") == ()
        node.lock(knobs)
        assert knobs.in_force(gpu, "clock_mhz") == (345.0, 1200.0)


def test_giving_up_a_knob_puts_it_back_at_once_and_is_nothing_where_it_is_not_ours(
    node: Node,
) -> None:
    node.board.power_limit, node.board.lock_high = 450_000, 1500
    with node.knobs() as knobs:
        knobs.unlock_clock(node.gpu)
        knobs.limit_power_w(node.gpu, None)
        assert (node.board.lock_high, node.fake.state.writes) == (1500, 0)
        knobs.limit_power_w(node.gpu, 300.0)
        knobs.limit_power_w(node.gpu, None)
        assert node.board.power_limit == 450_000


def test_a_limit_that_an_operator_set_meanwhile_stays(node: Node) -> None:
    node.knobs().limit_power_w(node.gpu, 300.0)
    node.die()
    node.board.power_limit = 350_000
    assert "somebody else set 350 W after our 300" in node.restored()
    assert node.board.power_limit == 350_000


def test_a_limit_that_an_operator_set_between_two_of_ours_comes_back(
    node: Node,
) -> None:
    with node.knobs() as knobs:
        knobs.limit_power_w(node.gpu, 300.0)
        node.board.power_limit = 500_000
        knobs.limit_power_w(node.gpu, 250.0)
    assert node.board.power_limit == 500_000


def test_a_clock_above_our_lock_is_no_longer_ours(node: Node) -> None:
    node.lock(node.knobs())
    node.die()
    node.board.lock_low, node.board.lock_high = 345, 1800
    assert "at 1800 MHz our lock at 1200 is not in force" in node.restored()
    assert node.board.lock_high == 1800


@pytest.mark.parametrize("version", ["580.65.06", "590.10"])
def test_what_the_driver_has_forgotten_is_dropped(node: Node, version: str) -> None:
    node.lock(node.knobs())
    node.die()
    node.fake.reload(version=version)
    node.board.lock_high = 900  # an operator's, since then
    assert "was dropped" in node.restored()
    assert (node.board.lock_high, reopened(node.state)) == (900, ((), ()))


def test_a_knob_that_was_turned_again_after_a_new_driver_is_ours(node: Node) -> None:
    knobs = node.knobs()
    knobs.limit_power_w(node.gpu, 300.0)
    node.fake.reload()
    knobs.limit_power_w(node.gpu, 250.0)
    node.die()
    assert node.restored() == "power_limit_w of GPU-0 was set to 700 W again"


def test_after_a_reboot_the_driver_is_not_even_asked(node: Node) -> None:
    node.lock(node.knobs())
    node.die()
    node.fake.fail("nvmlDeviceResetGpuLockedClocks", 999)
    assert "the machine was started again" in node.restored(boot_id="b2")
    assert reopened(node.state) == ((), ())


def test_a_gpu_that_is_lost_stays_in_the_journal_and_keeps_no_other_from_it(
    node: Node,
) -> None:
    knobs = node.knobs()
    for each in node.nvml.gpus():
        knobs.limit_power_w(each, 300.0)
    node.die()
    # The first GPU, and once more after a new start.
    node.fake.fail("nvmlDeviceSetPowerManagementLimit", 15, times=2)
    message = node.restored()
    assert "power_limit_w of GPU-0 is not back: could not" in message
    assert "power_limit_w of GPU-1 was set to 700 W again" in message
    assert [held.last.gpu_uuid for held in reopened(node.state)[0]] == ["GPU-0"]
    assert "GPU-0 was set to 700 W again" in node.restored()


def test_what_the_driver_refuses_is_not_ours(node: Node) -> None:
    node.board.lock_high = 1500
    with node.knobs() as knobs:
        with pytest.raises(OutOfRange):
            node.lock(knobs, 5000.0)
        node.fake.state.may_write = 0
        with pytest.raises(NotPermitted):
            node.lock(knobs, 900.0)
        assert (node.state / NAME).read_bytes() == b""
    node.fake.state.may_write = 1
    assert (node.board.lock_high, node.restored()) == (1500, "")


def test_what_nobody_knows_the_end_of_is_put_back(node: Node) -> None:
    knobs = node.knobs()
    node.fake.fail("nvmlDeviceSetGpuLockedClocks", 999, times=1)
    with pytest.raises(DeviceError, match="unknown error"):
        node.lock(knobs)
    node.board.lock_low, node.board.lock_high = 345, 1200  # it did take place
    node.die()
    assert node.restored() == "clock_mhz of GPU-0 was unlocked"


def test_no_knob_is_turned_that_cannot_be_journalled(node: Node) -> None:
    with node.knobs() as knobs:
        (node.state / NAME).mkdir()
        with pytest.raises(OSError):
            node.lock(knobs)
        assert node.fake.state.writes == 0
        (node.state / NAME).rmdir()
