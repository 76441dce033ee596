"""The solver worker with real processes: answers, limits, deaths and what comes after them."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest

from app.solver.child import Prepare
from app.solver.process import PlanRequest, SolverUnavailable, SolverWorker
from solvers.policies.warm_up import tiny_problem
from solvers.types.outcome import Budget, Stability
from solvers.types.state import Json, Observed
from tests.app.loop import worker_bodies
from tests.integration.scenes import Body, scene
from tests.waiting import PATIENCE_S, eventually, in_loop, run

pytestmark = pytest.mark.integration

AMPLE_S = PATIENCE_S
LIMIT_S = 0.3
"""Long enough for a child to answer an easy request, or for the test's point: to be killed after."""


def request(
    policy: str, *, memory: Json = None, seconds: float = AMPLE_S
) -> PlanRequest:
    return PlanRequest(
        policy=policy,
        problem=tiny_problem(),
        observed=Observed(at_s=0.0),
        memory=memory,
        budget=Budget(seconds=seconds),
    )


def with_worker(
    scenario: Callable[[SolverWorker], Awaitable[None]],
    *,
    prepare: Prepare = worker_bodies.nothing,
    start_limit_s: float = AMPLE_S,
    grace_s: float = 0.0,
    niceness: int = 0,
) -> None:
    async def work() -> None:
        worker = SolverWorker(
            run=worker_bodies.obey,
            prepare=prepare,
            start_limit_s=start_limit_s,
            grace_s=grace_s,
            niceness=niceness,
        )
        try:
            await scenario(worker)
        finally:
            await worker.close()
        assert worker.pid is None

    run(work())


def on_worker(**options: Any) -> Callable[[Body], Callable[..., None]]:
    """For tests that run as a coroutine `with_worker`."""
    return scene(lambda body: with_worker(body, **options), supplies=("worker",))


async def pid_of(worker: SolverWorker) -> int:
    """The process that answers an easy request."""
    answer = await worker.make_plan(request("easy"))
    return int(answer.report.method.removeprefix("pid "))


def test_a_worker_has_a_priority_of_its_own_whatever_that_of_its_parent_has_become() -> (
    None
):
    async def scenario(worker: SolverWorker) -> None:
        first = await pid_of(worker)
        assert os.getpriority(os.PRIO_PROCESS, first) == wanted
        os.kill(first, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, first, os.WEXITED | os.WNOWAIT)
        second = await pid_of(worker)
        assert second != first
        assert os.getpriority(os.PRIO_PROCESS, second) == wanted

    wanted = os.getpriority(os.PRIO_PROCESS, 0) + 3
    with_worker(scenario, niceness=wanted)


def test_what_keeps_a_worker_from_starting_is_told_when_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_: object) -> None:
        raise OSError("no more processes")

    async def scenario(worker: SolverWorker) -> None:
        worker.begin()
        with pytest.raises(SolverUnavailable, match="no more processes"):
            await worker.start()

    monkeypatch.setattr(SpawnProcess, "start", refused)
    with_worker(scenario)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def recovers(worker: SolverWorker, *, after: int) -> int:
    """The process that answers the next call; the old one is gone."""
    assert not is_alive(after)
    fresh = await pid_of(worker)
    assert fresh not in (after, os.getpid())
    return fresh


@on_worker()
async def test_one_child_answers_call_after_call_and_several_at_once(
    worker: SolverWorker,
) -> None:
    worker.begin()
    begun = worker.pid
    worker.begin()
    await worker.start()
    assert (begun, worker.pid) == (await pid_of(worker), begun)
    assert begun != os.getpid()
    one_by_one = [
        await worker.make_plan(request("easy", memory={"n": n})) for n in range(3)
    ]
    assert [answer.memory for answer in one_by_one] == [{"n": 0}, {"n": 1}, {"n": 2}]
    at_once = await asyncio.gather(
        *(worker.make_plan(request("easy", memory=n)) for n in range(5))
    )
    assert [answer.memory for answer in at_once] == [0, 1, 2, 3, 4]
    answers = (*one_by_one, *at_once)
    assert {answer.report.method for answer in answers} == {f"pid {begun}"}
    # Nor does a policy that raises cost the child.
    why = "policy raise failed: ValueError: no such luck"
    with pytest.raises(SolverUnavailable, match=why):
        await worker.make_plan(request("raise"))
    assert await pid_of(worker) == begun


