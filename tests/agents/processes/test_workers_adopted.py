"""What a later agent finds: workers that run are adopted, others are told as failed; damaged state does no harm."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from agents.base.device import DeviceError, LaunchFailed
from agents.processes.launch import Ports
from agents.processes.logs import TAIL_CHARACTERS, rotate, tail
from agents.processes.process import Spawn, WorkerProcess
from agents.processes.procfs import boot_id, is_alive
from agents.processes.records import MAX_OLD, Identity, Record, Records
from agents.processes.templates import Template
from tests.agents.factories import a_record
from tests.agents.fakes.replicas import (
    BOTH_LAUNCHERS,
    Node,
    a_launch,
    gone,
    in_loop,
    is_running,
    started,
    the,
    until,
)
from tests.agents.kubernetes.cluster import Cluster
from tests.ports import own_ports

pytestmark = pytest.mark.integration


@pytest.fixture
def node(tmp_path: Path, cluster: Cluster | None) -> Node:
    return Node(directory=tmp_path / "workers", cluster=cluster)


@pytest.fixture
def process_node(tmp_path: Path) -> Node:
    """For what is so of processes alone."""
    return Node(directory=tmp_path / "workers")


def record_file(node: Node) -> Path:
    (path,) = (node.directory / "records").glob("*.json")
    return path


def change_record(node: Node, **changes: object) -> None:
    """Alter the only record's identity, as another process or boot would have it."""
    path = record_file(node)
    record = json.loads(path.read_bytes())
    record["identity"] |= changes
    path.write_text(json.dumps(record))


def end_child(pid: int) -> None:
    """As when nothing watches: killed and reaped, by us or by its kubelet."""
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


@BOTH_LAUNCHERS
@in_loop
async def test_workers_go_on_without_an_agent_and_are_adopted(node: Node) -> None:
    async with node.workers(keep=True) as workers:
        view = await started(workers)
        with pytest.raises(DeviceError, match="in use by another agent"):
            Records(node.directory, Record, lock_wait_s=0.05)
    assert psutil.pid_exists(view.pid)
    node.arguments = ("--sm-count", "33")
    async with node.workers() as workers:
        # Readiness is asked again.
        assert (the(workers).state, the(workers).is_adopted) == ("starting", True)
        await until(lambda: the(workers).state == "ready")
        adopted = the(workers)
        # The old command runs on, and is told as outdated.
        assert (adopted.pid, adopted.url, adopted.sm_count) == (view.pid, view.url, 66)
        assert adopted.is_outdated and not view.is_outdated
        assert len(node.proofs) == 2, "its share is proven again"
        with pytest.raises(LaunchFailed, match="there already"):
            await workers.start(a_launch())
        await workers.stop("r1")
        await gone(workers)
    assert not is_running(view.pid)


@in_loop
async def test_adopted_workers_that_are_not_wanted_or_die_are_ended(node: Node) -> None:
    async with node.workers(keep=True) as workers:
        for replica_id in ("r1", "r2"):
            await workers.start(a_launch(replica_id))
        await until(lambda: all(each.state == "ready" for each in workers.replicas()))
    async with node.workers() as workers:
        await workers.end_unwanted({"r2"})
        await gone(workers)
        assert [each.id for each in workers.replicas()] == ["r2"]
        await until(lambda: the(workers, "r2").state == "ready")
        pid = the(workers, "r2").pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda: the(workers, "r2").state == "failed")
        assert not is_running(pid)


@BOTH_LAUNCHERS
@in_loop
async def test_a_worker_that_ended_meanwhile_is_failed(node: Node) -> None:
    node.arguments = ("--child", "--say", "last words")
    async with node.workers(keep=True) as workers:
        view = await started(workers)
        (child,) = psutil.Process(view.pid).children()
    end_child(view.pid)
    said = "it ended while no agent watched it; its log ends: last words"
    async with node.workers() as workers:
        assert (the(workers).state, the(workers).message) == ("failed", said)
        await until(lambda: not is_running(child.pid), "what it left is ended")
        await workers.stop("r1")
        assert workers.replicas() == ()
    assert not any((node.directory / "records").iterdir())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"boot": "00000000"}, "was restarted"), ({"start_ticks": 1}, "ended while")],
)
@in_loop
async def test_a_process_that_only_has_the_number_is_not_adopted(
    process_node: Node, changes: dict[str, object], reason: str
) -> None:
    """As the record says it is another process; by its mark this one is still known as ours, and is ended."""
    async with process_node.workers(keep=True) as workers:
        view = await started(workers)
    change_record(process_node, **changes)
    async with process_node.workers() as workers:
        assert the(workers).state == "failed" and reason in the(workers).message
        assert not is_running(view.pid)


@in_loop
async def test_a_stranger_that_got_the_number_is_left_alone(process_node: Node) -> None:
    async with process_node.workers(keep=True) as workers:
        view = await started(workers)
    end_child(view.pid)
    stranger = psutil.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=-1,
        start_new_session=True,
    )
    with stranger:
        change_record(process_node, pid=stranger.pid)
        async with process_node.workers() as workers:
            assert the(workers).state == "failed"
            await workers.stop("r1")
        assert stranger.poll() is None


@in_loop
async def test_a_damaged_record_is_told_and_its_worker_ended(node: Node) -> None:
    async with node.workers(keep=True) as workers:
        view = await started(workers)
    record_file(node).write_text("{")
    async with node.workers() as workers:
        assert workers.replicas() == ()
        assert "damaged and was put aside" in workers.problems[0]
        assert not is_running(view.pid)
        await started(workers)


@in_loop
async def test_a_forged_record_leads_to_no_process(process_node: Node) -> None:
    """A user who can put a file there must not make a root agent end any process."""
    async with process_node.workers(keep=True) as workers:
        await started(workers)
    change_record(process_node, pid=1)
    async with process_node.workers() as workers:
        assert "was not recorded here" in workers.problems[0]


