"""`plimsoll-agent doctor`: can an agent work on this node, and what will it have to do without.

    plimsoll-agent doctor --state-dir DIR --templates FILE --mps-dir DIR --url URL --token-file FILE

Takes the agent's own arguments, changes nothing, and may run alongside an agent. Without an argument its checks are
skipped. Prints one line for each check and, indented below it, what to do:

    pass   it is well                          fail   something that was asked for does not work
    warn   the agent works, less well          skip   it was not asked for, or cannot be found out

Exit codes: 0 nothing failed, 1 something did, 2 wrong arguments. Each check has a time limit; one that takes longer has
failed. Run it as the agent's user, since rights are part of what it looks at.

    examine(asked, here) -> findings      render(findings) -> the table
"""

import argparse
import os
import socket
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from agents.base.arguments import add_worker_users
from agents.base.device import DeviceError
from agents.doctor import checks_gpu, checks_host, checks_plane, facts
from agents.doctor.driver import ask_driver, ask_modes
from agents.doctor.mig import check_mig
from agents.doctor.types import (
    CAP_SYS_ADMIN,
    Asked,
    DriverFacts,
    GpuFacts,
    Here,
    NodeFinding,
    ProcessFacts,
    StateFacts,
)

WIDTH = 80
_NAME_WIDTH = 15

_Found = TypeVar("_Found")