@on_worker()
async def test_however_a_child_ends_it_costs_one_answer_and_the_next_call_gets_another(
    worker: SolverWorker, tmp_path: Path
) -> None:
    pid = await pid_of(worker)
    late = request("spin", memory=str(tmp_path / "late"), seconds=LIMIT_S)
    with pytest.raises(SolverUnavailable, match=r"killed after 0\.3 s"):
        await worker.make_plan(late)
    pid = await recovers(worker, after=pid)
    with pytest.raises(SolverUnavailable, match="died"):
        await worker.make_plan(request("die"))
    pid = await recovers(worker, after=pid)
    # Cancelled, it never hands its answer to the next one.
    began = tmp_path / "began"
    call = asyncio.create_task(worker.make_plan(request("spin", memory=str(began))))
    await eventually(began.exists)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    pid = await recovers(worker, after=pid)
    # Killed between calls, it costs one at most.
    os.kill(pid, signal.SIGKILL)
    try:
        assert await pid_of(worker) != pid
    except SolverUnavailable:
        await recovers(worker, after=pid)


@on_worker()
async def test_whoever_ends_it_does_not_wait_for_a_solve_and_no_other_child_starts(
    worker: SolverWorker, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    await pid_of(worker)
    solving = asyncio.create_task(worker.make_plan(request("spin", memory=str(began))))
    waiting = asyncio.create_task(worker.make_plan(request("easy")))
    await eventually(began.exists)
    # Of the solve's own limit, AMPLE_S, nothing has passed yet.
    async with asyncio.timeout(AMPLE_S / 2):
        await worker.close()
    for call in (solving, waiting):
        with pytest.raises(SolverUnavailable):
            await call
    worker.begin()
    assert worker.pid is None


@on_worker(prepare=worker_bodies.spin_at_once)
async def test_whoever_ends_it_does_not_wait_until_it_has_started(
    worker: SolverWorker,
) -> None:
    starting = asyncio.create_task(worker.make_plan(request("easy")))
    await eventually(lambda: worker.pid is not None)
    async with asyncio.timeout(AMPLE_S / 2):
        await worker.close()
    with pytest.raises(SolverUnavailable):
        await starting


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (worker_bodies.die_at_once, "died while it started"),
        (worker_bodies.spin_at_once, "not start"),
    ],
)
def test_a_child_that_cannot_start_is_reported(prepare: Prepare, words: str) -> None:
    limit_s = LIMIT_S if prepare is worker_bodies.spin_at_once else AMPLE_S

    async def scenario(worker: SolverWorker) -> None:
        for _ in range(2):
            with pytest.raises(SolverUnavailable, match=words):
                await worker.make_plan(request("easy"))
        assert worker.pid is None

    with_worker(scenario, prepare=prepare, start_limit_s=limit_s)


def test_a_child_that_compiles_is_told_of_once_and_then_that_it_has_ended() -> None:
    told: list[bool] = []

    async def scenario() -> None:
        worker = SolverWorker(
            run=worker_bodies.obey,
            prepare=worker_bodies.compile_three,
            on_compiling=told.append,
        )
        try:
            await worker.start()
            assert told == [True, False]
            assert (await worker.make_plan(request("easy"))).plan.policy == "easy"
        finally:
            await worker.close()

    asyncio.run(scenario())
    # The second policy is prepared as the first was.
    assert told == [True, False] * 2


@pytest.mark.thorough
@in_loop
async def test_a_killed_child_loses_its_warm_state_and_nothing_else() -> None:
    worker = SolverWorker()
    try:
        budget = Budget(seconds=AMPLE_S, stability=Stability(min_dwell_s=60.0))
        first = await worker.make_plan(replace(request("joint"), budget=budget))
        assert isinstance(first.memory, dict)
        assert first.memory["warm"] is not None
        again = replace(
            request("joint", memory=first.memory),
            observed=Observed(at_s=5.0),
            budget=budget,
        )
        again = replace(again, problem=replace(again.problem, current=first.plan))
        warm = await worker.make_plan(again)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        with contextlib.suppress(SolverUnavailable):
            await worker.make_plan(again)
        # The next child may or may not have answered already; it knows no token of the old one.
        cold = await worker.make_plan(replace(again, memory=warm.memory))
    finally:
        await worker.close()
    assert cold.plan == warm.plan == first.plan


@pytest.mark.thorough
@on_worker(grace_s=0.2)
async def test_after_each_kill_the_next_call_may_overrun_its_limit_by_twice_as_much(
    worker: SolverWorker, tmp_path: Path
) -> None:
    for limit in (r"0\.5", r"0\.7", r"1\.1"):
        await pid_of(worker)
        with pytest.raises(SolverUnavailable, match=f"killed after {limit} s"):
            await worker.make_plan(
                request("spin", memory=str(tmp_path / "began"), seconds=LIMIT_S)
            )
