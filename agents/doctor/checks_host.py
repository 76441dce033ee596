"""What the facts of a machine mean for an agent there: rights, directories, programs, ports and who starts it again.

Functions of facts alone, as in `checks_gpu` and `checks_plane`: findings out, nothing asked. Remedies name what to do,
or that nothing can be done.
"""

import re
import shlex
from collections.abc import Iterator, Mapping

from agents.base.plurals import counted
from agents.doctor.types import (
    CAP_SYS_ADMIN,
    INSTALL,
    Asked,
    Here,
    Level,
    NodeFinding,
    PortFacts,
    ProcessFacts,
    SharedMemoryFacts,
    StateFacts,
    SystemdFacts,
    TemplateFacts,
)
from agents.processes.templates import BUILT_IN, BUILT_IN_ENGINE, BUILT_IN_TASK
from agents.processes.user import WorkerUser

MIN_PYTHON = (3, 11)
OPEN_FILES = 16384
"""NVIDIA's guide to MPS asks for as many; below, its daemon may fail to make shared memory for its clients."""
MIN_FREE_MIB, GOOD_FREE_MIB = 64.0, 1024.0
"""Free room in the state directory: logs of replicas are cut, cores and downloads next to them are not."""
GOOD_SHARED_MIB = 1024.0
MIN_FREE_PORTS = 64
"""A node of eight GPUs with eight replicas each."""


def check_process(facts: ProcessFacts, here: Here) -> Iterator[NodeFinding]:
    """Python and package, user and rights, open files."""
    # Compared as numbers, since "3.9" is above "3.11" as text.
    found = tuple(int(part) for part in re.findall(r"\d+", here.python)[:2])
    package = f"plimsoll {here.package}" if here.package else "plimsoll from its source"
    if found >= MIN_PYTHON:
        yield NodeFinding(
            check="python", level="pass", words=f"{here.python}, {package}"
        )
    else:
        yield NodeFinding(
            check="python",
            level="fail",
            words=f"{here.python}, {package}",
            remedy="use 3.11 or newer",
        )
    rights = "CAP_SYS_ADMIN" if facts.effective & CAP_SYS_ADMIN else "no CAP_SYS_ADMIN"
    who = f"{facts.user} (UID {facts.uid}), {rights}"
    # Ambient rights pass to every program that is started, so replicas would have them as well.
    if facts.ambient & CAP_SYS_ADMIN:
        remedy = f"only where clocks or power limits are worth it: {INSTALL}, Clocks and power limits"
        words = f"{who}, which every replica inherits"
        yield NodeFinding(check="user", level="warn", words=words, remedy=remedy)
    else:
        yield NodeFinding(check="user", level="pass", words=who)
    if here.open_files >= OPEN_FILES:
        yield NodeFinding(check="open files", level="pass", words=f"{here.open_files}")
    else:
        remedy = f"`ulimit -n {OPEN_FILES}`, or LimitNOFILE={OPEN_FILES} in the unit"
        words = f"{here.open_files}, MPS wants {OPEN_FILES}"
        yield NodeFinding(check="open files", level="warn", words=words, remedy=remedy)


def check_worker_user(user: WorkerUser | None, asked: Asked) -> Iterator[NodeFinding]:
    """Who replicas would run as; nothing where the agent's own user was asked for."""
    check = "replicas' user"
    if user is not None:
        yield NodeFinding(
            check=check, level="pass", words=f"{user.name} (UID {user.uid})"
        )
    elif not asked.worker_user:
        yield NodeFinding(
            check=check,
            level="warn",
            words="the agent's own, so replicas can read its token file",
            remedy=f"{INSTALL}, Users; or leave it as it is",
        )


def check_project_users(users: Mapping[str, WorkerUser]) -> Iterator[NodeFinding]:
    """Who the replicas of projects with users of their own would run as; nothing where there are none."""
    for project, user in users.items():
        words = f"{project} as {user.name} (UID {user.uid})"
        yield NodeFinding(check="projects' users", level="pass", words=words)


