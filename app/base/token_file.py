"""The file that keeps a user's token between commands."""

import os
from pathlib import Path


def write_token(path: Path, secret: str) -> None:
    """Keep a token, readable by this user only, in place of the one before. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(secret + "\n")
    fresh.replace(path)
