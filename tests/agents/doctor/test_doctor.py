"""The doctor on fake nodes: golden tables, what it finds, that it changes nothing and hangs on nothing."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.doctor.doctor import as_json, exit_code
from agents.doctor.driver import Silent, answer_of
from agents.doctor.facts import ask_control_plane, read_mps
from agents.doctor.types import GpuFacts
from agents.gpu.knobs.journal import KnobJournal
from agents.gpu.mps.lacks import MpsLackKind
from agents.processes.records import Record, Records
from tests.agents.commands import agent
from tests.agents.doctor_nodes import (
    TEMPLATES,
    DoctorNode,
    break_everything,
    doctor_node,
)
from tests.agents.fakes.nvml.fixtures import library
from tests.waiting import PATIENCE_S

__all__ = ("library",)


HEALTHY = """\
pass  python          3.11.9, plimsoll 0.1.0
pass  user            plimsoll-agent (UID 990), CAP_SYS_ADMIN
pass  open files      65536
pass  driver          580.65.06, 2 GPUs
pass  device files    4, open to this user
pass  GPU 0           NVIDIA H100 80GB HBM3, 81920 MiB, GPU-0
pass  GPU 0           has the rights to lock the clock and limit power;
                      --try-writes tests it
pass  GPU 0 modes     compute Default, persistence Enabled
pass  GPU 0 MPS       /node/of-doctor/mps/0/pipe (26 of 87 characters), no
                      daemon yet
pass  GPU 1           NVIDIA H100 80GB HBM3, 81920 MiB, GPU-1
pass  GPU 1           has the rights to lock the clock and limit power;
                      --try-writes tests it
pass  GPU 1 modes     compute Default, persistence Enabled
pass  GPU 1 MPS       /node/of-doctor/mps/1/pipe (26 of 87 characters), no
                      daemon yet
pass  state dir       /node/of-doctor/state, 76,543 MiB free
pass  agent           no agent is using this directory
pass  knobs           none is turned
pass  workers         no record
pass  templates       engine, resnet, trainer, worker
pass  worker ports    100 of the 100 from 20300 on are free
pass  shared memory   76,543 MiB free in /dev/shm
pass  control plane   http://plane:8080 is ready
pass  clock           within 2 s of the control plane's
pass  token           accepted, for node n1
pass  systemd         /node/of-doctor/units/plimsoll-agent.service
24 passed, 0 warned, 0 failed, 0 skipped
"""

BROKEN = """\
pass  python          3.11.9, plimsoll from its source
pass  user            plimsoll-agent (UID 990), no CAP_SYS_ADMIN
warn  open files      1024, MPS wants 16384
      -> `ulimit -n 16384`, or LimitNOFILE=16384 in the unit
pass  driver          580.65.06, 2 GPUs
fail  device files    missing: /node/of-doctor/dev/nvidia-uvm: CUDA cannot start
      -> `sudo nvidia-modprobe -c 0 -u`; the unit does it before each start
pass  GPU 0           NVIDIA H100 80GB HBM3, 81920 MiB, GPU-0
warn  GPU 0           cannot measure SM activity (GPM): there is GPM since
                      Hopper; this GPU does not have it; `busy` says that any
                      kernel ran, not how many SMs did
      -> nothing to do: the GPU does not support it
warn  GPU 0           cannot lock the clock: it needs CAP_SYS_ADMIN; plans leave
                      this GPU at its own clock, and governors cannot slow it
      -> docs/install-agent.md, Clocks and power limits; or leave it as it is
warn  GPU 0           cannot limit power: it needs CAP_SYS_ADMIN; power caps are
                      not enforced on this GPU
      -> docs/install-agent.md, Clocks and power limits; or leave it as it is
fail  GPU 0 modes     compute Prohibited, persistence Disabled: nothing may
                      compute
      -> nvidia-smi -i GPU-0 -c 0
fail  GPU 0 MPS       /node/of-doctor/mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm
                      mmmmmmmmmmmmmmmmmmmmmmmmmmmm/0/pipe has 93 characters, MPS
                      takes 87; choose a shorter directory; SM percents and
                      memory limits would not be in force, replicas take turns
      -> give a short directory by --mps-dir, e.g. /run/plimsoll-agent, or start
         with --sharing turns and no limits
