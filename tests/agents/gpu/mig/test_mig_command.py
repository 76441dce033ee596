"""`plimsoll-agent mig`, through the real binding against the fake driver."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agents.base.device import DeviceError
from agents.gpu.mig.journal import NAME, MigJournal
from agents.gpu.mps.daemon import Mps
from agents.processes.procfs import boot_id
from agents.processes.records import Identity, Record, Records
from agents.processes.template_file import built_in
from agents.tasks.task import Phase, TaskProcessRecord
from tests.agents.commands import Ended, agent, killable
from tests.agents.doctor_nodes import doctor_node
from tests.agents.factories import a_record, a_task
from tests.agents.fakes.nvml.fake_gpus import (
    KILL_AFTER,
    KILL_BEFORE,
    NO_MIG,
    FakeGpus,
    Process,
    Slice,
)
from tests.agents.fakes.nvml.fixtures import fake, library
from tests.agents.gpu_nodes import environment

__all__ = ("fake", "library")

FOUR = [("2g.35gb", 0), ("1g.18gb", 2), ("1g.18gb", 3), ("3g.71gb", 4)]
Mig = Callable[..., Ended]
OURS = Identity(pid=os.getpid(), start_ticks=1, boot=boot_id())


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder whose path leaves room for the sockets of MPS, in whatever process the test runs."""
    with tempfile.TemporaryDirectory(prefix="mig") as folder:
        yield Path(folder)


