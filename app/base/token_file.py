"""The file that keeps a user's token between commands."""

import os
from pathlib import Path


def write_token(path: Path, secret: str) -> None:
    """Keep a token, readable by this user only, in place of the one before. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Written beside it and renamed: a reader never sees half a token, and two writers do not mix theirs.
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    # The mode is given at creation: there is no moment at which others can read it.
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(secret + "\n")
    fresh.replace(path)