fail  GPU 1           NVIDIA H100 80GB HBM3, 81920 MiB, GPU-1: could not read
                      GPU 1 (GPU-1): the GPU fell off the bus; reset it or
                      restart the machine
      -> drain the node, then reset the GPU or restart the machine
warn  state dir       /node/of-doctor/state, 500 MiB free
      -> make room for logs
pass  agent           no agent is using this directory
warn  knobs           left turned by an agent that is gone: clock_mhz of GPU-0
      -> plimsoll-agent restore --state-dir /node/of-doctor/state
warn  workers         1 replica running, 1 ended, without an agent: chat-1
      -> start the agent: it keeps the planned ones and ends the others
warn  state files     /node/of-doctor/state/knobs.journal, line 2, is damaged
      -> nothing; the agent continues with the rest and reports it
pass  templates       engine, resnet, trainer, worker
fail  templates       resnet runs /opt/none/serve, which is not found
      -> install it, give its full path, or remove the template
pass  worker ports    100 of the 100 from 20300 on are free
fail  shared memory   /node/of-doctor/dev/shm is not a directory; MPS and its
                      clients meet there
      -> mount a tmpfs there; in a container share the host's (--ipc=host)
fail  node name       'Node.example' is not a node name: lower-case letters,
                      digits and -, at most 63
      -> choose another with --node
warn  control plane   http://plane:8080 answers but is not ready: database:
                      no answer within 3 s
      -> `plimsoll doctor` on its machine
fail  clock           90 s behind the control plane's
      -> run chrony or systemd-timesyncd on both machines
fail  token           refused: unknown, revoked or expired
      -> plimsoll token create --scope join --node Node.example Node.example
warn  systemd         not running here: nothing restarts the agent, or restores
                      clocks and limits after kill -9
      -> after each end: plimsoll-agent restore
