"""What `nvidia-cuda-mps-control` means by its answers: functions of their text, since it exits 0 on nearly every error.

    lines_of(command, said, complaint) -> lines of the answer; raises where the answer is a refusal
    pids(lines) / percent(lines) / state(lines) / is_zero(lines) -> what an answer says
    explanation(log) -> what the daemon's log knows about a failure, in words

The texts are those of releases 535, 550 and 580, run by us. Release 535 has no `get_server_status`.
"""

from typing import Literal, TypeAlias

from agents.base.device import DeviceError, NotPermitted, NotSupported

ServerState: TypeAlias = Literal["none", "initializing", "active", "fault", "unknown"]
"""none: no client has come yet, which is well; unknown: this release does not say."""

NO_DAEMON = "Cannot find MPS control daemon process"
IS_BUSY = "Cannot send command to MPS control daemon process"
"""It takes one question at a time, and refused some that were asked side by side (release 580 on an H100)."""
ALREADY_RUNNING = "An instance of this daemon is already running"
_REFUSALS = ("Insufficient privileges", "Not enough privilege")
_STATES: dict[str, ServerState] = {
    "INITIALIZING": "initializing",
    "ACTIVE": "active",
    "FAULT": "fault",
}
_WORST_FIRST: tuple[ServerState, ...] = (
    "fault",
    "unknown",
    "initializing",
    "active",
    "none",
)

_LOG_SAYS = (
    (
        "NEW CLIENT 0 from user",
        "a client sits in a PID namespace that the daemon cannot see: run daemon and agent in the host's",
    ),
    (
        "SHM segment",
        "the daemon ran out of file descriptors: raise `ulimit -n` to 16384 (LimitNOFILE= of the agent's unit)",
    ),
    (
        "exited with status",
        "nvidia-cuda-mps-server cannot start: it needs to be in PATH, and libcuda.so.1 of a working driver in the "
        "loader's path",
    ),
)
"""(what the log holds, what it means), the most telling first."""


class NoDaemon(DeviceError):
    """No MPS daemon answers."""


def lines_of(command: str, said: str, complaint: str) -> tuple[str, ...]:
    """The answer's lines. Raises NotPermitted, NotSupported, NoDaemon or DeviceError."""
    lines = tuple(said.splitlines())
    # The exit status says nothing, so only the words tell what happened.
    if NO_DAEMON in complaint:
        raise NoDaemon(f"no MPS daemon answered {command!r}: start it again")
    if IS_BUSY in complaint:
        raise DeviceError(
            f"the MPS daemon does not accept {command!r}: another process asks it without a pause"
        )
    if refusal := next((line for line in lines if line.startswith(_REFUSALS)), ""):
        raise NotPermitted(
            f"the MPS daemon refuses {command!r}: {refusal}; run the agent as the daemon's user or root"
        )
    if lines and lines[0].startswith("Unknown command"):
        raise NotSupported(
            f"this release of MPS has no {command.split(' ', 1)[0]!r}: {lines[0]}"
        )
    return lines


def pids(lines: tuple[str, ...]) -> tuple[int, ...]:
    """PIDs, ascending; none when the server that was asked about has gone. Raises DeviceError on anything else."""
    if is_gone(lines):
        return ()
    # Whatever else was said must not be taken for processes, which may be ended.
    if not all(line.strip().isdigit() for line in lines):
        raise DeviceError(
            f"the MPS daemon should list process ids, and said {' / '.join(lines)!r}"
        )
    return tuple(sorted(int(line) for line in lines))


def percent(lines: tuple[str, ...]) -> float | None:
    """The value now in force, one decimal; None when the last line is no number."""
    try:
        # What stands before the last line does not matter here.
        return float(lines[-1])
    except (IndexError, ValueError):
        return None


def state(lines: tuple[str, ...]) -> ServerState:
    """The server's state; `none` when it has gone meanwhile."""
    if is_gone(lines):
        return "none"
    return _STATES.get(lines[-1].strip(), "unknown") if lines else "unknown"


def worst(states: tuple[ServerState, ...]) -> ServerState:
    """The state that matters most among several servers; `none` without any."""
    return min(states, key=_WORST_FIRST.index, default="none")


def is_zero(lines: tuple[str, ...]) -> bool:
    """Whether `terminate_client` answered 0; an unknown server is told by three lines that end with 1."""
    return lines == ("0",)


def is_gone(lines: tuple[str, ...]) -> bool:
    """Whether the answer is `Server N not found`."""
    return (
        bool(lines)
        and lines[0].startswith("Server ")
        and lines[0].rstrip("!").endswith("not found")
    )


def explanation(log: str) -> str:
    """What the end of the daemon's log means, empty when it tells nothing known."""
    return next((meaning for sign, meaning in _LOG_SAYS if sign in log), "")
