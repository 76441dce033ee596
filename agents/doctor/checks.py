"""What the facts of a node mean for an agent there: functions of facts alone, findings out, nothing asked.

The costs of what a GPU does not allow stand in COSTS, the limits beside it. Remedies name what to do, or that nothing
can be done.
"""

import re
import shlex
from collections.abc import Iterator, Mapping

from agents.doctor.types import (
    CAP_SYS_ADMIN,
    Asked,
    ControlPlaneFacts,
    DriverFacts,
    FileFacts,
    GpuFacts,
    Here,
    Level,
    ModeFacts,
    MpsFacts,
    NodeFinding,
    PortFacts,
    ProcessFacts,
    SharedMemoryFacts,
    StateFacts,
    SystemdFacts,
    TemplateFacts,
)
from agents.gpu.mps.directory import MAX_PIPE_PATH
from agents.gpu.nvml.types import Capability
from agents.processes.templates import BUILT_IN, BUILT_IN_TASK

MIN_PYTHON = (3, 11)
OPEN_FILES = 16384
"""NVIDIA's guide to MPS asks for as many; below, its daemon may fail to make shared memory for its clients."""
MIN_FREE_MIB, GOOD_FREE_MIB = 64.0, 1024.0
"""Of the state directory: logs of replicas are cut, cores and downloads beside them are not."""
GOOD_SHARED_MIB = 1024.0
MIN_FREE_PORTS = 64
"""A node of eight GPUs with eight replicas each."""
GOOD_SKEW_S, MAX_SKEW_S = 2.0, 60.0
"""Dates have whole seconds; from 60 s on the control plane reports a wrong clock."""
INSTALL = "docs/install-agent.md"
NODE_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
"""What the control plane takes as the name of a node."""

COSTS: Mapping[Capability, str] = {
    Capability.LOCK_CLOCK: "plans leave this GPU at its own clock, and governors cannot slow it",
    Capability.LIMIT_POWER: "a power cap is not kept on this GPU",
    Capability.COUNT_ENERGY: "energy is estimated from samples of power",
    Capability.PROCESS_USE: "the SM use of each replica is not known",
    Capability.LIST_MPS: "memory of MPS clients is known from their servers only",
    Capability.SM_ACTIVITY: "`busy` says that any kernel ran, not how many SMs did",
    Capability.XID_EVENTS: "a broken GPU is noticed when it stops answering, not before",
    Capability.MIG_LAYOUT: "its slices are not told apart",
    Capability.KEEP_SETTINGS: "an idle driver may drop locked clocks and power limits",
}
"""What a node goes without when a GPU does not allow something."""

NO_MPS = "SM percents and memory limits would not be in force, replicas take turns"


def check_process(facts: ProcessFacts, here: Here) -> Iterator[NodeFinding]:
    """Python and package, user and rights, open files."""
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


def check_driver(facts: DriverFacts) -> NodeFinding:
    """Driver, library and whether there are GPUs."""
    if facts.problem:
        remedy = "install NVIDIA's driver, or look at `nvidia-smi` and the kernel's log"
        return NodeFinding(
            check="driver", level="fail", words=facts.problem, remedy=remedy
        )
    if not facts.gpus:
        words = f"{facts.version}, without GPUs"
        return NodeFinding(
            check="driver",
            level="fail",
            words=words,
            remedy="look at `nvidia-smi -L` and `lspci`",
        )
    return NodeFinding(
        check="driver",
        level="pass",
        words=f"{facts.version}, {_count(len(facts.gpus), 'GPU')}",
    )


def check_files(facts: FileFacts) -> NodeFinding:
    """The driver's files in /dev."""
    if facts.missing:
        remedy = "`sudo nvidia-modprobe -c 0 -u`; the unit does it before each start"
        words = f"missing: {', '.join(facts.missing)}: CUDA cannot start"
        return NodeFinding(
            check="device files", level="fail", words=words, remedy=remedy
        )
    if facts.closed:
        words = f"not open to this user: {', '.join(facts.closed)}"
        remedy = "add the user to the files' group (SupplementaryGroups= in the unit)"
        return NodeFinding(
            check="device files", level="fail", words=words, remedy=remedy
        )
    return NodeFinding(
        check="device files", level="pass", words=f"{facts.count}, open to this user"
    )