7 passed, 10 warned, 9 failed, 0 skipped
"""


@pytest.fixture
def node(library: Path) -> Iterator[DoctorNode]:
    with doctor_node(library) as made:
        yield made


@pytest.fixture
def node_as_in_life(library: Path) -> Iterator[DoctorNode]:
    with doctor_node(library, in_a_process=True) as made:
        yield made


def test_a_healthy_node(node_as_in_life: DoctorNode) -> None:
    assert node_as_in_life.shown() == HEALTHY


def test_a_broken_node_is_told_as_a_table_and_as_json(node: DoctorNode) -> None:
    assert exit_code(node.examine()) == 0
    break_everything(node)
    assert node.shown() == BROKEN
    for golden in (HEALTHY, BROKEN):
        lines = golden.splitlines()
        assert max(map(len, lines)) <= 80
        levels = ("pass", "warn", "fail", "skip", "      ")
        assert all(line.startswith(levels) for line in lines[:-1])
    node.fake.fail("nvmlDeviceGetPowerUsage", 15, skip=1, times=2)
    findings = node.examine()
    told = json.loads(as_json(findings))
    assert told["exit_code"] == exit_code(findings) == 1
    assert told["summary"] == BROKEN.splitlines()[-1]
    assert [(each["check"], each["level"]) for each in told["findings"]] == [
        (f.check, f.level) for f in findings
    ]
    assert set(told["findings"][0]) == {"check", "level", "words", "remedy"}


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def test_nothing_is_changed(node: DoctorNode) -> None:
    node.leave_turned()
    node.leave_worker("chat-1", is_running=True)
    before = files(node.state_dir)
    node.examine()
    assert files(node.state_dir) == before
    assert not (node.root / "mps").exists()
    assert node.fake.state.writes == 0


def test_it_may_run_beside_an_agent_whose_knobs_and_workers_are_in_order(
    node: DoctorNode,
) -> None:
    node.leave_turned()
    node.leave_worker("chat-1", is_running=True)
    records = Records(node.state_dir / "workers", Record)
    try:
        assert node.find("agent", "pass").words == "an agent is using this directory"
        assert (
            node.find("knobs", "pass").words
            == "turned by the agent: clock_mhz of GPU-0"
        )
        assert node.find("workers", "pass").words == "1 replica running, 0 ended"
    finally:
        records.close()


def test_a_restart_of_the_machine_has_cleared_the_knobs(node: DoctorNode) -> None:
    node.leave_turned(boot="another")
    assert "cleared by the restart" in node.find("knobs", "pass").words


def test_without_a_driver_or_gpus_the_rest_is_examined_still(node: DoctorNode) -> None:
    node.fake.state.gpu_count = 0
    assert node.find("driver", "fail").words == "580.65.06, without GPUs"
    node.fake.state.is_loaded = 0
    levels = node.levels()
    assert "kernel driver is not loaded" in node.find("driver", "fail").words
    assert not any(check.startswith(("GPU", "device files")) for check in levels)
    assert levels["token"] == levels["templates"] == ["pass"]


def test_rights_are_tried_where_that_is_asked_for(node: DoctorNode) -> None:
    node.ask(tries_writes=True)
    assert node.levels()["GPU 0"] == ["pass", "pass"]
    # One write of each of the two GPUs' power limits, to what it was.
    assert node.fake.state.writes == 2
    assert [node.fake.gpu(at).power_limit for at in range(2)] == [700_000, 700_000]
    node.fake.state.may_write = 0
    found = [
        each.words
        for each in node.examine()
        if (each.check, each.level) == ("GPU 0", "warn")
    ]
    assert [words.partition(":")[0] for words in found] == [
        "cannot lock the clock",
        "cannot limit power",
    ]


@pytest.mark.parametrize("has_agent", [True, False], ids=["an agent", "left knobs"])
def test_rights_are_not_tried_where_that_could_undo_or_keep_a_setting(
    node: DoctorNode, has_agent: bool
) -> None:
    node.ask(tries_writes=True)
    if not has_agent:
        node.leave_turned()
    journal = KnobJournal(node.state_dir) if has_agent else None
    try:
        why = (
            "an agent is running"
            if has_agent
            else "the journal lists clocks or limits that are still changed"
        )
        assert node.find("GPU 0", "skip").words.endswith(f"not tried, {why}")
        assert node.fake.state.writes == 0
    finally:
        if journal is not None:
            journal.close()


def test_a_right_that_replicas_inherit_is_said(node: DoctorNode) -> None:
    node.set_rights(effective=f"{1 << 21:x}", ambient=f"{1 << 21:x}")
    assert "every replica inherits" in node.find("user", "warn").words


def test_without_mps_limits_do_not_hold_and_turns_must_be_asked_for(
    node: DoctorNode,
) -> None:
    node.be(
        environment={**node.here.environment, "PATH": f"{node.root}/bin:/usr/bin:/bin"}
    )
    assert (
        "nvidia-cuda-mps-control is not in PATH" in node.find("GPU 1 MPS", "fail").words
    )
    node.ask(uses_mps=False)
    levels = node.levels()
    assert (levels["MPS"], "GPU 1 MPS" in levels) == (["warn"], False)


def test_ports_that_others_have_are_counted(node: DoctorNode) -> None:
    with socket.socket() as worker, socket.socket() as front:
        worker.bind(("127.0.0.1", 0))
        worker.listen()
        front.bind(("127.0.0.1", 0))
        front.listen()
        node.be(first_port=worker.getsockname()[1], port_count=1)
        node.ask(router_port=front.getsockname()[1])
        assert node.find("worker ports", "fail").words.startswith("0 of the 1 from ")
        assert (
            node.find("router port", "fail").words
            == f"{node.asked.router_port} is taken"
        )
        records = Records(node.state_dir / "workers", Record)
        try:
            assert "by the running agent" in node.find("router port", "pass").words
        finally:
            records.close()
    assert node.levels()["router port"] == ["pass"]


def test_a_template_file_that_the_agent_would_refuse(node: DoctorNode) -> None:
    (node.root / "templates.toml").write_text(TEMPLATES + "nonsense = 1\n")
    assert "unknown ['nonsense']" in node.find("templates", "fail").words
    node.ask(templates=None)
    assert "timed engine" in node.find("templates", "warn").words


def test_a_state_directory_is_made_later_or_cannot_be(node: DoctorNode) -> None:
    node.ask(state_dir=node.root / "a" / "b")
    assert "which will be made" in node.find("state dir", "pass").words
    assert not (node.root / "a").exists()
    node.ask(state_dir=Path("/proc/none"))
    assert "cannot be written" in node.find("state dir", "fail").words


def test_what_is_not_asked_for_is_skipped(node: DoctorNode) -> None:
    node.ask(state_dir=None, mps_dir=None, url="")
    levels = node.levels()
    assert {check for check, found in levels.items() if found == ["skip"]} == {
        "GPU 0 MPS",
        "GPU 1 MPS",
        "state dir",
        "control plane",
    }


def test_a_control_plane_that_is_not_there(node: DoctorNode) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        node.ask(url=f"http://127.0.0.1:{closed.getsockname()[1]}")
        assert "refused" in node.find("control plane", "fail").words


def test_another_server_is_not_taken_for_the_control_plane(node: DoctorNode) -> None:
    node.plane.status = 404
    assert (
        node.find("control plane", "fail").remedy
        == "is this the address of a Plimsoll API?"
    )
    node.ask(token="")
    assert "none was given" in node.find("token", "fail").words


def test_programs_that_hang_are_left_behind(node: DoctorNode) -> None:
    with pytest.raises(Silent, match=r"no answer in 0\.2 s"):
        answer_of(["sleep", "1000"], os.environ, limit_s=0.2)
    with pytest.raises(Silent, match="nvidia-none cannot be run: No such file"):
        answer_of(["nvidia-none"], os.environ, limit_s=0.2)
    with pytest.raises(Silent, match="sh ended with 3: broken"):
        answer_of(
            ["sh", "-c", "echo broken >&2; exit 3"], os.environ, limit_s=PATIENCE_S
        )


def test_a_driver_that_hangs_is_a_failure_within_its_time(node: DoctorNode) -> None:
    node.be(driver_limit_s=0.001)
    assert (
        node.find("driver", "fail").words
        == "asking the driver failed: no answer in 0.001 s"
    )


def test_mps_and_a_control_plane_that_hang_are_failures_within_their_time(
    node: DoctorNode,
) -> None:
    control = node.root / "bin" / "nvidia-cuda-mps-control"
    control.write_text("#!/bin/sh\nexec sleep 1000\n")
    control.chmod(0o755)
    node.be(limit_s=0.6)
    gpu = GpuFacts(index=0, uuid="GPU-0", name="x", memory_mib=1.0)
    lack = read_mps(gpu, node.asked, node.here).lack
    assert lack is not None and lack.kind is MpsLackKind.OTHER
    assert "gave no answer" in lack.detail
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        node.ask(url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert "timed out" in ask_control_plane(node.asked, node.here).problem


def test_a_disk_that_hangs_is_a_failure_of_that_check_alone(node: DoctorNode) -> None:
    release = threading.Event()
    node.be(limit_s=1.0, free_mib=lambda _: float(release.wait(PATIENCE_S)))
    try:
        assert node.find("state dir", "fail").words == "no answer in 1 s"
    finally:
        release.set()


@pytest.fixture
def at_node(node: DoctorNode, monkeypatch: pytest.MonkeyPatch) -> DoctorNode:
    """Commands run as on that node."""
    for name, value in node.here.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(node.root)
    return node


def test_the_command_reads_the_agents_arguments(at_node: DoctorNode) -> None:
    (at_node.root / "token").write_text("plim_right\n")
    given = "--state-dir state --templates templates.toml --mps-dir mps --node n1"
    more = f"--url {at_node.plane.url} --token-file token --gpu-type H100-80GB --json"
    ended = agent("doctor", *given.split(), *more.split())
    told = json.loads(ended.out)
    assert ended.code == told["exit_code"]
    assert {each["words"] for each in told["findings"] if each["level"] == "pass"} >= {
        "NVIDIA H100 80GB HBM3 as H100-80GB, 81920 MiB, GPU-0",
        "accepted, for node n1",
        "engine, resnet, trainer, worker",
    }


@pytest.mark.parametrize(
    "wrong",
    [
        "--nonsense",
        "--try-writes",
        "--url ftp://x",
        "--token-file none",
        "--sharing fairly",
    ],
)
def test_wrong_arguments_are_exit_code_2(at_node: DoctorNode, wrong: str) -> None:
    ended = agent("doctor", *wrong.split())
    assert (ended.code, ended.out) == (2, "")
