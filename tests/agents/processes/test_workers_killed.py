"""Killing the agent at random moments: its workers are neither orphaned nor doubled, whatever agent comes next."""

import functools
import os
import pickle
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agents.base.device import LaunchFailed
from agents.processes.launch import Launch
from agents.processes.procfs import MARK, boot_id, marks, members
from agents.processes.records import Identity
from agents.replicas.replicas import Workers, WorkersSettings
from tests.agents.factories import a_replica
from tests.agents.fakes.supervisor import find_launcher, make_templates
from tests.agents.kubernetes.cluster import Cluster, until_no_pods
from tests.ports import PORTS, own_ports
from tests.waiting import PATIENCE_S, eventually, run, until

pytestmark = pytest.mark.integration

FAKES = Path(__file__).parents[1] / "fakes"
KILLS = 2
SEEDS = 100
GROUP = 5
FAR = 1000
"""Between the seeds of two supervisors of one directory."""
LONGEST_S = 0.15
"""From the start of an agent until it is killed."""


@pytest.fixture(scope="module")
def supervisors() -> Iterator["subprocess.Popen[str]"]:
    """The process that forks supervisors."""
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, str(FAKES / "supervisor.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "there\n"
        yield process
        process.kill()


def supervise_and_kill(
    process: "subprocess.Popen[str]",
    directory: Path,
    *cluster_file: Path,
    seed: int,
    wait: Callable[[], None],
) -> None:
    assert process.stdin is not None and process.stdout is not None
    given = (directory, seed, first_port(seed % FAR), *cluster_file)
    process.stdin.write(" ".join(map(str, given)) + "\n")
    process.stdin.flush()
    pid = int(process.stdout.readline())
    handle = os.pidfd_open(pid)
    try:
        wait()
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        assert select.select([handle], [], [], PATIENCE_S)[0], (
            f"supervisor {pid} outlives SIGKILL"
        )
    finally:
        os.close(handle)


@functools.cache
def first_port(seed: int) -> int:
    """Each seed has ports of its own, so that none meets another's leftovers unseen."""
    return own_ports()


def carriers(mark: str) -> int:
    """Processes that carry a mark of this directory."""
    return sum(len(members(each)) for each in marks(mark))


async def take_over(directory: Path, seed: int, *cluster_file: Path) -> int:
    """How many replicas the next agent adopted; checks that these are all there is, each once."""
    settings = WorkersSettings(
        directory=directory, first_port=first_port(seed), port_count=PORTS
    )
    launcher = find_launcher(*map(str, cluster_file))
    await launcher.open()
    workers = Workers(settings, templates=make_templates(), launcher=launcher)
    await workers.open()
    mark = (directory / "mark").read_text()
    try:
        there = workers.replicas()
        adopted = [each for each in there if each.state != "failed"]
        assert workers.problems == (), f"seed {seed}"
        assert len({each.id for each in there}) == len(there) <= 3, f"seed {seed}"
        # A child whose agent died before its record was complete leaves by itself, so it may need a moment.
        await eventually(
            lambda: carriers(mark) <= len(adopted),
            f"seed {seed}: orphans besides {adopted}",
        )
        for each in adopted:
            with pytest.raises(LaunchFailed, match="there already"):
                await workers.start(Launch(replica=a_replica(each.id), gpu_index=0))
        alive = {each.id for each in workers.replicas() if each.state != "failed"}
        await eventually(
            lambda: all(
                each.state in ("ready", "failed") for each in workers.replicas()
            ),
            f"seed {seed}: {alive}",
        )
    finally:
        await workers.close(keep=False)
        await launcher.close()
    assert carriers(mark) == 0, (
        f"seed {seed}: something outlives the end of all replicas"
    )
    assert list((directory / "records").iterdir()) == [], f"seed {seed}"
    return len(adopted)


ALL = pytest.mark.thorough


@pytest.mark.parametrize(
    ("cluster", "group"),
    [
        pytest.param(launcher, group, marks=[ALL] if group else [])
        for launcher in ("processes", "pods")
        for group in range(SEEDS // GROUP)
    ],
    indirect=["cluster"],
)
def test_killed_agents_leave_no_orphan_and_no_double(
    group: int,
    supervisors: "subprocess.Popen[str]",
    tmp_path: Path,
    cluster: Cluster | None,
) -> None:
    cluster_file: tuple[Path, ...] = ()
    if cluster is not None:
        cluster_file = (tmp_path / "cluster.json",)
        cluster_file[0].write_bytes(pickle.dumps((cluster.address, cluster.settings)))

    def killed_and_adopted(seed: int, *, waits: bool) -> int:
        """Replicas that the last agent found, after those before it were killed at a moment that the seed chose.

        Or, where each one waits, as soon as it has a replica.
        """
        directory, moment = tmp_path / f"{waits}-{seed}", random.Random(seed)
        directory.mkdir()

        def has_one() -> bool:
            mark, records = directory / "mark", directory / "records"
            return any(records.glob("*.json")) and carriers(mark.read_text()) > 0

        def wait() -> None:
            if waits:
                until(has_one)
            else:
                time.sleep(moment.uniform(0.0, LONGEST_S))

        for kill in range(KILLS):
            supervise_and_kill(
                supervisors,
                directory,
                *cluster_file,
                seed=seed + FAR * kill,
                wait=wait,
            )
        if not (directory / "mark").exists():
            return 0
        return run(take_over(directory, seed, *cluster_file))

    seeds = range(group * GROUP, (group + 1) * GROUP)
    adopted = sum(killed_and_adopted(seed, waits=False) for seed in seeds)
    # On a busy machine nothing may have been started when they were killed.
    adopted = adopted or sum(killed_and_adopted(seed, waits=True) for seed in seeds)
    if cluster is not None:
        run(until_no_pods(cluster))
    assert adopted > 0, (
        "no agent of this group was killed while it had a replica: the test shows nothing"
    )


def test_the_mark_is_in_the_environment_of_whom_we_look_for() -> None:
    """Otherwise the test above would find no orphan, whatever happened."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        env={MARK: "abc.1"},
        start_new_session=True,
    ) as process:
        until(lambda: carriers("abc.") > 0)
        assert carriers("abc.") == 1 and members("abc.1") == (process.pid,)
    assert carriers("abc.") == 0


def test_strangers_are_never_among_those_to_be_killed() -> None:
    """As root every process could be killed, so none may be found by an unknown mark or an impossible leader."""
    assert members("nobody") == ()
    assert members("") == ()
    for pid in (0, 1, os.getsid(0), 2**22 - 1):
        assert members("nobody", Identity(pid=pid, start_ticks=0, boot="another")) == ()


def test_the_session_of_a_number_that_was_given_again_is_not_ours() -> None:
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        ours = Identity(
            pid=process.pid, start_ticks=start_ticks(process.pid), boot=boot_id()
        )
        assert members("nobody", ours) == (process.pid,)
        assert members("nobody", replace(ours, start_ticks=ours.start_ticks + 1)) == ()


def start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat; the name, field 2, is `(python)` or the like, without blanks."""
    return int(Path(f"/proc/{pid}/stat").read_text().split()[21])