def check_gpu(
    gpu: GpuFacts, driver: DriverFacts, *, gpu_type: str, has_right: bool
) -> Iterator[NodeFinding]:
    """What the GPU is, and each thing that it does not let this process do."""
    name = f"GPU {gpu.index}"
    as_type = f" as {gpu_type}" if gpu_type else ""
    words = f"{gpu.name}{as_type}, {gpu.memory_mib:g} MiB, {gpu.uuid}"
    if gpu.lost:
        remedy = "drain the node, then reset the GPU or restart the machine"
        yield NodeFinding(
            check=name, level="fail", words=f"{words}: {gpu.lost}", remedy=remedy
        )
        return
    yield NodeFinding(check=name, level="pass", words=words)
    for ability, why in gpu.lacks:
        reason = why.partition(": ")[2] or why
        lost = f"cannot {ability}: {reason}; {_cost(ability)}"
        yield NodeFinding(check=name, level="warn", words=lost, remedy=_way_out(reason))
    knobs = " and ".join(gpu.untried)
    if gpu.untried and not has_right:
        for ability in gpu.untried:
            words = f"cannot {ability}: it needs CAP_SYS_ADMIN; {_cost(ability)}"
            yield NodeFinding(
                check=name, level="warn", words=words, remedy=_way_out("CAP_SYS_ADMIN")
            )
    elif gpu.untried and driver.why_untried:
        yield NodeFinding(
            check=name, level="skip", words=f"{knobs}: not tried, {driver.why_untried}"
        )
    elif gpu.untried:
        words = f"may {knobs}, by its rights; --try-writes tries it"
        yield NodeFinding(check=name, level="pass", words=words)
    elif not gpu.lacks:
        yield NodeFinding(
            check=name,
            level="pass",
            words=f"can do all {gpu.ability_count} things that are asked of it",
        )


def check_mps(gpu: GpuFacts, facts: MpsFacts) -> NodeFinding:
    """Whether the GPU can be shared with limits."""
    name = f"GPU {gpu.index} MPS"
    if facts.why_not:
        remedy = (
            f"{_mps_remedy(facts.why_not)}, or start with --sharing turns and no limits"
        )
        return NodeFinding(
            check=name, level="fail", words=f"{facts.why_not}; {NO_MPS}", remedy=remedy
        )
    length = f"{len(str(facts.pipe))} of {MAX_PIPE_PATH} characters"
    daemon = "its daemon runs" if facts.is_running else "no daemon yet"
    return NodeFinding(
        check=name, level="pass", words=f"{facts.pipe} ({length}), {daemon}"
    )


def check_turns() -> NodeFinding:
    """Sharing without MPS was asked for."""
    return NodeFinding(check="MPS", level="warn", words=f"--sharing turns: {NO_MPS}")


def check_modes(gpu: GpuFacts, facts: ModeFacts, *, uses_mps: bool) -> NodeFinding:
    """Compute mode and persistence mode of one GPU."""
    name = f"GPU {gpu.index} modes"
    if gpu.uuid not in facts.by_uuid:
        words = f"not read: {facts.problem or 'nvidia-smi does not list it'}"
        return NodeFinding(check=name, level="skip", words=words)
    compute, persistence = facts.by_uuid[gpu.uuid]
    words = f"compute {compute}, persistence {persistence}"
    if "prohibited" in compute.lower():
        return NodeFinding(
            check=name,
            level="fail",
            words=f"{words}: nothing may compute",
            remedy=f"nvidia-smi -i {gpu.uuid} -c 0",
        )
    if "exclusive" in compute.lower() and not uses_mps:
        words = f"{words}: replicas cannot take turns"
        return NodeFinding(
            check=name,
            level="fail",
            words=words,
            remedy=f"nvidia-smi -i {gpu.uuid} -c 0",
        )
    if persistence.lower() == "disabled":
        words = (
            f"{words}: the driver may forget clocks and limits when nobody uses the GPU"
        )
        return NodeFinding(
            check=name, level="warn", words=words, remedy="run nvidia-persistenced"
        )
    return NodeFinding(check=name, level="pass", words=words)


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
        "an agent works with this directory"
        if facts.is_held
        else "none works with this directory"
    )
    yield NodeFinding(check="agent", level="pass", words=held)
    yield _check_knobs(facts)
    yield _check_workers(facts)
    if facts.damaged:
        remedy = "nothing; the agent goes on with the rest and says so"
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
    words = f"{_count(len(facts.running), 'replica')} running, {len(facts.ended)} ended"
    if facts.is_held or not facts.running:
        return NodeFinding(check="workers", level="pass", words=words)
    names = ", ".join(facts.running[:3]) + (" ..." if len(facts.running) > 3 else "")
    words = f"{words}, without an agent: {names}"
    remedy = (
        "start the agent: it goes on with those that are wanted and ends the others"
    )
    return NodeFinding(check="workers", level="warn", words=words, remedy=remedy)


