"""What a Pod wrote, as a log like those of processes: kubelet's file without the times and streams in front of lines.

    log = PodLog(source folder, target)
    log.copy()        append what is new to the target, which `agents.processes.logs` keeps short
    log.close()

Kubelet's file begins again when it has grown too long; the old one is read to its end first. The target's time of
change is that of the last line in it, so that a later agent goes on behind it.
"""

import contextlib
import os
import re
import threading
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

CHUNK_BYTES, CHUNKS = 1024 * 1024, 16
"""What one look takes; a Pod that writes more waits for the next."""
_FILE = "0.log"
"""A container's first start writes it, and a Pod's container has no other."""
_FRACTION = re.compile(r"\.([0-9]{1,9})")


class PodLog:
    """One Pod's."""

    def __init__(self, source: Path, target: Path) -> None:
        """`source`: the folder of its container, below kubelet's folder for logs."""
        self._source, self._target = source, target
        self._file: BinaryIO | None = None
        self._lock, self._is_closed = threading.Lock(), False
        self._cut = b""
        """The beginning of a line whose end is not written yet."""
        self._before_ns = target.stat().st_mtime_ns if target.exists() else 0
        """What was written until then an earlier agent has copied."""

    def copy(self) -> None:
        """Append what is new. What cannot be read or written now may be later."""
        # Threads of the agent's pool come in any order, the last perhaps after the end.
        with self._lock, contextlib.suppress(OSError):
            while not self._is_closed and self._copy():
                # Kubelet has begun a new file: once more, with that one.
                self._leave()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._leave()

    def _copy(self) -> bool:
        """Append what is new in the file; whether there is a newer one."""
        file = self._opened()
        for _ in range(CHUNKS):
            content = file.read(CHUNK_BYTES)
            self._append(content)
            if len(content) < CHUNK_BYTES:
                return self._is_replaced(file)
        return False

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._file = (self._source / _FILE).open("rb")
            self._cut = b""
        return self._file

    def _is_replaced(self, file: BinaryIO) -> bool:
        try:
            now = (self._source / _FILE).stat().st_ino
        except FileNotFoundError:
            return False
        return now != os.fstat(file.fileno()).st_ino

    def _append(self, content: bytes) -> None:
        *lines, self._cut = (self._cut + content).split(b"\n")
        text, newest_ns = bytearray(), 0
        for line in lines:
            # 2026-11-27T12:00:00.123456789Z stdout F text; P instead of F: the line goes on.
            moment, _, rest = line.partition(b" ")
            _, _, tagged = rest.partition(b" ")
            tag, _, said = tagged.partition(b" ")
            at_ns = _unix_ns(moment)
            if at_ns > self._before_ns:
                newest_ns = at_ns
                text += said if tag.startswith(b"P") else said + b"\n"
        if text:
            with self._target.open("ab") as target:
                target.write(text)
            os.utime(self._target, ns=(newest_ns, newest_ns))


def _unix_ns(moment: bytes) -> int:
    """Nanoseconds of an RFC 3339 time; 0 where it is none."""
    try:
        text = moment.decode("ascii")
        at = datetime.fromisoformat(text)
    except ValueError:
        return 0
    # Its own fraction ends at microseconds.
    found = _FRACTION.search(text)
    return int(at.timestamp()) * 10**9 + int(found[1].ljust(9, "0") if found else 0)