@pytest.fixture
def mig(fake: FakeGpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mig:
    """The command on a machine whose GPU 0 is in MIG mode and empty."""
    monkeypatch.setenv("PATH", environment()["PATH"])
    fake.enable_mig("H200")
    state = tmp_path / "s"
    state.mkdir()

    def call(verb: str, *words: str, gpu: str = "GPU-0") -> Ended:
        place = () if verb == "list" else ("--gpu", gpu)
        return agent("mig", verb, "--state-dir", str(state), *place, *words)

    return call


def apply(mig: Mig, layout: str, *words: str) -> Ended:
    return mig("apply", "--layout", layout, *words)


def test_a_layout_is_made_in_an_order_that_the_driver_has_places_for_listed_and_cleared(
    mig: Mig, fake: FakeGpus
) -> None:
    # The largest first would put 3g at 0, 2g at 4 and a 1g at 6; for the other 1g nothing is left.
    done = apply(mig, "1g.18gb,3g.71gb,2g.35gb,1g.18gb")
    assert (done.code, done.out, done.err) == (
        0,
        "GPU 0 has 3g.71gb,2g.35gb,1g.18gb,1g.18gb now\n",
        "",
    )
    assert fake.devices() == FOUR
    listed = mig("list").out
    assert (
        "GPU 0  GPU-0  NVIDIA H100 80GB HBM3  MIG on\n" in listed
        and "GPU-1  NVIDIA H100 80GB HBM3  MIG off" in listed
    )
    assert "  slice 1050  3g.71gb     60 SMs   71168 MiB  MIG-0-5-" in listed
    assert "room now: nothing" in listed and "cut off" not in listed
    assert mig("clear").out == "GPU 0 has no slice now\n"
    assert fake.devices() == [] and "no slice\n" in mig("list").out


def test_the_layout_that_is_there_is_left_alone_and_a_dry_run_changes_nothing(
    mig: Mig, fake: FakeGpus
) -> None:
    done = apply(mig, "3g.71gb,3g.71gb", "--dry-run")
    said = "GPU 0 would get 3g.71gb,3g.71gb in place of no slice; nothing was changed\n"
    assert done.out == said
    refused = apply(mig, "4g.71gb,4g.71gb", "--dry-run")
    why = "no room for 4g.71gb,4g.71gb together: 4g.71gb would fit"
    assert refused.code == 1 and why in refused.err
    assert (fake.state.writes, fake.devices()) == (0, [])
    apply(mig, "3g.71gb,3g.71gb")
    writes = fake.state.writes
    done = apply(mig, "3g.71gb,3g.71gb")
    assert done.out == "GPU 0 has this layout already: 3g.71gb,3g.71gb\n"
    assert fake.state.writes == writes


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (
            "3g.71gb,3g.71gb,1g.18gb",
            "3g.71gb,3g.71gb would fit; besides that there is room for nothing",
        ),
        ("3g.40gb", "this GPU has no slice 3g.40gb; it can have 7g.141gb (at most 1)"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_goes(
    mig: Mig, fake: FakeGpus, layout: str, words: str
) -> None:
    apply(mig, "2g.35gb")
    refused = apply(mig, layout)
    assert refused.code == 1 and words in refused.err
    assert fake.devices() == [("2g.35gb", 0)]


def test_a_gpu_that_is_not_in_mig_mode_is_left_to_the_operator(
    mig: Mig, fake: FakeGpus
) -> None:
    refused = mig("clear", gpu="GPU-1")
    assert refused.code == 1
    assert (
        "GPU 1 (GPU-1) is not in MIG mode" in refused.err
        and "nvidia-smi -i GPU-1 -mig 1" in refused.err
    )
    fake.gpu(1).without = NO_MIG
    assert "this GPU does not have it" in mig("clear", gpu="GPU-1").err
    assert "no GPU GPU-7; this node has GPU-0, GPU-1" in mig("clear", gpu="GPU-7").err
    assert fake.state.writes == 0


def test_without_the_right_slices_are_seen_and_the_right_is_named(
    mig: Mig, fake: FakeGpus
) -> None:
    apply(mig, "3g.71gb")
    fake.state.may_write = 0
    refused = mig("clear")
    assert (
        refused.code == 1
        and "CAP_SYS_ADMIN" in refused.err
        and "capabilities/mig/config" in refused.err
    )
    listed = mig("list").out
    assert "slice 1010  3g.71gb" in listed and "room now" not in listed
    assert fake.devices() == [("3g.71gb", 0)]


def test_processes_on_a_slice_are_named_and_keep_the_layout(
    mig: Mig, fake: FakeGpus
) -> None:
    apply(mig, "3g.71gb,3g.71gb")
    fake.run_processes(
        Process(pid=4242, gpu_instance=5), Process(pid=99, gpu_instance=1)
    )
    refused = mig("clear")
    assert refused.code == 1 and "GPU 0 is in use by processes 99, 4242" in refused.err
    assert len(fake.devices()) == 2


def test_a_replica_on_record_and_an_agent_at_work_keep_the_layout(
    mig: Mig, fake: FakeGpus, tmp_path: Path
) -> None:
    apply(mig, "3g.71gb,3g.71gb")
    with agent_at(tmp_path / "s") as records:
        busy = mig("clear")
        assert "in use by another agent" in busy.err and "Stop the agent" in busy.err
        records.save(a_record(records, identity=OURS, gpu_index=1050))
    recorded = mig("clear")
    assert (
        recorded.code == 1 and "replicas chat-1 are on record for GPU 0" in recorded.err
    )
    with agent_at(tmp_path / "s") as records:
        records.save(a_record(records, identity=OURS, gpu_index=1))
    assert mig("clear").code == 0, "a replica of GPU 1 is in no one's way"


def test_a_task_on_record_keeps_the_layout_though_its_memory_is_away_and_one_that_is_done_does_not(
    mig: Mig, fake: FakeGpus, tmp_path: Path
) -> None:
    apply(mig, "3g.71gb,3g.71gb")
    tasks = Records(tmp_path / "s" / "tasks", TaskProcessRecord)
    tasks.save(a_task_record(tasks, "nightly", phase="out"))
    busy = mig("clear")
    assert (
        "tasks is in use by another agent" in busy.err and "Stop the agent" in busy.err
    )
    tasks.close()
    recorded = mig("clear")
    assert (
        recorded.code == 1
        and "tasks nightly are on record for GPU 0: cordon and drain" in recorded.err
    )
    assert len(fake.devices()) == 2
    with contextlib.closing(
        Records(tmp_path / "s" / "tasks", TaskProcessRecord)
    ) as again:
        again.save(a_task_record(again, "nightly", phase="finished"))
    assert mig("clear").code == 0


def a_task_record(
    records: Records[TaskProcessRecord], name: str, *, phase: Phase
) -> TaskProcessRecord:
    return TaskProcessRecord(
        id=name,
        command=a_task(name),
        gpu_index=1050,
        ports=(),
        progress_file="",
        template=built_in(),
        identity=Identity(pid=2**22 - 1, start_ticks=1, boot=boot_id()),
        mark=f"{records.mark}.1",
        phase=phase,
    )


def test_an_mps_daemon_of_a_slice_keeps_it(
    mig: Mig, fake: FakeGpus, tmp_path: Path
) -> None:
    apply(mig, "3g.71gb")
    (uuid,) = [each.uuid.decode() for each in fake.gpu(0).slices if each.in_use]
    daemon = Mps(uuid, tmp_path / "s" / "mps" / "1010-x", environment=environment())
    asyncio.run(daemon.start())
    try:
        refused = mig("clear")
        assert (
            "MPS daemons of ours hold GPU 0" in refused.err
            and "1010-x/pipe" in refused.err
        )
    finally:
        asyncio.run(daemon.stop(0.0))
    assert mig("clear").code == 0


@pytest.mark.parametrize("skip", [0, 1, 3])
def test_a_slice_that_does_not_go_brings_the_layout_of_before_back(
    mig: Mig, fake: FakeGpus, skip: int
) -> None:
    apply(mig, "3g.71gb,2g.35gb,1g.18gb,1g.18gb")
    fake.fail("nvmlComputeInstanceDestroy", 19, skip=skip, times=1)
    failed = mig("clear")
    assert failed.code == 1
    assert "the GPU is in use" in failed.err
    assert (
        "has its layout of before again: 2g.35gb,1g.18gb,1g.18gb,3g.71gb" in failed.err
    )
    assert fake.devices() == FOUR
    assert "cut off" not in mig("list").out


@pytest.mark.parametrize(
    "function", ["nvmlDeviceCreateGpuInstance", "nvmlGpuInstanceCreateComputeInstance"]
)
def test_a_slice_that_does_not_come_brings_the_layout_of_before_back(
    mig: Mig, fake: FakeGpus, function: str
) -> None:
    apply(mig, "3g.71gb,2g.35gb,1g.18gb,1g.18gb")
    fake.fail(function, 999, skip=1, times=1)
    failed = apply(mig, "4g.71gb,3g.71gb")
    assert (
        failed.code == 1
        and "unknown error" in failed.err
        and "of before again" in failed.err
    )
    assert fake.devices() == FOUR


def test_a_driver_that_has_no_place_in_any_order_says_so_and_nothing_is_lost(
    mig: Mig, fake: FakeGpus
) -> None:
    apply(mig, "3g.71gb")
    fake.fail("nvmlDeviceCreateGpuInstance", 23)
    failed = apply(mig, "2g.35gb,1g.18gb")
    # Both orders: 2g, 1g and 1g, 2g.
    assert "no places for 2g.35gb,1g.18gb on GPU 0 in 2 orders" in failed.err
    assert fake.devices() == [("3g.71gb", 0)]


def test_where_even_the_layout_of_before_does_not_come_back_the_journal_keeps_it(
    mig: Mig, fake: FakeGpus
) -> None:
    apply(mig, "3g.71gb")
    fake.fail("nvmlGpuInstanceCreateComputeInstance", 999)
    failed = apply(mig, "2g.35gb")
    assert "could not be made again" in failed.err and "mig list" in failed.err
    assert (
        "a change of GPU-0 was cut off: it had 3g.71gb, 2g.35gb was wanted"
        in mig("list").out
    )
    fake.heal()
    assert apply(mig, "3g.71gb").code == 0
    assert (fake.devices(), "cut off" in mig("list").out) == (
        [("3g.71gb", 0)],
        False,
    )


@pytest.mark.parametrize(
    ("function", "code", "skip"),
    [
        ("nvmlComputeInstanceDestroy", KILL_AFTER, 0),
        ("nvmlGpuInstanceDestroy", KILL_AFTER, 1),
        ("nvmlDeviceCreateGpuInstance", KILL_BEFORE, 0),
        ("nvmlDeviceCreateGpuInstance", KILL_AFTER, 0),
        ("nvmlGpuInstanceCreateComputeInstance", KILL_AFTER, 1),
    ],
)
def test_a_command_that_is_killed_anywhere_is_told_and_can_be_finished(
    mig: Mig, fake: FakeGpus, function: str, code: int, skip: int
) -> None:
    apply(mig, "2g.35gb,1g.18gb")
    fake.fail(function, code, skip=skip, times=1)
    assert killable(lambda: apply(mig, "3g.71gb,3g.71gb")) == -9
    assert "it had 2g.35gb,1g.18gb, 3g.71gb,3g.71gb was wanted" in mig("list").out
    fake.fail("nvmlDeviceCreateGpuInstance", 999, times=1)
    assert (
        "has its layout of before again: 2g.35gb,1g.18gb" in apply(mig, "7g.141gb").err
    ), "the first one's"
    assert apply(mig, "3g.71gb,3g.71gb").code == 0
    assert fake.devices() == [("3g.71gb", 0), ("3g.71gb", 4)]
    assert "cut off" not in mig("list").out


def test_a_journal_that_cannot_be_written_says_what_became_of_the_slices(
    tmp_path: Path,
) -> None:
    journal = MigJournal(tmp_path, boot_id="b1")
    (
        tmp_path / f"{NAME}.new"
    ).mkdir()  # Where a new one would be written, by root, too.
    with pytest.raises(
        DeviceError, match="cannot be written: Is a directory; nothing was changed"
    ):
        journal.note("GPU-0", (), ("3g.71gb",))
    assert journal.all() == (), "no change has begun"
    (tmp_path / f"{NAME}.new").rmdir()
    journal.note("GPU-0", (), ("3g.71gb",))
    (tmp_path / f"{NAME}.new").mkdir()
    with pytest.raises(
        DeviceError, match="the slices are as `mig list` shows them"
    ) as raised:
        journal.forget("GPU-0")
    assert "nothing was changed" not in str(raised.value)
    assert journal.find("GPU-0") is not None, "so that the same command forgets it"


def test_a_journal_of_another_boot_is_void_and_a_damaged_one_is_said(
    mig: Mig, fake: FakeGpus, tmp_path: Path
) -> None:
    journal = tmp_path / "s" / NAME
    fake.fail("nvmlDeviceCreateGpuInstance", KILL_BEFORE, times=1)
    killable(lambda: apply(mig, "3g.71gb"))
    assert "cut off" in mig("list").out
    journal.write_text(journal.read_text().replace(boot_id(), "00000000-another-boot"))
    assert "cut off" not in mig("list").out
    journal.write_text("torn")
    refused = apply(mig, "3g.71gb")
    assert refused.code == 1 and "mig.journal cannot be read" in refused.err
    assert fake.devices() == []


def test_the_doctor_tells_slices_and_what_they_go_without(library: Path) -> None:
    with doctor_node(library) as node:
        node.fake.enable_mig("H200")
        empty = next(each for each in node.examine() if each.check == "GPU 0 MIG")
        assert (
            empty.level,
            "nothing can run on this GPU; it can have 1 x 7g.141gb or" in empty.words,
        ) == ("warn", True)
        node.fake.slice_up(
            a_slice("3g.71gb", instance=1),
            a_slice("1g.18gb", instance=5, start=4, size=1),
        )
        first, second = (each for each in node.examine() if each.check == "GPU 0 MIG")
        assert (first.level, second.level) == ("pass", "warn")
        assert "3g.71gb (1010), 1g.18gb (1050); room for" in first.words
        assert "no clock lock and no power limit" in second.words
        assert node.levels()["GPU 0 MPS"] == ["skip"] and node.levels()[
            "GPU 1 MPS"
        ] == ["pass"]


def test_the_doctor_takes_a_gpu_that_may_not_be_asked_for_one_without_slices(
    library: Path,
) -> None:
    with doctor_node(library) as node:
        node.fake.fail("nvmlDeviceGetMigMode", 4)
        assert node.levels()["GPU 0"] == ["pass", "warn", "pass"]


def a_slice(profile: str, *, instance: int, start: int = 0, size: int = 4) -> Slice:
    return Slice(
        uuid=f"MIG-{instance}".encode(),
        name=f"NVIDIA H200 MIG {profile}".encode(),
        sm_count=16,
        gpu_instance=instance,
        in_use=1,
        start=start,
        size=size,
        memory_mib=16384,
    )


@contextmanager
def agent_at(state: Path) -> Iterator[Records[Record]]:
    """What an agent that runs has."""
    records = Records(state / "workers", Record)
    try:
        yield records
    finally:
        records.close()
