"""Asking the driver without being held by it: in a process of its own, which is left behind when it does not answer.

    ask_driver(asked, here)  -> DriverFacts    runs this module as a program and reads what it prints
    ask_modes(here)          -> ModeFacts      by nvidia-smi, since agents.gpu.nvml.session reads no compute mode
    answer_of(command, ...)  -> str            output of a program; raises Silent

A driver that hangs holds its callers in the kernel, where not even SIGKILL reaches: so that one is not waited for.

Nothing is written to a GPU unless that is asked for, and then only while no agent works with the state directory and
its journal is empty: what is in force would else be read, changed by the agent, and written again as it was.
"""

import argparse
import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from agents.base.device import DeviceError
from agents.doctor.mig import read_mig
from agents.doctor.types import Asked, DriverFacts, GpuFacts, Here, ModeFacts
from agents.gpu.knobs.journal import NAME
from agents.gpu.nvml.capabilities import find_abilities
from agents.gpu.nvml.lacks import Lack, LackKind
from agents.gpu.nvml.session import Nvml
from agents.gpu.nvml.types import Capability, GpuIdentity

_SMI = (
    "nvidia-smi",
    "--query-gpu=uuid,compute_mode,persistence_mode",
    "--format=csv,noheader",
)


class Silent(DeviceError):
    """A program gave no usable answer."""


def ask_driver(asked: Asked, here: Here) -> DriverFacts:
    """What the driver says; a driver that is absent or hangs is a problem in the facts, not an error."""
    command = [sys.executable, "-m", "agents.doctor.driver"]
    if asked.tries_writes:
        command += ["--try-writes", str(asked.state_dir)]
    # The program finds this package where this one was found.
    environment = {**here.environment, "PYTHONPATH": str(Path(__file__).parents[2])}
    try:
        answer = answer_of(command, environment, limit_s=here.driver_limit_s)
        return msgspec.json.decode(answer, type=DriverFacts)
    except (Silent, msgspec.MsgspecError) as error:
        return DriverFacts(problem=f"asking the driver failed: {error}")


def ask_modes(here: Here) -> ModeFacts:
    """Compute mode and persistence mode of every GPU."""
    try:
        answer = answer_of(_SMI, here.environment, limit_s=here.driver_limit_s)
    except Silent as error:
        return ModeFacts(problem=str(error))
    rows = [
        [word.strip() for word in line.split(",")]
        for line in answer.splitlines()
        if line.strip()
    ]
    # Anything but rows of three is a message of nvidia-smi, which is passed on.
    if not all(len(row) == 3 for row in rows):
        return ModeFacts(problem=f"nvidia-smi says {answer.strip()[:120]!r}")
    return ModeFacts(
        by_uuid={uuid: (compute, persistence) for uuid, compute, persistence in rows}
    )


def answer_of(
    command: Sequence[str], environment: Mapping[str, str], *, limit_s: float
) -> str:
    """What a program prints. Raises Silent where it is absent, fails, or takes too long; then it is left behind."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise Silent(f"{command[0]} cannot be run: {error.strerror}") from error
    try:
        said, complaint = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        # It may not die: a process that the driver holds in the kernel takes no signal. So the wait is short.
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        # Closed by hand, because `communicate` left them open and the process may never end.
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        raise Silent(f"no answer in {limit_s:g} s") from error
    if process.returncode != 0:
        last = (complaint.strip() or said.strip() or "no word").splitlines()[-1]
        raise Silent(f"{Path(command[0]).name} ended with {process.returncode}: {last}")
    return said


def read_driver(*, state_dir: Path | None) -> DriverFacts:
    """What the driver says, asked here and now; `state_dir`: try the knobs, unless an agent works with it."""
    try:
        with _may_write(state_dir) as why_untried, Nvml() as nvml:
            tries = state_dir is not None and not why_untried
            listing = nvml.listing()
            return DriverFacts(
                version=nvml.driver_version(),
                gpus=tuple(
                    _read_gpu(nvml, gpu, tries_writes=tries) for gpu in listing.gpus
                ),
                silent=listing.silent,
                why_untried=why_untried,
            )
    except DeviceError as error:
        return DriverFacts(problem=str(error))


def _read_gpu(nvml: Nvml, gpu: GpuIdentity, *, tries_writes: bool) -> GpuFacts:
    lost = ""
    lacks: tuple[Lack, ...] = ()
    mig = None
    try:
        # First, since every other question fails in the same way on a GPU that is lost.
        nvml.sample(gpu)
        lacks = find_abilities(nvml, gpu, try_writes=tries_writes).lacks
        mig = read_mig(nvml, gpu)
    except DeviceError as error:
        lost = str(error)
    return GpuFacts(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        memory_mib=gpu.memory_mib,
        lost=lost,
        mig=mig,
        lacks=tuple(each for each in lacks if each.kind is not LackKind.NOT_TRIED),
        untried=tuple(
            each.capability for each in lacks if each.kind is LackKind.NOT_TRIED
        ),
        ability_count=len(Capability),
    )


@contextlib.contextmanager
def _may_write(state_dir: Path | None) -> Iterator[str]:
    """Why nothing may be written; empty = it may, and as long as this lasts no agent begins to work there."""
    if state_dir is None or not state_dir.is_dir():
        yield ""
        return
    try:
        lock = os.open(
            # The lock that an agent's journal takes, so that none can start while the knobs are tried.
            state_dir / "knobs.lock",
            os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
            0o600,
        )
    except OSError as error:
        yield f"{error.filename} cannot be locked: {error.strerror}"
        return
    try:
        yield _why_not(lock, state_dir / NAME)
    finally:
        os.close(lock)


def _why_not(lock: int, journal: Path) -> str:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "an agent is running"
    try:
        return (
            "the journal lists clocks or limits that are still changed"
            if journal.stat().st_size
            else ""
        )
    except FileNotFoundError:
        return ""


def main() -> int:
    """Print the facts as JSON."""
    parser = argparse.ArgumentParser(prog="agents.doctor.driver")
    parser.add_argument("--try-writes", type=Path, metavar="STATE_DIR")
    facts = read_driver(state_dir=parser.parse_args().try_writes)
    sys.stdout.write(msgspec.json.encode(facts).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
