"""What a profile has measured so far, on disk: a later run of the same command goes on behind it.

    PATH    one record per line: 16 digits of its SHA-256, a blank, JSON; a Header first

    Journal(path, header, resumes=True)   raises DeviceError where the file is of another profile
        .measurements                     -> cells that are done
        .write(Measurement)               durable when it returns

A line is appended and synced; one that a crash tore is dropped when the file is read again. One process at a time has
the file.
"""

import fcntl
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeAlias

import msgspec

from agents.base.device import DeviceError
from agents.base.durable_files import checked_body, checked_line, sync_directory
from agents.profiling.cells import MeasurementCell, Member

VERSION = 1
MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What all measurements of one journal have in common."""

    gpu_type: str
    gpu_uuid: str
    driver_version: str
    templates: tuple[tuple[str, str], ...]
    """(network, digest of its template), by network."""
    seed: int
    window_s: float
    spread_limit: float
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One member of a cell, over all windows that count."""

    member: Member
    latency_ms: float
    """Mean execution time of one whole batch."""
    latency_ms_p50: float
    latency_ms_p99: float
    batches: int
    spread: float
    """(highest − lowest) / middle of the windows' medians."""
    memory_mib: float | None
    sm_count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One cell as it was measured."""

    cell: MeasurementCell
    timings: tuple[Timing, ...]
    """In the order of the cell's members."""
    power_w: float | None
    """Power of the entire GPU; None where it cannot be read."""
    clock_mhz: float | None
    """That the GPU showed, mean over the windows."""
    windows: int
    """That ran."""
    rejected: tuple[str, ...] = ()
    """Why windows did not count, each reason once."""
    held_back_by: tuple[str, ...] = ()
    """What held the clock back in windows that count, where the rules accept it."""


_Line: TypeAlias = Header | Measurement


class Journal:
    """The journal of one profile, held open."""

    def __init__(self, path: Path, header: Header, *, resumes: bool) -> None:
        """Raises DeviceError: it is of another profile, somebody has it open, or it is there and is not resumed."""
        self.path = path
        self.dropped = 0
        """Lines that were torn or altered."""
        self._done: dict[MeasurementCell, Measurement] = {}
        self._ends_with_newline = True
        """The last line has its end: else the next one would become part of it."""
        try:
            self._file = os.open(
                path,
                os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                0o644,
            )
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._take(header, resumes=resumes)
        except BaseException:
            self.close()
            raise

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Cells that are done, in the order in which they were measured."""
        return tuple(self._done.values())

    def has(self, cell: MeasurementCell) -> bool:
        """Whether the cell is done."""
        return cell in self._done

    def write(self, measurement: Measurement) -> None:
        """Keep it, durably. Raises DeviceError."""
        self._append(measurement)
        self._done[measurement.cell] = measurement

    def close(self) -> None:
        """Let another process have it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _take(self, header: Header, *, resumes: bool) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DeviceError(
                f"another profile is being written to {self.path}; wait, or give another output"
            ) from error
        # Read only under the lock: another process may be in the middle of a line.
        headers = self._read()
        if not headers:
            self._rewrite(header)
        elif not resumes:
            raise DeviceError(
                f"{self.path} holds {len(self._done)} measured cells already; --resume continues after them, and a new "
                "profile needs another output or that file removed"
            )
        else:
            _check_same(self.path, headers[0], header)
            if self.dropped or not self._ends_with_newline:
                self._rewrite(header)

    def _read(self) -> list[Header]:
        """The header, if there is one; measurements go to their place."""
        content = os.pread(self._file, min(MAX_BYTES, os.fstat(self._file).st_size), 0)
        self._ends_with_newline = content.endswith(b"\n")
        headers: list[Header] = []
        for line in content.splitlines():
            try:
                found = _parse(line)
            except ValueError:
                # A torn line costs its cell, which is measured again, and not the profile.
                self.dropped += 1
                continue
            if isinstance(found, Header):
                headers.append(found)
            else:
                self._done[found.cell] = found
        if self._done and not headers:
            raise DeviceError(
                f"{self.path} has lost its first line, so it is unknown what its cells are of; remove it"
            )
        return headers

    def _rewrite(self, header: Header) -> None:
        """Write the file again without its torn lines: a torn end must not swallow the next line."""
        content = _line(header) + b"".join(map(_line, self._done.values()))
        fresh = self.path.with_name(f"{self.path.name}.new")
        try:
            with fresh.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                # The lock goes with the open file and not with the name: the new file is locked before it
                # takes the name.
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                kept = os.dup(file.fileno())
            fresh.replace(self.path)
            os.close(self._file)
            self._file = kept
            os.lseek(kept, 0, os.SEEK_END)
            sync_directory(self.path.parent)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> DeviceError:
        return DeviceError(f"the journal {self.path} cannot be written: {error}")

    def _append(self, record: _Line) -> None:
        try:
            left = memoryview(_line(record))
            while left:
                # A write may be cut short by a full disk; the rest follows or raises.
                left = left[os.write(self._file, left) :]
            # A cell takes seconds on a GPU that somebody pays for, so it is on the disk before the next one begins.
            os.fsync(self._file)
        except OSError as error:
            raise self._unwritable(error) from error


class _Tagged(msgspec.Struct, frozen=True):
    """A line's content: exactly one of the two."""

    header: Header | None = None
    measurement: Measurement | None = None


def _line(record: _Line) -> bytes:
    tagged = (
        _Tagged(header=record)
        if isinstance(record, Header)
        else _Tagged(measurement=record)
    )
    return checked_line(msgspec.json.encode(tagged))


def _parse(line: bytes) -> _Line:
    body = checked_body(line)
    try:
        tagged = msgspec.json.decode(body, type=_Tagged)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    record = tagged.header or tagged.measurement
    if record is None:
        raise ValueError("it is empty")
    return record


def _check_same(path: Path, there: Header, wanted: Header) -> None:
    """Raises DeviceError with what differs."""
    differing = [
        f"{each.name} is {getattr(there, each.name)!r} there and {getattr(wanted, each.name)!r} now"
        for each in fields(Header)
        if getattr(there, each.name) != getattr(wanted, each.name)
    ]
    if differing:
        raise DeviceError(f"{path} is of another profile: {'; '.join(differing)}")
