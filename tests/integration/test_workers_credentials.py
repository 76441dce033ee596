"""Workers hold none of the agent's credentials: a real agent starts real programs, which try to take them."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agents.router.haproxy.supervised import PLACES
from agents.sync.ledger import Ledger
from tests.agents.factories import a_replica, a_task
from tests.agents.fakes.nvml.fixtures import library
from tests.agents.gpu_nodes import environment
from tests.integration.test_gpu_agent import (
    Machine,
    a_command,
    workers_ports,
)
from tests.ports import a_free_port
from tests.waiting import until

pytestmark = pytest.mark.integration

__all__ = ("library", "workers_ports")

NOBODY = "nobody"
PROBE = """\
id -u
tr '\\\\0' '\\\\n' < /proc/$PPID/environ && echo took the environment
cat /proc/$PPID/maps > /dev/null && echo took the memory
ls {state} && echo took the list
cat {state}/command.json {state}/ledger.key && echo took the ledger
cat {state}/../agent.token && echo took the file
env
echo kept > {{directory}}/kept && echo wrote
echo done
exec sleep 60
"""
TEMPLATES = """\
default = "probe"
tasks = {{default = "probe-task"}}
[templates.probe]
command = ["/bin/sh", "{{directory}}/probe.sh", "{{port}}"]
files = {{"probe.sh" = '''{probe}'''}}
start_limit_s = 3600
drain_limit_s = 1
[templates.probe-task]
server = "task"
command = ["/bin/sh", "{{directory}}/probe.sh"]
files = {{"probe.sh" = '''{probe}'''}}
drain_limit_s = 1
"""


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that other users can get to, which pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="worker-user", dir="/tmp") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def only_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may run replicas as another user")


def machine(directory: Path, library: Path, *options: str) -> Machine:
    """A node whose agent runs workers as NOBODY, and needs no control plane: it goes on with its last command."""
    return Machine(
        directory=directory,
        library=library,
        url="http://127.0.0.1:9",
        options=("--worker-user", NOBODY, *options),
    )


def probed(node: Machine) -> dict[str, str]:
    """What each probe printed, by the kind of what it ran as, as far as it is done."""
    logs = {
        kind: log.read_text(errors="replace")
        for kind in ("workers", "tasks")
        for log in (node.state / kind / "logs").glob("*.log")
    }
    return {kind: text for kind, text in logs.items() if "\ndone\n" in text}


@pytest.mark.skipif(
    shutil.which("haproxy", path=PLACES) is None, reason="haproxy is not installed"
)
def test_workers_as_another_user_can_neither_end_nor_read_haproxy(
    reachable: Path, library: Path
) -> None:
    only_root()
    router = ("--router", "haproxy", "--router-port", str(a_free_port()))
    node = machine(reachable, library, "--sharing", "turns", *router)
    haproxy = node.state / "haproxy"
    node.start(keeps=False)
    try:
        until((haproxy / "haproxy.sock").is_socket)
        record = json.loads((haproxy / "haproxy.json").read_text())
        pid = record["identity"]["pid"]
        # It opens its port as root, and becomes another user then.
        until(lambda: Path(f"/proc/{pid}").stat().st_uid != 0)
        probe = (
            f"kill -0 {pid} && echo took the process; cat /proc/{pid}/environ && echo took the environment; "
            f"cat /proc/{pid}/maps && echo took the memory; cat {haproxy}/haproxy.cfg && echo took the file; echo done"
        )
        said = subprocess.run(
            ["/bin/sh", "-c", probe],
            user=NOBODY,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    finally:
        node.end(signal.SIGTERM)
    assert said == "done\n"


def test_workers_as_another_user_can_read_nothing_of_the_agents(
    reachable: Path, library: Path
) -> None:
    only_root()
    node = machine(reachable, library, "--sharing", "turns")
    probe = PROBE.format(state=node.state)
    (reachable / "templates.toml").write_text(TEMPLATES.format(probe=probe))
    Ledger(node.state).accept(a_command(1, a_replica(), tasks=(a_task(),)))
    node.start(keeps=False)
    try:
        until(lambda: len(probed(node)) == 2)
    finally:
        node.end(signal.SIGTERM)
    for said in probed(node).values():
        assert said.startswith(f"{pwd.getpwnam(NOBODY).pw_uid}\n")
        assert "took" not in said
        assert said.count("ermission denied") == 6
        assert "\nwrote\n" in said
        assert "\nHOME=/nonexistent\n" in said


def test_workers_of_projects_with_users_of_their_own_can_take_nothing_from_each_other(
    reachable: Path, library: Path
) -> None:
    only_root()
    users = {"r1": "daemon", "r2": NOBODY, "t1": "bin"}
    own = ("--worker-user-for", "team-a=daemon", "--worker-user-for", "team-b=bin")
    node = machine(reachable, library, "--sharing", "turns", *own)
    probe = "umask 0; echo secret > {directory}/kept; exec sleep 60"
    (reachable / "templates.toml").write_text(TEMPLATES.format(probe=probe))
    replicas = (
        a_replica("r1", project="team-a", sm_percent=30.0),
        a_replica("r2", project="team-c", sm_percent=30.0),
    )
    task = a_task("t1", project="team-b")
    Ledger(node.state).accept(a_command(1, *replicas, tasks=(task,)))
    node.start(keeps=False)
    try:
        until(lambda: set(kept_by(node)) == set(users))
        for name, (pid, folder) in kept_by(node).items():
            for other in users.values():
                taken = taken_from(pid, folder, other)
                assert taken == (["all"] if other == users[name] else [])
    finally:
        node.end(signal.SIGTERM)


def kept_by(node: Machine) -> dict[str, tuple[int, Path]]:
    """Process and folder of each replica and task that has written its file, by name."""
    found = {}
    for kind in ("workers", "tasks"):
        for path in (node.state / kind / "records").glob("*.json"):
            record = json.loads(path.read_text())
            folder = node.directory / "state-workers" / kind / path.stem
            if (folder / "kept").exists():
                found[record["id"]] = (record["identity"]["pid"], folder)
    return found


def taken_from(pid: int, folder: Path, user: str) -> list[str]:
    """What that user can take from a worker: "all", or what of it."""
    ways = {
        "process": f"kill -0 {pid}",
        "environment": f"cat /proc/{pid}/environ",
        "memory": f"cat /proc/{pid}/maps",
        "file": f"cat {folder}/kept",
    }
    script = "; ".join(
        f"{way} > /dev/null && echo {name}" for name, way in ways.items()
    )
    found = subprocess.run(
        ["/bin/sh", "-c", script],
        user=user,
        group=pwd.getpwnam(user).pw_gid,
        extra_groups=(),
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    return ["all"] if found == list(ways) else found


AGENT_OF_NOBODY = """
import ctypes, os, subprocess, sys
import agents.daemon.build
from agents.main import main
if os.geteuid() == 0:
    os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