def check_state(facts: StateFacts, process: ProcessFacts) -> Iterator[NodeFinding]:
    """The state directory, an agent that has it, knobs and workers of one that is gone."""
    yield _check_directory(facts, process)
    if facts.is_closed:
        yield NodeFinding(
            check="agent",
            level="skip",
            words="agent, knobs and workers: the directory is closed to this user",
        )
        return
    held = (
        "an agent is using this directory"
        if facts.is_held
        else "no agent is using this directory"
    )
    yield NodeFinding(check="agent", level="pass", words=held)
    yield _check_knobs(facts)
    yield _check_workers(facts)
    if facts.damaged:
        remedy = "nothing; the agent continues with the rest and reports it"
        yield NodeFinding(
            check="state files",
            level="warn",
            words="; ".join(facts.damaged[:3]),
            remedy=remedy,
        )


def _check_directory(facts: StateFacts, process: ProcessFacts) -> NodeFinding:
    free = f"{facts.free_mib:,.0f} MiB free"
    if facts.problem:
        remedy = f"give it to the agent's user, or run this as that user (UID {facts.owner_uid})"
        return NodeFinding(
            check="state dir", level="fail", words=facts.problem, remedy=remedy
        )
    if facts.free_mib < MIN_FREE_MIB:
        words = f"{facts.path}, {free}: the agent must be able to write"
        return NodeFinding(
            check="state dir", level="fail", words=words, remedy="make room"
        )
    # Rights depend on the user: what this one finds out need not hold for the agent.
    if facts.exists and facts.owner_uid != process.uid:
        words = (
            f"{facts.path} is of UID {facts.owner_uid}, and this runs as {process.uid}"
        )
        remedy = f"run this as the agent's user: sudo -u '#{facts.owner_uid}' plimsoll-agent doctor ..."
        return NodeFinding(check="state dir", level="warn", words=words, remedy=remedy)
    if facts.free_mib < GOOD_FREE_MIB:
        return NodeFinding(
            check="state dir",
            level="warn",
            words=f"{facts.path}, {free}",
            remedy="make room for logs",
        )
    made = "" if facts.exists else ", which will be made"
    return NodeFinding(
        check="state dir", level="pass", words=f"{facts.path}{made}, {free}"
    )


def _check_knobs(facts: StateFacts) -> NodeFinding:
    now = [
        f"{each.knob} of {each.gpu_uuid}"
        for each in facts.turned
        if each.is_of_this_boot
    ]
    # A knob that an agent has turned is as it should be for as long as the agent is there.
    if now and facts.is_held:
        return NodeFinding(
            check="knobs", level="pass", words=f"turned by the agent: {', '.join(now)}"
        )
    if now:
        remedy = f"plimsoll-agent restore --state-dir {shlex.quote(str(facts.path))}"
        words = f"left turned by an agent that is gone: {', '.join(now)}"
        return NodeFinding(check="knobs", level="warn", words=words, remedy=remedy)
    if facts.turned:
        words = (
            f"{len(facts.turned)} in the journal, cleared by the restart of the machine"
        )
        return NodeFinding(check="knobs", level="pass", words=words)
    return NodeFinding(check="knobs", level="pass", words="none is turned")


def _check_workers(facts: StateFacts) -> NodeFinding:
    if not facts.running and not facts.ended:
        return NodeFinding(check="workers", level="pass", words="no record")
    words = (
        f"{counted(len(facts.running), 'replica')} running, {len(facts.ended)} ended"
    )
    # Replicas may outlive their agent on purpose (--keep-replicas), but then nothing watches them.
    if facts.is_held or not facts.running:
        return NodeFinding(check="workers", level="pass", words=words)
    # Three are enough to recognise them; a node may run hundreds.
    names = ", ".join(facts.running[:3]) + (" ..." if len(facts.running) > 3 else "")
    words = f"{words}, without an agent: {names}"
    remedy = "start the agent: it keeps the planned ones and ends the others"
    return NodeFinding(check="workers", level="warn", words=words, remedy=remedy)


