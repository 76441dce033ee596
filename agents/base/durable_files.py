"""What a node keeps on disk: files that are the old or the new after any death, lines that tell when they were damaged.

replace_file(path, content)     written next to its place, synced, renamed; durable when it returns
write_synced(path, content)     the first half of it, for who renames by rules of his own
sync_directory(directory)       after names in it have changed
lock(path, wait_s)              held by one process at a time; gone with it
checked_line(body)              16 digits of its SHA-256, a blank, the body, a line end
checked_body(line)              the body of such a line; raises ValueError where it is torn or altered
"""

import fcntl
import hashlib
import os
import time
from functools import partial
from pathlib import Path


def read_boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """The kernel's identity of this start of the machine; raises OSError."""
    return path.read_text(encoding="ascii").strip()


LOOK_AGAIN_S = 0.02


def replace_file(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Give the file that content, with the mode less the umask. Raises OSError, and then it has its old one."""
    fresh = path.with_name(f"{path.name}.new")
    # What a death left there may have another mode.
    fresh.unlink(missing_ok=True)
    write_synced(fresh, content, mode=mode)
    # A rename is atomic: readers find the old content or the new, never a part.
    fresh.replace(path)
    sync_directory(path.parent)


def write_synced(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file whose content is on disk on return; its name may not be. Raises OSError.

    `mode`: of a file that is new, less the umask.
    """
    with open(path, "wb", opener=partial(os.open, mode=mode)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Put new, changed and removed names of a directory on disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(path: Path, wait_s: float) -> int:
    """The descriptor that holds the lock until it is closed; no child inherits it.

    Raises BlockingIOError where another process holds it for longer than `wait_s`, and other OSErrors at once.
    """
    # The file stays when the lock goes: removing it would let two processes lock two files of one name.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError as error:
            if not isinstance(error, BlockingIOError) or time.monotonic() > until_s:
                os.close(descriptor)
                raise
            time.sleep(LOOK_AGAIN_S)


def checked_line(body: bytes) -> bytes:
    """One line with a checksum; the body has no line end."""
    return _checksum(body) + b" " + body + b"\n"


def checked_body(line: bytes) -> bytes:
    """What such a line, without its end, says. Raises ValueError."""
    checksum, _, body = line.partition(b" ")
    if checksum != _checksum(body):
        raise ValueError("its checksum does not match")
    return body


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:16].encode("ascii")
