"""What a trainer's work is, and what it keeps between processes: a note next to its checkpoint."""

import argparse
import logging
from typing import Protocol

import msgspec

from agents.base.device import LaunchFailed
from agents.base.durable_files import replace_file
from agents.trainer.swap import SwapHooks

log = logging.getLogger(__name__)


class Work(Protocol):
    """What a task does, one iteration at a time: `TimedWork`, or `agents.trainer.torch_trainer.TorchWork`."""

    @property
    def start_iterations(self) -> int:
        """From where it goes on."""
        ...

    @property
    def sm_count(self) -> int | None:
        """SMs that it sees."""
        ...

    def step(self) -> None:
        """One iteration."""
        ...

    def keep(self, done_iterations: int) -> None:
        """Put on disk, next to the note that the caller writes, what another process needs."""
        ...

    def offload(self) -> None:
        """Move the device's memory to the host."""
        ...

    def resume(self) -> None:
        """Move it back."""
        ...


class CheckpointNote(msgspec.Struct, kw_only=True):
    """What a checkpoint says: which work, and how far."""

    kind: str
    network: str
    batch: int
    done_iterations: int


def _keep(options: argparse.Namespace, work: Work, hooks: SwapHooks, done: int) -> None:
    if options.checkpoint is None:
        return
    note = CheckpointNote(
        kind=options.kind,
        network=options.network,
        batch=options.batch,
        done_iterations=done,
    )
    # The state before the note: a note without its state would claim work that was not saved.
    work.keep(done)
    replace_file(options.checkpoint, msgspec.json.encode(note))
    # Last: what the hook reports as kept must be on the disk.
    hooks.note_checkpoint()


def kept_iterations(options: argparse.Namespace) -> int:
    """Iterations of this very work that its checkpoint holds; 0 without one. Raises LaunchFailed."""
    if options.checkpoint is None or not options.checkpoint.exists():
        return 0
    try:
        note = msgspec.json.decode(options.checkpoint.read_bytes(), type=CheckpointNote)
    except (OSError, msgspec.MsgspecError) as error:
        raise LaunchFailed(
            f"checkpoint {options.checkpoint} cannot be read, remove it: {error}"
        ) from error
    # The progress of other work does not count; the next checkpoint overwrites the file.
    if (note.kind, note.network, note.batch) != (
        options.kind,
        options.network,
        options.batch,
    ):
        log.warning(
            "checkpoint %s is of %s at batch %d and not used",
            options.checkpoint,
            note.network,
            note.batch,
        )
        return 0
    return note.done_iterations
