"""Questions to the MPS daemon, of which it takes one at a time, as an H100 showed."""

import asyncio
import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from agents.base.device import DeviceError
from agents.gpu.mps.control import Control
from agents.gpu.mps.directory import MpsDirectory
from tests.waiting import PATIENCE_S, run

PROGRAM = """#!/bin/sh
cd "{directory}"
if ! mkdir asked 2>/dev/null; then
  echo refused >>refusals
  echo "Cannot send command to MPS control daemon process" >&2
  exit 1
fi
cat >/dev/null
sleep 0.02
rmdir asked
echo 100.0
"""


def control(directory: Path) -> Control:
    program = directory / "control"
    program.write_text(PROGRAM.format(directory=directory))
    program.chmod(0o755)
    of_gpu = MpsDirectory(gpu_uuid="GPU-1", path=directory / "mps")
    return Control(str(program), os.environ, of_gpu, answer_s=PATIENCE_S)


def test_questions_of_one_agent_wait_for_each_other(tmp_path: Path) -> None:
    async def ask() -> list[tuple[str, ...]]:
        asked = control(tmp_path)
        return await asyncio.gather(*(asked.ask("get_x") for _ in range(5)))

    assert asyncio.run(ask()) == [("100.0",)] * 5
    assert not (tmp_path / "refusals").exists()


def test_a_daemon_that_answers_somebody_else_is_asked_again(tmp_path: Path) -> None:
    async def ask() -> tuple[str, ...]:
        (tmp_path / "asked").mkdir()
        asking = asyncio.create_task(control(tmp_path).ask("get_x"))
        while not (tmp_path / "refusals").exists():  # noqa: ASYNC110  a process does not tell
            await asyncio.sleep(0.01)
        (tmp_path / "asked").rmdir()
        return await asking

    assert asyncio.run(ask()) == ("100.0",)


def test_one_that_never_has_time_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By this clock the daemon's time is over soon; each program has all of a test's.
    clock = SimpleNamespace(monotonic=itertools.count(0.0, PATIENCE_S / 2.0).__next__)
    monkeypatch.setattr("agents.gpu.mps.control.time", clock)
    (tmp_path / "asked").mkdir()
    with pytest.raises(DeviceError, match="does not accept 'get_x'"):
        run(control(tmp_path).ask("get_x"))
