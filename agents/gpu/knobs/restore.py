"""`plimsoll-agent restore --state-dir DIR`: put every clock and power limit back that a dead agent left turned.

For systemd's `ExecStopPost=`, which runs after SIGKILL, too, and for operators. Says each knob's fate on standard
output. Exit codes: 0 when nothing of ours is turned any more, also when nothing was; 1 when something may still be, or
another agent is running with this directory; 2 for wrong arguments.
"""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from agents.base.device import DeviceError

NOTHING = "nothing to put back"


def main(arguments: Sequence[str]) -> int:
    """Put back what the state directory's journal names; the exit code."""
    parser = argparse.ArgumentParser(
        prog="plimsoll-agent restore",
        description="Put clocks and power limits back that a dead agent left turned.",
    )
    parser.add_argument(
        "--state-dir", type=Path, required=True, help="the state directory of the agent"
    )
    directory: Path = parser.parse_args(arguments).state_dir
    try:
        lines, is_over = restore(directory)
    except (DeviceError, OSError) as error:
        lines = (f"cannot put anything back: {error}",)
        is_over = False
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0 if is_over else 1


def restore(directory: Path) -> tuple[tuple[str, ...], bool]:
    """What was done, in words, and whether nothing of ours is left.

    The driver is asked only when there is something to put back. Raises DeviceError or OSError.
    """
    from agents.base.durable_files import read_boot_id
    from agents.gpu.knobs.journal import NAME, KnobJournal
    from agents.gpu.knobs.knobs import KnobWriter, drop_other_boots
    from agents.gpu.nvml.session import Nvml

    # A directory without a journal is left as it is: the agent may never have started.
    if not (directory / NAME).exists():
        return (NOTHING,), True
    with contextlib.closing(KnobJournal(directory)) as journal:
        done = drop_other_boots(journal, read_boot_id())
        if journal.held():
            with Nvml() as nvml:
                done += KnobWriter(nvml, journal, boot_id=read_boot_id()).restore()
        lines = journal.problems + tuple(each.message for each in done)
        return lines or (NOTHING,), all(each.is_over for each in done)