@in_loop
async def test_a_missing_program_is_refused(process_node: Node) -> None:
    command = ("no-such-program", "{port}")
    process_node.own_template = Template(name="missing", command=command)
    async with process_node.workers() as workers:
        with pytest.raises(LaunchFailed, match="runs no-such-program, which is not on"):
            await workers.start(a_launch())
        assert workers.replicas() == ()
    assert not any((process_node.directory / "records").iterdir())


@in_loop
async def test_no_worker_runs_without_its_record(tmp_path: Path) -> None:
    """The child waits at the gate; without a record the gate closes."""
    ran = tmp_path / "ran"
    spawn = Spawn(
        command=(sys.executable, "-c", f"open({str(ran)!r}, 'w')"),
        environment=dict(os.environ),
        directory=tmp_path,
        log=tmp_path / "log",
        mark="test.1",
    )

    def record(identity: Identity) -> None:
        raise DeviceError(f"no space left for {identity.pid}")

    with pytest.raises(DeviceError, match="no space left"):
        WorkerProcess.start(spawn, record)
    assert not ran.exists()


@in_loop
async def test_an_identity_holds_for_one_process_only(process_node: Node) -> None:
    async with process_node.workers() as workers:
        await started(workers)
        recorded = json.loads(record_file(process_node).read_bytes())["identity"]
        identity = Identity(**recorded)
        assert identity.boot == boot_id()
        assert is_alive(identity)
        assert not is_alive(replace(identity, start_ticks=identity.start_ticks + 1))
        assert not is_alive(replace(identity, boot="before"))


NONE = Identity(pid=2, start_ticks=3, boot="b")


def test_records_are_read_back_and_ids_make_no_paths(tmp_path: Path) -> None:
    records = Records(tmp_path, Record)
    ids = ("../../etc/passwd", "a/b", "a_b", "x" * 253, "r1")
    for replica_id in ids:
        records.save(a_record(records, replica_id, identity=NONE))
    assert [each.id for each in records.load()] == sorted(ids)
    assert len(list((tmp_path / "records").iterdir())) == len(ids)
    for replica_id in ids:
        records.remove(replica_id)
    # A write that was not finished is no record.
    (tmp_path / "records" / "r1.new").write_text("{")
    assert records.load() == () and records.problems == ()
    assert not any((tmp_path / "records").iterdir())
    records.close()


def test_logs_of_replicas_that_are_gone_are_kept_in_part(tmp_path: Path) -> None:
    records = Records(tmp_path, Record)
    for number in range(MAX_OLD + 3):
        log = records.log(f"r{number}")
        log.write_text("x")
        os.utime(log, (number, number))
    records.save(a_record(records, "r0", identity=NONE))
    records.remove("r1")
    asyncio.run(records.tidy())
    # 35 logs, one of a replica that is there; of the 34 others the two oldest go: r1 and r2.
    left = {each.name for each in (tmp_path / "logs").iterdir()}
    assert len(left) == MAX_OLD + 1
    assert records.log("r0").name in left and records.log("r3").name in left
    records.close()


def test_kept_folders_have_room_in_so_many_bytes(tmp_path: Path) -> None:
    records, seen = Records(tmp_path, Record, max_old_bytes=100_000), list[str]()

    def finish(name: str, size_bytes: int) -> str:
        (records.folder(name) / "deep").mkdir(parents=True)
        (records.folder(name) / "deep" / "checkpoint").write_bytes(b"x" * size_bytes)
        records.remove(name, keeps_folder=True)
        asyncio.run(records.tidy())
        os.utime(records.folder(name), (len(seen), len(seen)))
        seen.append(name)
        return " ".join(each for each in seen if records.folder(each).exists())

    assert finish("t1", 40_000) == "t1"
    # 80,000 and at most 4,096 for each of four folders.
    assert finish("t2", 40_000) == "t1 t2"
    assert finish("t3", 40_000) == "t2 t3"
    # The newest is kept anyway.
    assert finish("t4", 500_000) == "t4"
    assert finish("t5", 1_000) == "t5"
    records.close()


def test_a_log_keeps_to_its_size_while_it_is_written(tmp_path: Path) -> None:
    log = tmp_path / "r1.log"
    with log.open("ab", buffering=0) as worker:
        worker.write(b"a" * 60 + b"b" * 50)
        assert rotate(log, limit_bytes=100)
        assert (tmp_path / "r1.log.1").read_bytes() == b"a" * 50 + b"b" * 50
        worker.write(b"c")
        assert log.read_bytes() == b"c", "the worker writes on at the new end"
        assert not rotate(log, limit_bytes=100)


def test_the_end_of_a_log_is_short_and_printable(tmp_path: Path) -> None:
    log = tmp_path / "r1.log"
    assert tail(log) == ""
    log.write_bytes(b"first\n\n \x1b[31mred\x00\xff\n" + b"last\n")
    assert tail(log) == "first |  [31mred � | last"
    log.write_text("\n".join(str(number) * 100 for number in range(99)))
    assert len(tail(log)) == TAIL_CHARACTERS and tail(log).endswith("98")


def test_ports_are_taken_in_turn_and_run_out() -> None:
    first = own_ports()
    ports = Ports(first=first, count=3)
    assert ports.take(2, ()) == (first, first + 1)
    assert ports.take(2, ()) == (first + 2, first)
    assert ports.take(1, {first + 1}) == (first + 2,)
    with pytest.raises(LaunchFailed, match="fewer than 2 of the ports"):
        ports.take(2, {first, first + 1})
    with pytest.raises(ValueError, match="must lie within"):
        Ports(first=65000, count=1000)
