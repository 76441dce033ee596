"""A disk without room, for tests."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def small_files(size_bytes: int) -> Iterator[None]:
    """The system writes no file of this process beyond `size_bytes`, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
