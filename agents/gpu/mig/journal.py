"""Which layouts are being changed, on disk before the first slice goes, so that a command that was killed can be told.

directory/mig.journal   JSON, a list of `Cut`; none = no change is under way

    journal.note(cut)     durable when it returns; only then may a slice go
    journal.forget(uuid)  the GPU has the layout that was wanted, or the one before again
    journal.find(uuid)    -> the change that was cut off

A restart of the machine drops all slices, so that what was noted before it is void.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from agents.base.device import DeviceError
from agents.base.durable_files import replace_file
from agents.gpu.nvml.mig_types import Placement

NAME = "mig.journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One slice of the layout before."""

    profile_id: int
    profile: str
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One change of one GPU's layout."""

    gpu_uuid: str
    boot_id: str
    before: tuple[Made, ...]
    wanted: tuple[str, ...]
    """Names of profiles; empty = no slice."""


class MigJournal:
    """The journal in one directory; who changes layouts holds the directory's lock."""

    def __init__(self, directory: Path, *, boot_id: str) -> None:
        """Raises DeviceError where the file cannot be read."""
        self._path = directory / NAME
        self._boot_id = boot_id
        self._cuts = {
            # A restart of the machine drops all slices, so what was noted before it is void.
            each.gpu_uuid: each
            for each in _load(self._path)
            if each.boot_id == boot_id
        }

    def all(self) -> tuple[Cut, ...]:
        """Every change that was cut off since the machine was started, by GPU."""
        return tuple(each for _, each in sorted(self._cuts.items()))

    def find(self, gpu_uuid: str) -> Cut | None:
        """The change of a GPU that was cut off."""
        return self._cuts.get(gpu_uuid)

    def note(
        self, gpu_uuid: str, before: tuple[Made, ...], wanted: tuple[str, ...]
    ) -> None:
        """A change begins. Raises DeviceError."""
        cut = Cut(
            gpu_uuid=gpu_uuid, boot_id=self._boot_id, before=before, wanted=wanted
        )
        self._write({**self._cuts, gpu_uuid: cut}, "nothing was changed")

    def forget(self, gpu_uuid: str) -> None:
        """A change is over, one way or the other. Raises DeviceError."""
        if gpu_uuid in self._cuts:
            left = {uuid: cut for uuid, cut in self._cuts.items() if uuid != gpu_uuid}
            self._write(
                left,
                "the slices are as `mig list` shows them, and the same command ends the change",
            )

    def _write(self, cuts: dict[str, Cut], remainder: str) -> None:
        try:
            replace_file(
                self._path,
                msgspec.json.encode([cut for _, cut in sorted(cuts.items())]),
            )
        except OSError as error:
            raise DeviceError(
                f"{self._path} cannot be written: {error.strerror}; {remainder}"
            ) from error
        # Only after the write: memory must not be ahead of what a crash leaves on disk.
        self._cuts = cuts


def _load(path: Path) -> tuple[Cut, ...]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=tuple[Cut, ...])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError) as error:
        raise DeviceError(
            f"{path} cannot be read: {error}; look at the GPUs' slices, then remove it"
        ) from error
