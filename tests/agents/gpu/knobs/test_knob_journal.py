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
from agents.gpu.nvml.types import GpuIdentity
from tests.agents.fakes.nvml.fake_gpus import FakeGpus
from tests.agents.fakes.nvml.fixtures import fake, library

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


class TestJournal:
    @pytest.fixture
    def journal(self, tmp_path: Path) -> Iterator[KnobJournal]:
        with closing(KnobJournal(tmp_path / "state")) as opened:
            yield opened

    def lines(self, journal: KnobJournal) -> int:
        return journal.path.read_bytes().count(b"\n")

    def test_a_new_directory_holds_nothing(self, tmp_path: Path) -> None:
        assert reopened(tmp_path / "new" / "state") == ((), ())

    def test_a_change_is_on_disk_before_write_returns(
        self, journal: KnobJournal
    ) -> None:
        journal.write(a_change())
        # Read by the file alone: this process still holds the journal.
        assert b'"new":[345.0,1200.0]' in journal.path.read_bytes()
        assert journal.held() == (
            Held(old=(), settings=((345.0, 1200.0),), last=a_change()),
        )

    def test_the_next_process_finds_what_was_written(self, tmp_path: Path) -> None:
        with closing(KnobJournal(tmp_path)) as journal:
            journal.write(a_change((300.0,), old=(700.0,), knob="power_limit_w"))
            journal.write(a_change((345.0, 900.0)))
        held, problems = reopened(tmp_path)
        assert [(each.last.knob, each.old, each.settings) for each in held] == [
            ("clock_mhz", (), ((345.0, 900.0),)),
            ("power_limit_w", (700.0,), ((300.0,),)),
        ]
        assert (held[0].last.at, problems) == (AT, ())

    def test_until_a_change_is_settled_either_value_may_be_in_force(
        self, journal: KnobJournal
    ) -> None:
        journal.write(a_change((300.0,), old=(700.0,), knob="power_limit_w"))
        journal.settle("G", "power_limit_w")
        journal.write(a_change((250.0,), old=(300.0,), knob="power_limit_w"))
        (held,) = journal.held()
        assert (held.old, held.settings) == ((700.0,), ((300.0,), (250.0,)))
        journal.settle("G", "power_limit_w")
        (held,) = journal.held()
        assert (held.old, held.settings) == ((700.0,), ((250.0,),))

    def test_a_refused_change_leaves_the_one_before_it(self, tmp_path: Path) -> None:
        with closing(KnobJournal(tmp_path)) as journal:
            journal.write(a_change())
            journal.settle("G", "clock_mhz")
            journal.write(a_change((345.0, 9999.0)))
            journal.withdraw("G", "clock_mhz")
        ((held,), _) = reopened(tmp_path)
        assert held.settings == ((345.0, 1200.0),)

    def test_what_is_forgotten_is_off_the_disk(self, tmp_path: Path) -> None:
        with closing(KnobJournal(tmp_path)) as journal:
            journal.write(a_change(gpu="A"))
            journal.write(a_change(gpu="B"))
            journal.forget("A", "clock_mhz")
            journal.forget("A", "clock_mhz")
        ((held,), _) = reopened(tmp_path)
        assert held.last.gpu_uuid == "B"

    def test_the_file_stays_small_however_often_a_knob_is_turned(
        self, journal: KnobJournal
    ) -> None:
        for turn in range(2 * MAX_LINES):
            journal.write(a_change((345.0, 1000.0 + turn)))
            journal.settle("G", "clock_mhz")
            assert self.lines(journal) <= MAX_LINES
        (held,) = journal.held()
        assert held.settings == ((345.0, 1000.0 + 2 * MAX_LINES - 1),)

    @pytest.mark.parametrize("cut", [1, 20, 100])
    def test_a_torn_tail_is_ignored_and_said(self, tmp_path: Path, cut: int) -> None:
        with closing(KnobJournal(tmp_path)) as journal:
            journal.write(a_change(gpu="A"))
            journal.write(a_change(gpu="B"))
        path = tmp_path / NAME
        path.write_bytes(path.read_bytes()[:-cut])
        with closing(KnobJournal(tmp_path)) as journal:
            # Without its newline alone the line is whole.
            assert [held.last.gpu_uuid for held in journal.held()] == (
                ["A", "B"] if cut == 1 else ["A"]
            )
            assert len(journal.problems) == (0 if cut == 1 else 1)
            journal.write(a_change(gpu="C"))
        held, problems = reopened(tmp_path)
        assert [each.last.gpu_uuid for each in held] == (
            ["A", "B", "C"] if cut == 1 else ["A", "C"]
        )
        assert problems == (), "nothing was glued to the torn line"

    @pytest.mark.parametrize(
        "tail", [b"\x00" * 700, b"\xff garbage\n", b"{}\n", b"0123456789abcdef {}\n"]
    )
    def test_what_is_no_change_does_not_hide_the_others(
        self, tmp_path: Path, tail: bytes
    ) -> None:
        with closing(KnobJournal(tmp_path)) as journal:
            journal.write(a_change(gpu="A"))
        with (tmp_path / NAME).open("ab") as file:
            file.write(tail)
        held, problems = reopened(tmp_path)
        assert [each.last.gpu_uuid for each in held] == ["A"]
        assert "line 2, is damaged" in problems[0]

    def test_an_altered_line_is_not_believed(self, tmp_path: Path) -> None:
        with closing(KnobJournal(tmp_path)) as journal:
            journal.write(a_change(gpu="A"))
            journal.write(a_change(gpu="B"))
        path = tmp_path / NAME
        path.write_bytes(path.read_bytes().replace(b"1200", b"1300", 1))
        held, problems = reopened(tmp_path)
        assert [each.last.gpu_uuid for each in held] == ["B"]
        assert "line 1, is damaged" in problems[0]

    def test_two_processes_cannot_have_it(self, journal: KnobJournal) -> None:
        with pytest.raises(
            BlockingIOError, match="another agent has this state directory"
        ):
            KnobJournal(journal.path.parent, lock_wait_s=0.05)

    def test_a_lock_that_is_freed_in_a_moment_is_waited_for(
        self, tmp_path: Path
    ) -> None:
        # As after SIGKILL, when a child that the agent was just making has the lock until it is a program of its own.
        before = KnobJournal(tmp_path)
        before.write(a_change())
        closing_soon = threading.Timer(0.1, before.close)
        closing_soon.start()
        with closing(KnobJournal(tmp_path, lock_wait_s=60.0)) as journal:
            assert [each.last for each in journal.held()] == [a_change()]
        closing_soon.join()

    def test_what_was_set_before_the_machine_started_is_dropped(
        self, journal: KnobJournal
    ) -> None:
        journal.write(a_change())
        assert journal.drop_other_boots("b1") == ()
        (dropped,) = journal.drop_other_boots("b2")
        assert dropped.last == a_change()
        assert journal.held() == ()


