"""Folders that a worker filled so as to harm whoever removes or measures them."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.processes.records import MAX_OLD, Record, Records
from agents.processes.trees import remove, size_bytes
from agents.processes.user import give_folder
from tests.agents.fakes.replicas import Node, gone, in_loop, started, until
from tests.agents.task_nodes import TaskNode, come, launch
from tests.agents.task_nodes import state as task_state

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


def test_what_is_not_there_has_no_size(tmp_path: Path) -> None:
    assert size_bytes(tmp_path / "nothing") == 0
    remove(tmp_path / "nothing")


def test_a_deep_folder_goes_after_its_replica(tmp_path: Path) -> None:
    records = Records(tmp_path, Record)
    deep(records.folder("r1"))
    records.remove("r1")
    # Nothing of the tree is looked at: others wait for whoever calls this.
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


def test_old_folders_that_are_deep_give_way_as_all_do(tmp_path: Path) -> None:
    records = Records(tmp_path, Record)
    for number in range(MAX_OLD + 1):
        deep(records.folder(f"t{number}"), depth=1200 if number == 0 else 1)
        os.utime(records.folder(f"t{number}"), (number, number))
    records.remove("t5", keeps_folder=True)
    asyncio.run(records.tidy())
    assert not records.folder("t0").exists()
    assert len(left(tmp_path / "work")) == MAX_OLD
    records.close()


def test_a_folder_is_given_anew_though_what_was_there_is_deep(tmp_path: Path) -> None:
    deep(tmp_path / "r1", 1200)
    give_folder(tmp_path / "r1", None, keeps=False)
    assert left(tmp_path / "r1") == []


@pytest.mark.integration
@in_loop
async def test_a_replica_that_made_a_deep_folder_is_stopped(tmp_path: Path) -> None:
    async with Node(directory=tmp_path).workers() as workers:
        await started(workers)
        (folder,) = (tmp_path / "work").iterdir()
        deep(folder, 1200)
        await workers.stop("r1")
        await gone(workers)
        # While the agent runs, and not only at its end.
        await until(lambda: left(tmp_path / "work") == [])


@pytest.mark.integration
@in_loop
async def test_a_stopped_task_keeps_its_deep_folder(tmp_path: Path) -> None:
    async with TaskNode(directory=tmp_path).tasks() as tasks:
        await tasks.start(launch())
        await come(tasks, "running")
        (folder,) = (tmp_path / "tasks" / "work").iterdir()
        deep(folder / "own", 1200)
        await tasks.stop("t1")
        await until(lambda: task_state(tasks) == "absent")
    assert (folder / "own").exists()