# As after an exec by that user, who may not reach Python here: becoming it has closed the process already.
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
asked = subprocess.run(["cat", f"/proc/{os.getpid()}/environ"], capture_output=True, cwd="/")
assert b"MARK=seen" in asked.stdout
sys.exit(main())
"""


def test_processes_of_the_agents_own_user_cannot_read_its_environment(
    reachable: Path,
) -> None:
    (reachable / "agent.token").write_text("token")
    # Nothing writes the authorities that the agent waits for: it stays where it opens no device yet.
    authorities = reachable / "ca.pem"
    os.mkfifo(authorities)
    authorities.chmod(0o644)
    words = "--url https://127.0.0.1:9 --node n1 --device fake --gpu-type V100-32GB"
    files = f"--token-file {reachable}/agent.token --ca-file {authorities}"
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT_OF_NOBODY, *words.split(), *files.split()],
        env={**environment(), "MARK": "seen"},
    )
    try:
        held = opened_by_its_reader(authorities)
        assert agent.poll() is None
        nobody = 65534 if os.geteuid() == 0 else None
        asked = subprocess.run(
            ["cat", f"/proc/{agent.pid}/environ"],
            user=nobody,
            # A process with another group could not read it anyway.
            group=nobody,
            extra_groups=None if nobody is None else (),
            capture_output=True,
            text=True,
            check=False,
        )
        # Without its memory, as after its end, no one could read it either.
        assert agent.poll() is None
        os.close(held)
    finally:
        agent.kill()
        agent.wait()
    assert (asked.stdout, "ermission denied" in asked.stderr) == ("", True)


def opened_by_its_reader(fifo: Path) -> int:
    """Its other end, as soon as a process has opened it to read from it."""
    opened: list[int] = []

    def is_open() -> bool:
        # That is how it answers while nothing reads.
        with suppress(OSError):
            opened.append(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        return bool(opened)

    until(is_open)
    return opened[0]


@pytest.mark.thorough
def test_a_replica_that_runs_as_another_user_than_its_projects_is_replaced(
    reachable: Path, library: Path
) -> None:
    only_root()
    node = machine(reachable, library, "--sharing", "turns")
    probe = "echo secret > {directory}/kept; exec sleep 600"
    (reachable / "templates.toml").write_text(TEMPLATES.format(probe=probe))
    replica = a_replica("r1", project="team-a")
    task = a_task("t1", project="team-b")
    Ledger(node.state).accept(a_command(1, replica, tasks=(task,)))
    node.start()
    try:
        until(lambda: len(kept_by(node)) == 2)
        before = kept_by(node)
        node.end(signal.SIGTERM)
        node.options += ("--worker-user-for", "team-a=daemon")
        node.start()
        until(lambda: kept_by(node).get("r1", before["r1"]) != before["r1"])
        after = kept_by(node)
        assert Path(f"/proc/{after['r1'][0]}").stat().st_uid == uid_of("daemon")
        # Nothing changed for its project.
        assert after["t1"] == before["t1"]
        # And back, when no project has a user of its own any more.
        node.end(signal.SIGTERM)
        node.options = node.options[:-2]
        node.start(keeps=False)
        until(lambda: kept_by(node).get("r1", after["r1"]) != after["r1"])
        last = kept_by(node)
        assert Path(f"/proc/{last['r1'][0]}").stat().st_uid == uid_of("nobody")
        assert last["t1"] == before["t1"]
    finally:
        node.end(signal.SIGTERM)


def uid_of(name: str) -> int:
    return pwd.getpwnam(name).pw_uid