class TestKnobs:
    @pytest.fixture
    def nvml(self, fake: FakeGpus) -> Iterator[Nvml]:
        fake.gpu(0).load_percent = 100
        with Nvml() as opened:
            yield opened

    @pytest.fixture
    def gpu(self, nvml: Nvml) -> GpuIdentity:
        return nvml.gpus()[0]

    @pytest.fixture
    def state(self, tmp_path: Path) -> Path:
        return tmp_path / "state"

    def knobs(self, nvml: Nvml, state: Path, *, boot_id: str = "b1") -> KnobWriter:
        self.journal = KnobJournal(state)
        return KnobWriter(nvml, self.journal, boot_id=boot_id, now=lambda: AT)

    def die(self) -> None:
        """As SIGKILL does: the lock on the journal goes, nothing is put back."""
        self.journal.close()

    def restored(self, nvml: Nvml, state: Path, *, boot_id: str = "b1") -> str:
        """What the next start says that it did."""
        knobs = self.knobs(nvml, state, boot_id=boot_id)
        message = "; ".join(each.message for each in knobs.restore())
        self.die()
        return message

    def test_knobs_are_put_back_at_the_end(
        self, nvml: Nvml, gpu: GpuIdentity, state: Path, fake: FakeGpus
    ) -> None:
        fake.gpu(0).power_limit = 450_000  # an operator's, from before us
        with self.knobs(nvml, state) as knobs:
            knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=1200.0)
            knobs.limit_power_w(gpu, 300.0)
            assert (fake.gpu(0).lock_high, fake.gpu(0).power_limit) == (1200, 300_000)
        assert (fake.gpu(0).lock_high, fake.gpu(0).power_limit) == (0, 450_000)
        assert reopened(state) == ((), ())

    def test_they_are_put_back_after_an_exception_too(
        self, nvml: Nvml, gpu: GpuIdentity, state: Path, fake: FakeGpus
    ) -> None:
        with pytest.raises(ZeroDivisionError), self.knobs(nvml, state) as knobs:
            knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=1200.0)
            raise ZeroDivisionError
        assert fake.gpu(0).lock_high == 0

    def test_the_next_start_puts_back_what_a_killed_agent_left(
        self, nvml: Nvml, gpu: GpuIdentity, state: Path, fake: FakeGpus
    ) -> None:
        knobs = self.knobs(nvml, state)
        for clock_mhz, limit_w in ((1200.0, 400.0), (900.0, 300.0)):
            knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=clock_mhz)
            knobs.limit_power_w(gpu, limit_w)
        self.die()
        message = self.restored(nvml, state)
        assert (
            message
            == "clock_mhz of GPU-0 was unlocked; power_limit_w of GPU-0 was set to 700 W again"
        )
        assert (fake.gpu(0).lock_high, fake.gpu(0).power_limit) == (0, 700_000)
        assert self.restored(nvml, state) == ""

    def test_what_is_in_force_is_known_and_gone_with_the_driver_or_by_another_hand(
        self, nvml: Nvml, gpu: GpuIdentity, state: Path, fake: FakeGpus
    ) -> None:
        with self.knobs(nvml, state) as knobs:
            assert (
                knobs.in_force(gpu, "clock_mhz"),
                knobs.in_force(gpu, "power_limit_w"),
            ) == ((), ())
            knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=1200.0)
            knobs.limit_power_w(gpu, 500.0)
            assert knobs.in_force(gpu, "clock_mhz") == (345.0, 1200.0)
            assert knobs.in_force(gpu, "power_limit_w") == (500.0,)
            assert knobs.in_force(nvml.gpus()[1], "clock_mhz") == ()
            for by_hand_mw in (
                600_000,
                700_000,
            ):  # another one, and the one before ours
                fake.gpu(0).power_limit = by_hand_mw
                assert knobs.in_force(gpu, "power_limit_w") == ()
            fake.reload()
            assert knobs.in_force(gpu, "clock_mhz") == ()
            knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=1200.0)
            assert knobs.in_force(gpu, "clock_mhz") == (345.0, 1200.0)

    def test_giving_up_a_knob_puts_it_back_at_once_and_is_nothing_where_it_is_not_ours(
        self, nvml: Nvml, gpu: GpuIdentity, state: Path, fake: FakeGpus
    ) -> None:
        fake.gpu(0).power_limit, fake.gpu(0).lock_high = 450_000, 1500
        with self.knobs(nvml, state) as knobs:
            knobs.unlock_clock(gpu)
            knobs.limit_power_w(gpu, None)
            assert (fake.gpu(0).lock_high, fake.state.writes) == (1500, 0), (
                "an operator's"
            )
            knobs.limit_power_w(gpu, 300.0)
            knobs.limit_power_w(gpu, None)
            assert fake.gpu(0).power_limit == 450_000

    def test_a_limit_that_an_operator_set_meanwhile_stays(
        self, nvml: Nvml, gpu: GpuIdentity, state: Path, fake: FakeGpus
    ) -> None:
        knobs = self.knobs(nvml, state)
        knobs.limit_power_w(gpu, 300.0)
        self.die()
        fake.gpu(0).power_limit = 350_000
        assert "somebody else set 350 W after our 300" in self.restored(nvml, state)
        assert fake.gpu(0).power_limit == 350_000

    def test_a_limit_that_an_operator_set_between_two_of_ours_comes_back(
        self, nvml: Nvml, gpu: GpuIdentity, state: Path, fake: FakeGpus
    ) -> None:
        with self.knobs(nvml, state) as knobs:
            knobs.limit_power_w(gpu, 300.0)
            fake.gpu(0).power_limit = 500_000
            knobs.limit_power_w(gpu, 250.0)
        assert fake.gpu(0).power_limit == 500_000

    def test_a_clock_above_our_lock_is_no_longer_ours(
        self, nvml: Nvml, gpu: GpuIdentity, state: Path, fake: FakeGpus
    ) -> None:
        knobs = self.knobs(nvml, state)
        knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=1200.0)
        self.die()
        fake.gpu(0).lock_low, fake.gpu(0).lock_high = 345, 1800
        assert "at 1800 MHz our lock at 1200 is not in force" in self.restored(
            nvml, state
        )
        assert fake.gpu(0).lock_high == 1800

    @pytest.mark.parametrize("version", ["580.65.06", "590.10"])
    def test_what_the_driver_has_forgotten_is_dropped(
        self, nvml: Nvml, gpu: GpuIdentity, state: Path, fake: FakeGpus, version: str
    ) -> None:
        knobs = self.knobs(nvml, state)
        knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=1200.0)
        self.die()
        fake.reload(version=version)
        fake.gpu(0).lock_high = 900  # an operator's, since then
        assert "was dropped" in self.restored(nvml, state)
        assert (fake.gpu(0).lock_high, reopened(state)) == (900, ((), ()))

    def test_a_knob_that_was_turned_again_after_a_new_driver_is_ours(
        self, nvml: Nvml, gpu: GpuIdentity, state: Path, fake: FakeGpus
    ) -> None:
        knobs = self.knobs(nvml, state)
        knobs.limit_power_w(gpu, 300.0)
        fake.reload()
        knobs.limit_power_w(gpu, 250.0)
        self.die()
        assert (
            self.restored(nvml, state)
            == "power_limit_w of GPU-0 was set to 700 W again"
        )

    def test_after_a_reboot_the_driver_is_not_even_asked(
        self, nvml: Nvml, gpu: GpuIdentity, state: Path, fake: FakeGpus
    ) -> None:
        knobs = self.knobs(nvml, state)
        knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=1200.0)
        self.die()
        fake.fail("nvmlDeviceResetGpuLockedClocks", 999)
        assert "the machine was started again" in self.restored(
            nvml, state, boot_id="b2"
        )
        assert reopened(state) == ((), ())

    def test_a_gpu_that_is_lost_stays_in_the_journal_and_keeps_no_other_from_it(
        self, nvml: Nvml, gpu: GpuIdentity, state: Path, fake: FakeGpus
    ) -> None:
        knobs = self.knobs(nvml, state)
        for each in nvml.gpus():
            knobs.limit_power_w(each, 300.0)
        self.die()
        fake.fail(
            "nvmlDeviceSetPowerManagementLimit", 15, times=2
        )  # the first GPU, and once more after a new start
        message = self.restored(nvml, state)
        assert "power_limit_w of GPU-0 is not back: could not" in message
        assert "power_limit_w of GPU-1 was set to 700 W again" in message
        assert [held.last.gpu_uuid for held in reopened(state)[0]] == ["GPU-0"]
        assert "GPU-0 was set to 700 W again" in self.restored(nvml, state)

    def test_what_the_driver_refuses_is_not_ours(
        self, nvml: Nvml, gpu: GpuIdentity, state: Path, fake: FakeGpus
    ) -> None:
        fake.gpu(0).lock_high = 1500
        with self.knobs(nvml, state) as knobs:
            with pytest.raises(OutOfRange):
                knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=5000.0)
            fake.state.may_write = 0
            with pytest.raises(NotPermitted):
                knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=900.0)
            assert reopened_while_open(state) == ()
        fake.state.may_write = 1
        assert (fake.gpu(0).lock_high, self.restored(nvml, state)) == (1500, "")

    def test_what_nobody_knows_the_end_of_is_put_back(
        self, nvml: Nvml, gpu: GpuIdentity, state: Path, fake: FakeGpus
    ) -> None:
        knobs = self.knobs(nvml, state)
        fake.fail("nvmlDeviceSetGpuLockedClocks", 999, times=1)
        with pytest.raises(DeviceError, match="unknown error"):
            knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=1200.0)
        fake.gpu(0).lock_low, fake.gpu(0).lock_high = 345, 1200  # it did take place
        self.die()
        assert self.restored(nvml, state) == "clock_mhz of GPU-0 was unlocked"

    def test_no_knob_is_turned_that_cannot_be_journalled(
        self, nvml: Nvml, gpu: GpuIdentity, state: Path, fake: FakeGpus
    ) -> None:
        with self.knobs(nvml, state) as knobs:
            (state / NAME).mkdir()
            with pytest.raises(OSError):
                knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=1200.0)
            assert fake.state.writes == 0
            (state / NAME).rmdir()


def reopened_while_open(state: Path) -> tuple[bytes, ...]:
    """The journal's lines, read without its lock."""
    return tuple((state / NAME).read_bytes().splitlines())
