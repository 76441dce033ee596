"""The demo from its command to its report: the loop of the benchmark, kept in a real PostgreSQL."""

import asyncio
import io
import math
from pathlib import Path

import psycopg
import pytest
from rich.console import Console

from app.base.settings import Settings
from app.db.base.listen import WAKE_CHANNEL, conninfo, noted_wakes
from app.demo.run import DemoOptions, run_demo
from app.demo.scenario import demo_cluster
from bench.closed_runs import run_closed

pytestmark = pytest.mark.integration

DURATION_S = 180.0
"""So short that the burst in which the load begins makes a service miss its SLO: three minutes have no time to make
up for it."""


def _run(directory: Path, *, limit_s: float) -> tuple[int, str]:
    """Exit code and output of a short demo."""
    options = DemoOptions(
        settings=Settings(data_dir=directory / "data"),
        seed=1,
        keep=False,
        duration_s=DURATION_S,
        limit_s=limit_s,
    )
    out = io.StringIO()
    code = run_demo(options, Console(file=out, width=200))
    return code, out.getvalue()


@pytest.mark.parametrize(
    ("limit_s", "shown_s"),
    [
        # A machine without time shows the first minutes of the same run.
        (0.0, 60.0),
        pytest.param(math.inf, DURATION_S, marks=pytest.mark.thorough),
    ],
)
def test_its_figures_and_its_verdict_are_those_of_the_benchmark_for_that_seed(
    tmp_path: Path, limit_s: float, shown_s: float
) -> None:
    code, output = _run(tmp_path, limit_s=limit_s)
    expected = run_closed(demo_cluster("joint", 1), shown_s)
    report, _, _ = output.partition("asked in SQL")
    rows = [line.split() for line in report.splitlines()]
    found = {row[0]: row for row in rows if row and row[0] in expected.attained}
    for name, attained in expected.attained.items():
        assert f"{100 * attained:.2f}%" in found[name]
        assert f"{expected.bill.whole_gpu_usd[name]:.3f}" in found[name]
    (handovers,) = (row for row in rows if row[:1] == ["handovers"])
    assert handovers[1] == f"{expected.handover_usd:.3f}"
    decisions = next(line for line in output.splitlines() if "plans pushed" in line)
    assert decisions.endswith(f" {expected.plans_pushed} plans pushed")
    missed = expected.missed
    assert code == (1 if missed else 0)
    assert output.count(" MISSED ") == len(missed)
    assert ("verdict: every SLO was kept" in output) == (not missed)
    assert "look at it at http://127.0.0.1:" in output
    assert ("(of 3 minutes: this machine was busy" in output) == (shown_s < DURATION_S)


def test_what_woke_the_loop_before_the_question_is_in_the_answer(
    database: str,
) -> None:
    async def ask() -> None:
        async with (
            await psycopg.AsyncConnection.connect(
                conninfo(database), autocommit=True
            ) as other,
            noted_wakes(database) as are_woken,
        ):
            assert not await are_woken()
            # Often, since a notification that came late once in a while would make the demo another one.
            for _ in range(100):
                await other.execute("SELECT pg_notify(%s, 'a test')", [WAKE_CHANNEL])
                assert await are_woken()
                assert not await are_woken()

    asyncio.run(ask())
