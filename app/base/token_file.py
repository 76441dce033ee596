"""The file that keeps a user's token between commands, and what is said of it."""

import os
from pathlib import Path


def write_token(path: Path, secret: str) -> None:
    """Keep a token, readable by this user only, in place of the one before. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Written next to it and renamed: a reader never sees half a token, and two writers do not mix theirs.
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    # The mode is given at creation: there is no moment at which others can read it.
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(secret + "\n")
    fresh.replace(path)


def keep_token(path: Path, secret: str, *, is_seen: bool) -> str:
    """Keep a new token, and say where; with the token itself where a person reads this now. Raises OSError.

    `is_seen`: it goes to a terminal. Anywhere else it may become a line of a log, which more people read than the file.
    """
    write_token(path, secret)
    if is_seen:
        return f"shown once and saved to {path}:\n  {secret}"
    return f"saved to {path}; not shown, as this is not a terminal"