def check_templates(facts: TemplateFacts) -> Iterator[NodeFinding]:
    """The allow-list of programs, and those that are not on this machine."""
    if facts.problem:
        words = f"{facts.problem}; the agent does not start with it"
        yield NodeFinding(
            check="templates",
            level="fail",
            words=words,
            remedy="docs/runtimes.md has the keys",
        )
        return
    names = [name for name, _, _ in facts.programs]
    if set(names) <= {BUILT_IN, BUILT_IN_TASK}:
        words = "only the built-in ones, fakes that compute nothing on the GPU"
        remedy = "write a file (docs/runtimes.md) and give it by --templates"
        yield NodeFinding(check="templates", level="warn", words=words, remedy=remedy)
    else:
        yield NodeFinding(check="templates", level="pass", words=", ".join(names))
    for name, program, is_found in facts.programs:
        if not is_found:
            words = f"{name} runs {program}, which is not found"
            remedy = "install it, name its whole path, or take the template out"
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
    if facts.is_router_port_free or is_agent_there:
        words = (
            "free"
            if facts.is_router_port_free
            else "taken, as it should be by the agent that is there"
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


def check_control_plane(
    facts: ControlPlaneFacts, asked: Asked
) -> Iterator[NodeFinding]:
    """Name of the node, readiness, clock and token."""
    if not NODE_NAME.fullmatch(asked.node):
        words = f"{asked.node!r} is no name of a node: small letters, digits and -, at most 63"
        yield NodeFinding(
            check="node name",
            level="fail",
            words=words,
            remedy="give another by --node",
        )
    if facts.problem:
        words = f"no answer from {asked.url}: {facts.problem}"
        remedy = "check the address, the network and TLS; the agent goes on with its last command"
        yield NodeFinding(
            check="control plane", level="fail", words=words, remedy=remedy
        )
        return
    yield _check_ready(facts, asked)
    yield _check_clock(facts)
    yield _check_token(facts, asked)


def _check_ready(facts: ControlPlaneFacts, asked: Asked) -> NodeFinding:
    if facts.ready_status == 200:
        return NodeFinding(
            check="control plane", level="pass", words=f"{asked.url} is ready"
        )
    if facts.ready_status == 503:
        words = f"{asked.url} is there and not ready: {facts.ready_words or 'it does not say why'}"
        return NodeFinding(
            check="control plane",
            level="warn",
            words=words,
            remedy="`plimsoll doctor` on its machine",
        )
    words = f"{asked.url} answered {facts.ready_status} to /readyz"
    return NodeFinding(
        check="control plane",
        level="fail",
        words=words,
        remedy="is this the address of a Plimsoll API?",
    )


def _check_clock(facts: ControlPlaneFacts) -> NodeFinding:
    if facts.skew_s is None:
        return NodeFinding(
            check="clock", level="skip", words="the control plane's answer has no date"
        )
    if abs(facts.skew_s) <= GOOD_SKEW_S:
        return NodeFinding(
            check="clock",
            level="pass",
            words=f"within {GOOD_SKEW_S:g} s of the control plane's",
        )
    side = "ahead of" if facts.skew_s > 0.0 else "behind"
    level: Level = "fail" if abs(facts.skew_s) > MAX_SKEW_S else "warn"
    words = f"{abs(facts.skew_s):.0f} s {side} the control plane's"
    return NodeFinding(
        check="clock",
        level=level,
        words=words,
        remedy="run chrony or systemd-timesyncd on both machines",
    )


def _check_token(facts: ControlPlaneFacts, asked: Asked) -> NodeFinding:
    make = f"plimsoll token create --scope agent {asked.node}"
    if not asked.token:
        words = "none was given, the control plane will not take this agent"
        return NodeFinding(
            check="token",
            level="fail",
            words=words,
            remedy=f"{make}; give it by --token-file",
        )
    if facts.sync_status in (401, 403):
        why = (
            "not known, revoked or expired"
            if facts.sync_status == 401
            else "not an agent's"
        )
        return NodeFinding(
            check="token", level="fail", words=f"refused: {why}", remedy=make
        )
    if facts.sync_status in (400, 422):
        return NodeFinding(
            check="token", level="pass", words=f"taken, for node {asked.node}"
        )
    words = f"the control plane answered {facts.sync_status} where it should look at the token"
    return NodeFinding(
        check="token", level="warn", words=words, remedy="ask again when it is ready"
    )


def check_systemd(facts: SystemdFacts) -> NodeFinding:
    """Who starts the agent again, and puts knobs back when it cannot."""
    remedy = f"{INSTALL} has the unit"
    if not facts.is_booted:
        words = (
            "not here: nobody starts the agent again, or puts knobs back after kill -9"
        )
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
        words = f"{facts.unit} puts no knobs back"
        return NodeFinding(check="systemd", level="warn", words=words, remedy=remedy)
    return NodeFinding(check="systemd", level="pass", words=f"{facts.unit}")


def broken(check: str, error: BaseException | None, limit_s: float) -> NodeFinding:
    """A check that could not be carried out; without an error it took too long."""
    words = (
        f"no answer in {limit_s:g} s"
        if error is None
        else str(error) or type(error).__name__
    )
    return NodeFinding(
        check=check, level="fail", words=words, remedy="look at this by hand"
    )


def _cost(ability: str) -> str:
    try:
        return COSTS[Capability(ability)]
    except (ValueError, KeyError):
        return "the planner plans without it"


def _way_out(reason: str) -> str:
    if "CAP_SYS_ADMIN" in reason:
        return f"{INSTALL}, Clocks and power limits; or leave it so"
    if "too old" in reason:
        return "install a newer driver, or leave it so"
    if "nvidia-persistenced" in reason:
        return "run nvidia-persistenced"
    if "operating system" in reason:
        return "give this process or container access to the device"
    return "nothing to do: the GPU does not have it"


def _mps_remedy(why_not: str) -> str:
    if "characters" in why_not:
        return "give a short directory by --mps-dir, e.g. /run/plimsoll-agent"
    if "UID" in why_not:
        return "run agent, daemon and replicas of a GPU as one user"
    if "not in PATH" in why_not:
        return "install it"
    return "see to it"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")
