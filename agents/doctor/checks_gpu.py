"""What the facts of GPUs and their driver mean for an agent: what works, what does not, and what to do about it.

The costs of what a GPU does not allow stand in COSTS, the ways out in WAYS_OUT and
MPS_REMEDIES.
"""

from collections.abc import Iterator, Mapping

from agents.base.plurals import counted
from agents.doctor.types import (
    INSTALL,
    DriverFacts,
    FileFacts,
    GpuFacts,
    ModeFacts,
    MpsFacts,
    NodeFinding,
)
from agents.gpu.mps.directory import MAX_PIPE_PATH
from agents.gpu.mps.lacks import MpsLackKind
from agents.gpu.nvml.lacks import LackKind
from agents.gpu.nvml.types import Capability

COSTS: Mapping[Capability, str] = {
    Capability.LOCK_CLOCK: "plans leave this GPU at its own clock, and governors cannot slow it",
    Capability.LIMIT_POWER: "power caps are not enforced on this GPU",
    Capability.COUNT_ENERGY: "energy is estimated from samples of power",
    Capability.PROCESS_USE: "the SM use of each replica is unknown",
    Capability.LIST_MPS: "memory of MPS clients is known from their servers only",
    Capability.SM_ACTIVITY: "`busy` says that any kernel ran, not how many SMs did",
    Capability.XID_EVENTS: "a broken GPU is noticed when it stops answering, not before",
    Capability.MIG_LAYOUT: "its slices cannot be distinguished",
    Capability.KEEP_SETTINGS: "an idle driver may drop locked clocks and power limits",
}
"""What a node goes without when a GPU does not allow something."""

WAYS_OUT: Mapping[LackKind, str] = {
    LackKind.RIGHT_MISSING: f"{INSTALL}, Clocks and power limits; or leave it as it is",
    LackKind.DRIVER_TOO_OLD: "install a newer driver, or leave it as it is",
    LackKind.PERSISTENCE_OFF: "run nvidia-persistenced",
    LackKind.DEVICE_BLOCKED: "give this process or container access to the device",
    LackKind.OTHER: "nothing to do: the GPU does not support it",
}
"""What to do when a GPU does not allow something, by why."""

MPS_REMEDIES: Mapping[MpsLackKind, str] = {
    MpsLackKind.PATH_TOO_LONG: "give a short directory by --mps-dir, e.g. /run/plimsoll-agent",
    MpsLackKind.OTHER_USER: "run agent, daemon and replicas of a GPU as one user",
    MpsLackKind.NOT_INSTALLED: "install it",
    MpsLackKind.OTHER: "see to it",
}
"""What to do when a GPU cannot be shared by MPS."""

LOST_REMEDY = "drain the node, then reset the GPU or restart the machine"
NO_MPS = "SM percents and memory limits would not be in force, replicas take turns"


def check_driver(facts: DriverFacts) -> NodeFinding:
    """Driver, library and whether there are GPUs."""
    if facts.problem:
        remedy = "install NVIDIA's driver, or check `nvidia-smi` and the kernel's log"
        return NodeFinding(
            check="driver", level="fail", words=facts.problem, remedy=remedy
        )
    # A driver without GPUs answers well and is of no use: an agent that runs GPUs would have none.
    if not facts.gpus:
        words = f"{facts.version}, without GPUs"
        return NodeFinding(
            check="driver",
            level="fail",
            words=words,
            remedy="check `nvidia-smi -L` and `lspci`",
        )
    return NodeFinding(
        check="driver",
        level="pass",
        words=f"{facts.version}, {counted(len(facts.gpus), 'GPU')}",
    )


def check_silent(facts: DriverFacts) -> Iterator[NodeFinding]:
    """Each GPU that the driver lists and that does not answer: the agent serves on without it."""
    for index, why in facts.silent:
        yield NodeFinding(
            check=f"GPU {index}", level="fail", words=why, remedy=LOST_REMEDY
        )


def check_files(facts: FileFacts) -> NodeFinding:
    """The driver's files in /dev."""
    # Missing files come first: whether they are open can only be asked of files that are there.
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
    memory = f"{gpu.memory_mib:g} MiB" if gpu.memory_mib else "memory not told"
    words = f"{gpu.name}{as_type}, {memory}, {gpu.uuid}"
    # A GPU that does not answer has no other facts.
    if gpu.lost:
        yield NodeFinding(
            check=name, level="fail", words=f"{words}: {gpu.lost}", remedy=LOST_REMEDY
        )
        return
    yield NodeFinding(check=name, level="pass", words=words)
    for lack in gpu.lacks:
        words = f"cannot {lack.capability}: {lack.detail}; {COSTS[lack.capability]}"
        remedy = WAYS_OUT[lack.kind]
        yield NodeFinding(check=name, level="warn", words=words, remedy=remedy)
    knobs = " and ".join(gpu.untried)
    # Without the right no try is needed: the driver refuses both knobs.
    if gpu.untried and not has_right:
        for ability in gpu.untried:
            words = f"cannot {ability}: it needs CAP_SYS_ADMIN; {COSTS[ability]}"
            remedy = WAYS_OUT[LackKind.RIGHT_MISSING]
            yield NodeFinding(check=name, level="warn", words=words, remedy=remedy)
    elif gpu.untried and driver.why_untried:
        yield NodeFinding(
            check=name, level="skip", words=f"{knobs}: not tried, {driver.why_untried}"
        )
    elif gpu.untried:
        words = f"has the rights to {knobs}; --try-writes tests it"
        yield NodeFinding(check=name, level="pass", words=words)
    elif not gpu.lacks:
        yield NodeFinding(
            check=name,
            level="pass",
            words=f"can do all {gpu.ability_count} required operations",
        )


def check_mps(gpu: GpuFacts, facts: MpsFacts) -> NodeFinding:
    """Whether the GPU can be shared with limits."""
    name = f"GPU {gpu.index} MPS"
    if facts.lack is not None:
        way = MPS_REMEDIES[facts.lack.kind]
        return NodeFinding(
            check=name,
            level="fail",
            words=f"{facts.lack.detail}; {NO_MPS}",
            remedy=f"{way}, or start with --sharing turns and no limits",
        )
    length = f"{len(str(facts.pipe))} of {MAX_PIPE_PATH} characters"
    # Without a daemon all is well, too: the agent starts it with the first replica.
    daemon = "its daemon is running" if facts.is_running else "no daemon yet"
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
    # In exclusive mode one process has the GPU. Under MPS that is its server, so replicas still share.
    if "exclusive" in compute.lower() and not uses_mps:
        words = f"{words}: replicas cannot take turns"
        return NodeFinding(
            check=name,
            level="fail",
            words=words,
            remedy=f"nvidia-smi -i {gpu.uuid} -c 0",
        )
    if persistence.lower() == "disabled":
        words = f"{words}: the driver may forget clocks and limits when nothing uses the GPU"
        return NodeFinding(
            check=name, level="warn", words=words, remedy="run nvidia-persistenced"
        )
    return NodeFinding(check=name, level="pass", words=words)