def main(arguments: Sequence[str]) -> int:
    """Examine the node and print what was found; the exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.try_writes and options.state_dir is None:
        parser.error(
            "--try-writes needs --state-dir: it must not write while an agent is running there"
        )
    if options.url and not options.url.startswith(("http://", "https://")):
        parser.error(f"--url: {options.url!r} must begin with http:// or https://")
    try:
        token = (
            options.token_file.read_text(encoding="utf-8").strip()
            if options.token_file
            else ""
        )
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--token-file: {error}")
    asked = Asked(
        state_dir=options.state_dir,
        mps_dir=options.mps_dir
        or (options.state_dir / "mps" if options.state_dir else None),
        templates=options.templates,
        uses_mps=options.sharing == "mps",
        gpu_type=options.gpu_type or "",
        url=options.url or "",
        token=token,
        node=options.node,
        worker_user=options.worker_user,
        project_users=tuple(options.worker_user_for),
        router_port=options.router_port,
        tries_writes=options.try_writes,
    )
    # Nothing that is started from here on gets a copy.
    os.environ.pop("PLIMSOLL_TOKEN", None)
    findings = examine(asked, Here())
    sys.stdout.write(as_json(findings) if options.json else render(findings))
    return exit_code(findings)


def make_parser() -> argparse.ArgumentParser:
    """The command line; what it shares with the agent's has the same name there."""
    parser = argparse.ArgumentParser(
        prog="plimsoll-agent doctor",
        description="Find out what an agent can and cannot do on this node.",
    )
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="of the agent")
    parser.add_argument(
        "--mps-dir",
        type=Path,
        metavar="DIR",
        help="of MPS' sockets (default: STATE_DIR/mps)",
    )
    parser.add_argument(
        "--templates",
        type=Path,
        metavar="FILE",
        help="programs that may run as replicas (TOML)",
    )
    parser.add_argument(
        "--sharing", choices=("mps", "turns"), default="mps", help="as the agent's"
    )
    parser.add_argument(
        "--gpu-type", help="the catalogue's name, as given to the agent"
    )
    parser.add_argument("--url", help="address of the control plane's API")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file that holds the agent's token",
    )
    parser.add_argument(
        "--node",
        default=socket.gethostname(),
        help="name of this node (default: %(default)s)",
    )
    add_worker_users(parser)
    parser.add_argument(
        "--router-port", type=int, default=0, metavar="PORT", help="as the agent's"
    )
    parser.add_argument(
        "--try-writes",
        action="store_true",
        help="write each GPU's power limit again, unchanged, to test the rights",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def examine(asked: Asked, here: Here) -> tuple[NodeFinding, ...]:
    """Every finding about this node, in a fixed order."""
    return tuple(_examine(asked, here))


def _examine(asked: Asked, here: Here) -> Iterator[NodeFinding]:
    process, failed = _within("user", lambda: facts.read_process(here), here)
    # The other checks go on as if it had no rights, so that one unreadable file does not end the examination.
    if process is None:
        process = ProcessFacts(uid=os.geteuid(), user="?", effective=0, ambient=0)
    yield from failed or checks_host.check_process(process, here)
    yield from _bounded(
        "replicas' user",
        lambda: checks_host.check_worker_user(facts.read_worker_user(asked), asked),
        here,
    )
    yield from _bounded(
        "projects' users",
        lambda: checks_host.check_project_users(facts.read_project_users(asked)),
        here,
    )
    driver = ask_driver(asked, here)
    yield checks_gpu.check_driver(driver)
    if driver.gpus:
        yield from _bounded(
            "device files",
            lambda: (checks_gpu.check_files(facts.read_files(here, driver.gpus)),),
            here,
        )
        yield from _examine_gpus(
            asked, here, driver, has_right=bool(process.effective & CAP_SYS_ADMIN)
        )
    is_held = False
    if asked.state_dir is None:
        yield _skipped("state dir", "--state-dir")
    else:
        directory = asked.state_dir
        state, failed = _within(
            "state dir", lambda: facts.read_state(directory, here), here
        )
        yield from failed or checks_host.check_state(
            state or StateFacts(path=directory), process
        )
        # A running agent has the router's port, which is then as it should be.
        is_held = state is not None and state.is_held
    yield from _examine_rest(asked, here, is_agent_there=is_held)


def _examine_gpus(
    asked: Asked, here: Here, driver: DriverFacts, *, has_right: bool
) -> Iterator[NodeFinding]:
    # Once for all GPUs: nvidia-smi takes seconds to start without persistence mode.
    modes = ask_modes(here)
    if not asked.uses_mps:
        yield checks_gpu.check_turns()
    yield from checks_gpu.check_silent(driver)
    for gpu in driver.gpus:
        yield from checks_gpu.check_gpu(
            gpu, driver, gpu_type=asked.gpu_type, has_right=has_right
        )
        if gpu.lost:
            continue
        yield checks_gpu.check_modes(gpu, modes, uses_mps=asked.uses_mps)
        if gpu.mig is not None:
            yield from check_mig(gpu, gpu.mig, uses_mps=asked.uses_mps)
        elif asked.uses_mps:
            yield from _bounded(
                f"GPU {gpu.index} MPS", partial(_mps, gpu, asked, here), here
            )


def _mps(gpu: GpuFacts, asked: Asked, here: Here) -> tuple[NodeFinding, ...]:
    if asked.mps_dir is None:
        return (_skipped(f"GPU {gpu.index} MPS", "--state-dir or --mps-dir"),)
    return (checks_gpu.check_mps(gpu, facts.read_mps(gpu, asked, here)),)


def _examine_rest(
    asked: Asked, here: Here, *, is_agent_there: bool
) -> Iterator[NodeFinding]:
    yield from _bounded(
        "templates",
        lambda: checks_host.check_templates(
            facts.read_templates(asked.templates, here)
        ),
        here,
    )
    yield from _bounded(
        "worker ports",
        lambda: checks_host.check_ports(
            facts.read_ports(asked, here), is_agent_there=is_agent_there
        ),
        here,
    )
    yield from _bounded(
        "shared memory",
        lambda: (checks_host.check_shared_memory(facts.read_shared_memory(here)),),
        here,
    )
    if asked.url:
        yield from _bounded(
            "control plane",
            lambda: checks_plane.check_control_plane(
                facts.ask_control_plane(asked, here), asked
            ),
            here,
        )
    else:
        yield _skipped("control plane", "--url")
    yield from _bounded(
        "systemd", lambda: (checks_host.check_systemd(facts.read_systemd(here)),), here
    )


def render(findings: Iterable[NodeFinding]) -> str:
    """The table, in lines of at most WIDTH characters, with the counts at its end."""
    listed = tuple(findings)
    lines = [line for finding in listed for line in _lines(finding)]
    return "".join(f"{line}\n" for line in (*lines, _summary(listed)))


def as_json(findings: Iterable[NodeFinding]) -> str:
    """The same as JSON."""
    listed = tuple(findings)
    document = {
        "findings": listed,
        "summary": _summary(listed),
        "exit_code": exit_code(listed),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def exit_code(findings: Iterable[NodeFinding]) -> int:
    """1 where something failed."""
    return int(any(finding.level == "fail" for finding in findings))


def _lines(finding: NodeFinding) -> Iterator[str]:
    name = f"{finding.level}  {finding.check:<{_NAME_WIDTH}} "
    yield from _wrapped(name, finding.words)
    if finding.remedy:
        yield from _wrapped("      -> ", finding.remedy)


def _wrapped(first: str, words: str) -> list[str]:
    # Options and paths are to be copied: they are not broken at hyphens.
    return textwrap.wrap(
        words,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_on_hyphens=False,
    )


def _summary(findings: Iterable[NodeFinding]) -> str:
    counts = Counter(finding.level for finding in findings)
    return f"{counts['pass']} passed, {counts['warn']} warned, {counts['fail']} failed, {counts['skip']} skipped"


def _skipped(check: str, option: str) -> NodeFinding:
    return NodeFinding(check=check, level="skip", words=f"needs {option}")


def _bounded(
    check: str, examine_it: Callable[[], Iterable[NodeFinding]], here: Here
) -> tuple[NodeFinding, ...]:
    """The findings of one check, or that it could not be carried out."""
    found, failed = _within(check, lambda: tuple(examine_it()), here)
    return failed or found or ()


def _within(
    check: str, act: Callable[[], _Found], here: Here
) -> tuple[_Found | None, tuple[NodeFinding, ...]]:
    """What `act` returns, or why not; a thread that hangs (a disk, a name server) is left behind."""
    found: list[_Found] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            found.append(act())
        # Errors of the machine; anything else is a bug and should be seen.
        except (DeviceError, OSError, ValueError, LookupError) as error:
            errors.append(error)

    # A daemon thread: one that hangs in the kernel must not keep the doctor from ending.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(here.limit_s)
    # A result counts even where the limit passed at the same moment.
    if found:
        return found[0], ()
    return None, (_broken(check, errors[0] if errors else None, here.limit_s),)


def _broken(check: str, error: BaseException | None, limit_s: float) -> NodeFinding:
    """A check that could not be carried out; without an error it took too long."""
    words = (
        f"no answer in {limit_s:g} s"
        if error is None
        else str(error) or type(error).__name__
    )
    return NodeFinding(
        check=check, level="fail", words=words, remedy="check this by hand"
    )
