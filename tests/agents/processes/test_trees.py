"""Folders that a worker filled so as to harm those who remove or measure them."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.processes.care import keep_tidy
from agents.processes.records import Record, Records
from agents.processes.trees import remove, size_bytes
from tests.waiting import eventually, in_loop

DEPTH = 2100
"""Twice what Python's own functions get down to; longer than a path may be, too."""


@pytest.fixture(autouse=True)
def _leave_nothing(tmp_path: Path) -> Iterator[None]:
    """Nothing that pytest, which removes old folders by Python's functions, would fail at days later."""
    yield
    remove(tmp_path)


def deep(folder: Path, depth: int = DEPTH) -> None:
    """Folders in each other, as `mkdir x; cd x` makes them, and a file at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("x", dir_fd=here)
        inner = os.open("x", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here)
    os.truncate(file, 10_000_000)
    os.close(file)
    os.close(here)


def left(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def test_a_deep_folder_is_measured_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "-rf --option"
    deep(folder)
    assert 10_000_000 <= size_bytes(folder) < 10_000_000 + DEPTH * 8192
    remove(folder)
    assert not folder.exists()


def test_links_are_neither_measured_nor_removed_through(tmp_path: Path) -> None:
    folder, precious = tmp_path / "work", tmp_path / "precious"
    folder.mkdir()
    precious.write_bytes(b"x" * 1_000_000)
    (folder / "link").symlink_to(precious)
    (folder / "up").symlink_to(tmp_path)
    assert size_bytes(folder) < 100_000
    remove(folder)
    assert precious.exists() and not folder.exists()


def test_a_deep_folder_goes_after_its_replica(tmp_path: Path) -> None:
    records = Records(tmp_path, Record)
    deep(records.folder("r1"))
    records.remove("r1")
    # Nothing of the tree is looked at: others wait for the caller of this.
    assert not records.folder("r1").exists()
    assert left(tmp_path / "work") != []

    async def scenario() -> None:
        interrupted = asyncio.create_task(records.tidy())
        await asyncio.sleep(0)
        interrupted.cancel()
        await asyncio.wait({interrupted})

    asyncio.run(scenario())
    records.close()
    # What an agent that died had set aside goes after the next start.
    records = Records(tmp_path, Record)
    asyncio.run(records.tidy())
    assert left(tmp_path / "work") == []
    records.close()


@in_loop
async def test_a_removed_folder_goes_while_the_agent_runs(tmp_path: Path) -> None:
    records = Records(tmp_path, Record)
    deep(records.folder("r1"))
    records.remove("r1")
    tidying = asyncio.create_task(keep_tidy(records, lambda: ()))
    await eventually(lambda: left(tmp_path / "work") == [])
    tidying.cancel()
    await asyncio.wait({tidying})
    records.close()
