"""The GPUs that a node had at an earlier start of its agent: one that does not answer now is known by them.

    known = load_inventory(state_dir)          # devices, whole GPUs and slices
    missing_of(known, present)                 # those of GPUs that do not answer
    save_inventory(state_dir, (*present, *missing))

The driver tells nothing of a GPU that is off the bus, not even its UUID. With what was known of it before it is one of
the node's GPUs that does not answer, and is used again when it does.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from agents.base.durable_files import replace_file
from agents.gpu.nvml.types import GpuIdentity

FILE = "gpus.json"

log = logging.getLogger(__name__)


def load_inventory(directory: Path) -> tuple[GpuIdentity, ...]:
    """What was saved; nothing where no file can be read, which costs only the knowledge of GPUs that are missing."""
    try:
        content = (directory / FILE).read_bytes()
        return msgspec.json.decode(content, type=tuple[GpuIdentity, ...])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError) as error:
        log.error("%s cannot be read: %s", directory / FILE, error)
        return ()


def save_inventory(directory: Path, gpus: Sequence[GpuIdentity]) -> None:
    """Keep them for the next start. Raises OSError."""
    # Most starts find what they found before.
    if load_inventory(directory) != tuple(gpus):
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(directory / FILE, msgspec.json.encode(tuple(gpus)))


def missing_of(
    known: Iterable[GpuIdentity], present: Iterable[GpuIdentity], entire: set[str]
) -> tuple[GpuIdentity, ...]:
    """The known devices of GPUs that do not answer; `entire`: UUIDs of the whole GPUs that do, sliced or not.

    None of a place that another GPU has taken: the driver counts from the first again when a GPU is gone at its start.
    """
    taken = {gpu.index for gpu in present}
    return tuple(
        gpu
        for gpu in known
        if gpu.index not in taken
        and (gpu if gpu.part is None else gpu.part.parent).uuid not in entire
    )
