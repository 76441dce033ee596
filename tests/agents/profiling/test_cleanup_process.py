"""The cleanup process of a profile, and what is left where it cannot be started."""

import asyncio
from pathlib import Path

import pytest

from agents.base.device import LaunchFailed
from agents.profiling.cells import grid
from agents.profiling.node import ProfileSettings, open_profile
from tests.agents.profiling.nodes import FakeGpu, templates


def test_no_directory_is_left_where_the_cleanup_process_cannot_be_started(
    tmp_path: Path,
) -> None:
    work_dir = tmp_path / "work"
    work_dir.mkdir()
    settings = ProfileSettings(
        cells=tuple(grid(["resnet50"], [100.0], [1])),
        gpu_type="V100-32GB",
        templates=templates(tmp_path / "signs"),
        budget_s=1.0,
        work_dir=work_dir,
        # Linux starts no program with a variable of more than 128 KiB.
        environment={"TOO_LONG": "x" * 200_000},
    )

    async def profile() -> None:
        async with open_profile(settings, FakeGpu()):
            pytest.fail("it was opened without a cleanup process")

    with pytest.raises(LaunchFailed, match="cannot be started"):
        asyncio.run(profile())
    assert list(work_dir.iterdir()) == []
