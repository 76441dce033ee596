"""The stopwatch of the event loop: a step that waited is judged by the wall, one that computed by its thread."""

import asyncio
import time
from asyncio import events
from pathlib import Path

import pytest

from bench.campaign.deployment import watched

pytestmark = pytest.mark.thorough


def test_a_step_that_slept_held_the_loop_for_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds = tmp_path / "holds"
    monkeypatch.setenv(watched.HOLDS_FILE, str(holds))
    monkeypatch.setattr(watched, "app_from_environment", lambda: None)
    # Put back afterwards.
    monkeypatch.setattr(events.Handle, "_run", events.Handle._run)
    watched.watched_app()

    async def sleep_on_the_loop() -> None:
        time.sleep(0.1)  # noqa: ASYNC251  what the stopwatch is to see

    asyncio.run(sleep_on_the_loop())
    (hold, *_) = watched.read_holds(holds)
    assert hold.waits > 0
    assert hold.held_ms == hold.wall_ms >= 100.0


def test_a_step_that_computed_is_judged_by_its_thread() -> None:
    hold = watched.Hold(wall_ms=400.0, cpu_ms=90.0, what="")
    assert hold.held_ms == 90.0