def check_templates(facts: TemplateFacts) -> Iterator[NodeFinding]:
    """The allow-list of programs, and those that are not on this machine."""
    if facts.problem:
        words = f"{facts.problem}; the agent does not start with this"
        yield NodeFinding(
            check="templates",
            level="fail",
            words=words,
            remedy="docs/runtimes.md has the keys",
        )
        return
    names = [name for name, _, _ in facts.programs]
    if set(names) <= {BUILT_IN, BUILT_IN_ENGINE, BUILT_IN_TASK}:
        words = "only the built-in ones, whose timed engine computes nothing on the GPU"
        remedy = "write a file (docs/runtimes.md) and pass it with --templates"
        yield NodeFinding(check="templates", level="warn", words=words, remedy=remedy)
    else:
        yield NodeFinding(check="templates", level="pass", words=", ".join(names))
    for name, program, is_found in facts.programs:
        if not is_found:
            words = f"{name} runs {program}, which is not found"
            remedy = "install it, give its full path, or remove the template"
            yield NodeFinding(
                check="templates", level="fail", words=words, remedy=remedy
            )


def check_ports(facts: PortFacts, *, is_agent_there: bool) -> Iterator[NodeFinding]:
    """Ports of the workers and of the router."""
    words = f"{facts.free} of the {facts.count} from {facts.first} on are free"
    level: Level = (
        "pass" if facts.free >= MIN_FREE_PORTS else "warn" if facts.free else "fail"
    )
    remedy = "" if level == "pass" else "find who listens there: `ss -tlnp`"
    yield NodeFinding(check="worker ports", level=level, words=words, remedy=remedy)
    if not facts.router_port:
        return
    # A port that the agent itself holds is as it should be.
    if facts.is_router_port_free or is_agent_there:
        words = (
            "free"
            if facts.is_router_port_free
            else "taken by the running agent, as it should be"
        )
        yield NodeFinding(
            check="router port", level="pass", words=f"{facts.router_port} is {words}"
        )
    else:
        remedy = f"find who has it: `ss -tlnp 'sport = :{facts.router_port}'`"
        yield NodeFinding(
            check="router port",
            level="fail",
            words=f"{facts.router_port} is taken",
            remedy=remedy,
        )


def check_shared_memory(facts: SharedMemoryFacts) -> NodeFinding:
    """/dev/shm."""
    remedy = "mount a tmpfs there; in a container share the host's (--ipc=host)"
    if facts.problem:
        words = f"{facts.problem}; MPS and its clients meet there"
        return NodeFinding(
            check="shared memory", level="fail", words=words, remedy=remedy
        )
    level: Level = "pass" if facts.free_mib >= GOOD_SHARED_MIB else "warn"
    words = f"{facts.free_mib:,.0f} MiB free in /dev/shm"
    return NodeFinding(
        check="shared memory",
        level=level,
        words=words,
        remedy=remedy if level == "warn" else "",
    )


def check_systemd(facts: SystemdFacts) -> NodeFinding:
    """Who starts the agent again, and puts knobs back when it cannot."""
    remedy = f"{INSTALL} has the unit"
    if not facts.is_booted:
        words = "not running here: nothing restarts the agent, or restores clocks and limits after kill -9"
        return NodeFinding(
            check="systemd",
            level="warn",
            words=words,
            remedy="after each end: plimsoll-agent restore",
        )
    if facts.unit is None:
        return NodeFinding(
            check="systemd",
            level="warn",
            words="here, without the agent's unit",
            remedy=remedy,
        )
    if not facts.restores:
        words = f"{facts.unit} does not restore clocks and limits"
        return NodeFinding(check="systemd", level="warn", words=words, remedy=remedy)
    return NodeFinding(check="systemd", level="pass", words=f"{facts.unit}")
