"""MPS of one GPU against the fake control program."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.base.device import DeviceError, LaunchFailed, NotSupported, UnknownPart
from agents.gpu.mps.daemon import Mps, MpsSettings
from agents.gpu.mps.gpu_sharing import UnderMps
from agents.gpu.nvml.types import GpuIdentity
from tests.agents.factories import a_replica
from tests.agents.fakes.mps_client import break_gpu
from tests.agents.gpu.mps.mps_nodes import (
    FAKES,
    GPU,
    IMPATIENT,
    OTHER_GPU,
    TOTAL_SMS,
    Node,
    a_node,
    daemon_pid,
    logged,
)
from tests.waiting import PATIENCE_S, run, until

RELEASES = pytest.mark.parametrize(
    "release", ["550", pytest.param("535", marks=pytest.mark.thorough)]
)


@pytest.fixture
def node() -> Iterator[Node]:
    with a_node() as made:
        yield made


def test_a_daemon_serves_one_gpu_from_directories_of_its_own(node: Node) -> None:
    mps = node.mps(
        LD_LIBRARY_PATH="/opt/driver",
        CUDA_VISIBLE_DEVICES="3",
        CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25",
    )
    run(mps.start())
    content = Path(f"/proc/{daemon_pid(mps)}/environ").read_text()
    given = dict(line.split("=", 1) for line in content.split("\0") if line)
    assert given["CUDA_VISIBLE_DEVICES"] == GPU
    assert given["CUDA_MPS_PIPE_DIRECTORY"] == str(node.directory / "0" / "pipe")
    assert given["CUDA_MPS_LOG_DIRECTORY"] == str(node.directory / "0" / "log")
    assert given["LD_LIBRARY_PATH"] == "/opt/driver"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in given
    assert run(mps.is_alive())
    assert (
        mps.directory.pipe.stat().st_mode & 0o777,
        mps.directory.path.stat().st_mode & 0o777,
    ) == (0o700, 0o700)


@pytest.mark.skipif(os.getuid() != 0, reason="only root's daemon serves other users")
def test_a_server_of_the_replicas_user_can_reach_the_directories(node: Node) -> None:
    mps = node.mps(
        MpsSettings(client_uid=os.getuid() + 1, answer_s=PATIENCE_S, start_s=PATIENCE_S)
    )
    run(mps.start())
    assert mps.directory.pipe.stat().st_mode & 0o777 == 0o755


def test_a_daemon_that_runs_is_adopted_and_set_back_to_100_percent(node: Node) -> None:
    first, second = node.mps(), node.mps()
    run(first.start())
    run(first.start_server())
    server = node.say(first, "get_server_list")
    pid = daemon_pid(first)
    assert node.say(first, "set_default_active_thread_percentage 20") == "20.0"
    assert node.say(first, f"set_active_thread_percentage {server} 20") == "20.0"
    run(second.start())
    assert daemon_pid(second) == pid
    assert node.say(first, "get_default_active_thread_percentage") == "100.0"
    assert node.say(first, f"get_active_thread_percentage {server}") == "100.0"


def test_another_replica_waits_for_few_questions_each_of_which_starts_a_process(
    node: Node,
) -> None:
    mps = node.mps()
    sharing = UnderMps(
        GpuIdentity(index=0, uuid=GPU, name="T4", memory_mib=16384.0),
        mps,
        total_sms=TOTAL_SMS,
    )
    run(sharing.environment(a_replica("r1")))
    asked = logged(mps).count("Cmd:")
    run(sharing.environment(a_replica("r2")))
    # The default percent and the servers; then the server's percent back to 100, and its state.
    assert logged(mps).count("Cmd:") - asked == 4


def test_a_look_for_faults_is_one_question_while_the_server_lives_and_finds_the_next_one(
    node: Node,
) -> None:
    mps = node.mps()
    assert run(mps.is_in_fault()) is False  # there is no daemon
    assert (run(mps.start()), run(mps.start_server()), run(mps.is_in_fault())) == (
        "none",
        None,
        False,
    )
    asked = logged(mps).count("Cmd:")
    assert run(mps.is_in_fault()) is False and logged(mps).count("Cmd:") - asked == 1
    node.say(
        mps, f"shutdown_server {node.say(mps, 'get_server_list')} -f"
    )  # another breaks than was seen
    node.joined(mps)
    break_gpu(str(mps.directory.pipe))
    assert run(mps.is_in_fault()) is True


def test_a_daemon_that_is_just_ending_is_waited_for(node: Node) -> None:
    slow, after = node.mps(FAKE_MPS_LINGER_S="0.5"), node.mps()
    run(slow.start())
    assert (
        run(slow.stop(0.0)) == ()
    )  # It answers no more, and holds its lock for another 0.5 s.
    run(after.start())
    assert run(after.is_alive())


def test_a_pipe_directory_beyond_87_characters_is_refused_before_anything_is_made(
    node: Node,
) -> None:
    # "/" before and "/pipe" behind the name are 6 characters of the 87.
    fits, too_long = (
        "d" * (length - 6 - len(str(node.directory))) for length in (87, 88)
    )
    mps = node.mps(place=too_long)
    assert (
        run(mps.why_not())
        == f"{mps.directory.pipe} has 88 characters, MPS takes 87; choose a shorter directory"
    )
    with pytest.raises(NotSupported, match="88 characters"):
        run(mps.start())
    assert not mps.directory.path.exists()
    assert run(node.mps(place=fits).why_not()) == ""


def test_without_the_programs_the_gpu_is_said_to_be_time_sliced(node: Node) -> None:
    empty = node.directory / "bin"
    empty.mkdir()
    mps = Mps(GPU, node.directory / "0", environment={"PATH": str(empty)})
    assert run(mps.why_not())
    with pytest.raises(
        NotSupported,
        match=r"nvidia-cuda-mps-control is not in PATH .*take turns .* NO SM percent",
    ):
        run(mps.start())
    (empty / "nvidia-cuda-mps-control").symlink_to(FAKES / "nvidia-cuda-mps-control")
    assert run(mps.why_not()).startswith("nvidia-cuda-mps-server is not in PATH")


def test_two_gpus_never_share_a_directory(node: Node) -> None:
    first, second, other = (
        node.mps(),
        node.mps(gpu=OTHER_GPU),
        node.mps(gpu=OTHER_GPU, place="1"),
    )
    run(first.start())
    with pytest.raises(NotSupported, match=f"belongs to GPU {GPU}"):
        run(second.start())
    run(other.start())
    assert daemon_pid(other) not in (0, daemon_pid(first))


def test_a_gpu_held_by_another_uids_server_is_refused(node: Node) -> None:
    mps, other_uid = node.mps(), os.getuid() + 1
    run(mps.start())
    run(mps.start_server())
    other = node.mps(MpsSettings(client_uid=other_uid, answer_s=PATIENCE_S))
    assert f"MPS server of UID {os.getuid()} (process" in run(other.why_not())
    with pytest.raises(NotSupported, match=f"clients of UID {other_uid} would wait"):
        run(other.start())


def test_the_share_stands_in_the_clients_environment_alone(node: Node) -> None:
    mps = node.mps()
    assert mps.client_environment(100.0 / 3.0, 1000.5, True) == {
        "CUDA_VISIBLE_DEVICES": GPU,
        "CUDA_MPS_PIPE_DIRECTORY": f"{node.directory}/0/pipe",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "33.3334",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1001M",
        "CUDA_MPS_CLIENT_PRIORITY": "1",
    }
    assert (
        mps.client_environment(40.0, 12288.0, False)["CUDA_MPS_CLIENT_PRIORITY"] == "0"
    )
    run(mps.start())
    node.joined(mps, 20.0)
    assert (
        node.client(mps, 80.0).hear()["sms"] == 104
    )  # 105.6: 52 steps of 2; the first one's 20 % is its own.


@pytest.mark.parametrize(
    ("release", "meanwhile", "then"),
    [
        ("550", "initializing", "active"),
        pytest.param("535", *2 * ("unknown",), marks=pytest.mark.thorough),
    ],
)
def test_a_server_is_waited_for_until_it_takes_clients(
    node: Node, release: str, meanwhile: str, then: str
) -> None:
    path = node.with_server(
        'while [ ! -e "$0.go" ]; do sleep 0.05; done; echo ready; exec cat >/dev/null'
    )
    mps = node.mps(PATH=path, FAKE_MPS_RELEASE=release)
    run(mps.start())

    async def start_and_look() -> None:
        starting = asyncio.create_task(mps.start_server())
        await asyncio.to_thread(
            until, lambda: logged(mps).count("Cmd:get_server_status") >= 2
        )
        assert await mps.server_state() == meanwhile
        assert not starting.done()
        (node.directory / "bin" / "nvidia-cuda-mps-server.go").touch()
        await starting

    run(start_and_look())
    assert run(mps.server_state()) == then
    assert "Ready" in logged(mps)


@RELEASES
def test_a_server_that_cannot_start_is_told_with_what_the_log_says(
    node: Node, release: str
) -> None:
    path = node.with_server("exit 1")
    mps = node.mps(IMPATIENT, PATH=path, FAKE_MPS_RELEASE=release)
    node.started(PATH=path, FAKE_MPS_RELEASE=release)
    # Where the machine is busy, the log may say why only later.
    with pytest.raises(LaunchFailed):
        run(mps.start_server())
    until(lambda: "exited with status" in logged(mps))
    with pytest.raises(
        LaunchFailed, match=r"nvidia-cuda-mps-server cannot start.*libcuda\.so\.1"
    ):
        run(mps.start_server())


def test_only_the_answer_0_means_terminated(node: Node) -> None:
    mps = node.started(FAKE_MPS_TERMINATE="999")
    client = node.joined(mps)
    assert not run(mps.terminate(client.pid))
    with pytest.raises(
        UnknownPart, match=rf"process 1 is no MPS client .* \[{client.pid}\]"
    ):
        run(mps.terminate(1))


def test_after_a_fault_every_client_must_end_before_the_gpu_takes_new_ones(
    node: Node,
) -> None:
    mps, hasty = node.mps(), node.mps(IMPATIENT)
    run(mps.start())
    clients = [node.joined(mps), node.joined(mps)]
    break_gpu(str(mps.directory.pipe))
    assert [client.hear() for client in clients] == [{"error": 719}, {"error": 719}]
    assert run(mps.server_state()) == "fault"
    assert node.client(mps).hear() == {"error": 807}
    clients[0].kill()
    until(lambda: run(mps.client_pids()) == (clients[1].pid,))
    with pytest.raises(
        DeviceError, match=rf"stays in FAULT while clients \[{clients[1].pid}\] live"
    ):
        run(hasty.recover())
    clients[1].kill()
    run(mps.recover())
    assert run(mps.server_state()) == "active"
    assert node.client(mps).hear()["sms"] == 52


@RELEASES
def test_a_server_that_stays_broken_is_replaced(node: Node, release: str) -> None:
    """Release 535 does not tell FAULT, so there every recovery takes a fresh server."""
    soon = MpsSettings(
        answer_s=PATIENCE_S, start_s=PATIENCE_S, recover_s=0.5, poll_s=0.1
    )
    mps = node.mps(soon, FAKE_MPS_RELEASE=release)
    node.started(FAKE_MPS_RELEASE=release)
    client = node.joined(mps)
    broken = node.say(mps, "get_server_list")
    break_gpu(str(mps.directory.pipe), stays=True)
    assert run(mps.server_state()) == ("fault" if release == "550" else "unknown")
    client.kill()
    until(lambda: not run(mps.client_pids()))
    run(mps.recover())
    assert node.client(mps).hear()["sms"] == 52
    assert node.say(mps, "get_server_list") != broken


def test_stop_waits_for_clients_and_ends_the_daemon_last(node: Node) -> None:
    mps = node.started()
    client = node.joined(mps)

    async def stop_while_it_drains() -> tuple[int, ...]:
        stopping = asyncio.create_task(mps.stop(PATIENCE_S))
        await asyncio.to_thread(
            until, lambda: logged(mps).count("Cmd:get_client_list") >= 3
        )  # It waits.
        assert await mps.is_alive()
        await asyncio.to_thread(client.go)
        return await stopping

    assert run(stop_while_it_drains()) == ()
    assert not run(mps.is_alive())
    assert "terminate_client" not in logged(mps)
    assert run(mps.stop(0.0)) == ()


def test_stop_terminates_clients_that_do_not_leave_before_it_quits(node: Node) -> None:
    mps = node.started()
    client = node.joined(mps)
    assert run(mps.stop(0.0)) == (client.pid,)
    assert client.hear() == {"error": 810}
    log = logged(mps)
    assert 0 < log.index("Cmd:terminate_client") < log.index("Cmd:quit -t 1")
    assert not run(mps.is_alive())


def test_stop_leaves_the_daemon_to_a_client_that_cannot_be_terminated(
    node: Node,
) -> None:
    mps = node.started(FAKE_MPS_TERMINATE="999")
    client = node.joined(mps)
    with pytest.raises(DeviceError, match=rf"clients \[{client.pid}\] .* left running"):
        run(mps.stop(0.0))
    assert run(mps.is_alive())
    assert client.process.poll() is None


@pytest.mark.thorough
def test_a_daemon_that_takes_too_long_to_quit_is_told(node: Node) -> None:
    node.started(FAKE_MPS_QUIT_S="600")
    mps = node.mps(MpsSettings(quit_s=0.5, answer_s=6.0))
    with pytest.raises(DeviceError, match=r"no answer to 'quit -t 1' in 6\.5 s"):
        run(mps.stop(0.0))


def test_a_daemon_that_hangs_is_told_and_not_waited_for(node: Node) -> None:
    node.started()
    mps = node.mps(MpsSettings(answer_s=0.5))
    os.kill(daemon_pid(mps), signal.SIGSTOP)
    with pytest.raises(
        DeviceError,
        match=r"no answer to 'get_default_active_thread_percentage' in 0\.5 s",
    ):
        run(mps.is_alive())
    assert "hangs" in run(mps.why_not())


def test_a_log_that_grew_too_long_is_cut_and_goes_on(node: Node) -> None:
    # 0.01 MiB are 10,485 bytes.
    mps = node.mps(
        MpsSettings(log_limit_mib=0.01, answer_s=PATIENCE_S, start_s=PATIENCE_S)
    )
    run(mps.start())
    path = mps.directory.log / "control.log"
    begun = path.read_bytes()
    with path.open("ab") as file:
        file.write(b"more\n" * 2000)
    run(mps.server_state())
    assert path.stat().st_size == 0
    kept = (mps.directory.log / "control.log.old").read_bytes()
    assert kept.startswith(begun)
    assert kept.rstrip().endswith(b"Cmd:get_server_list")
    node.say(mps, "foo")
    assert "Cmd:foo" in logged(mps)


def test_a_directory_that_cannot_be_written_and_a_daemon_that_is_not_there_are_told(
    node: Node,
) -> None:
    blocker = node.directory / "0"
    blocker.write_text("a file")
    mps = node.mps()
    assert f"cannot write to {blocker}" in run(mps.why_not())
    assert not run(mps.is_alive())
    with pytest.raises(DeviceError, match="no MPS daemon answered 'get_server_list'"):
        run(mps.client_pids())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_daemon_of_another_user_is_not_adopted_unless_the_replicas_are_that_users(
    node: Node,
) -> None:
    mps, theirs = (
        node.mps(),
        node.mps(MpsSettings(client_uid=4711, answer_s=PATIENCE_S)),
    )
    run(mps.start())
    os.chown(mps.directory.pipe / "control", 4711, 4711)
    why_not = f"the daemon in {mps.directory.path} is UID 4711's; this agent is 0, its replicas are 0"
    assert run(mps.why_not()) == why_not
    assert run(theirs.why_not()) == ""
