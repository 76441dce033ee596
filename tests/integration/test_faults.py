"""Whatever is killed, whenever: nothing acknowledged is lost, no half plan is in force, and the loop goes on."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import psycopg
import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from app.base.clock import WallClock
from app.db.base import migrate
from app.db.base.leader import Leader
from app.db.base.listen import conninfo
from app.db.base.tables import gpu
from app.db.postgres_store import PostgresStore
from app.loop.tick import Loop, TickOutcome, tick
from app.postgres import server as postgres
from app.solver.inline import InlineSolver
from app.solver.process import PlanAnswer, PlanRequest, Solver, SolverWorker
from app.store.store import PlanRecord
from bench.campaign.deployment.processes import Database
from solvers.types.outcome import PlanReport
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan
from tests.app.loop.worker_bodies import nothing
from tests.integration import fault_bodies
from tests.integration.api_harness import running_api
from tests.integration.fault_harness import (
    API_ALONE,
    SECOND_SERVICE,
    Crew,
    Served,
    assert_consistent,
    controller,
    hear,
    leading_store,
    make_busy_fleet,
    remember,
    rows,
    scalar,
    served,
    until_heard,
    with_store,
    without_the_silent_node,
)
from tests.waiting import PATIENCE_S, eventually, until

pytestmark = pytest.mark.integration

_CONNECTED = (
    "SELECT count(DISTINCT application_name) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name IN ('one', 'other')"
)
_LEADERS = (
    "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database "
    "WHERE d.datname = current_database() AND locktype = 'advisory' AND granted"
)
_WAITING_TO_COMMIT = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%service_hour%'"
)


def tick_on(url: str, solver: Solver | None = None) -> TickOutcome:
    """One round of a loop that knows nothing of those before."""

    async def work(_: PostgresStore, engine: AsyncEngine) -> TickOutcome:
        async with leading_store(engine) as store:
            await hear(store, int(datetime.now(UTC).timestamp() * 1000))
            return await tick(
                Loop(store=store, solver=solver or InlineSolver(), clock=WallClock())
            )

    outcome: TickOutcome = with_store(url, work)
    return outcome


@pytest.mark.parametrize(
    ("step", "plans_left"),
    [
        ("during the solve", 0),
        pytest.param("before the plan is written", 0, marks=pytest.mark.thorough),
        pytest.param("after the plan is written", 1, marks=pytest.mark.thorough),
        pytest.param("before the push", 1, marks=pytest.mark.thorough),
        ("before the push commits", 1),
    ],
)
def test_a_controller_killed_in_the_middle_of_a_tick_leaves_nothing_half_done(
    database: str, tmp_path: Path, step: str, plans_left: int
) -> None:
    make_busy_fleet(database)
    reached = tmp_path / "reached"
    if step == "during the solve":
        with_store(database, lambda _, engine: remember(engine, str(reached)))
    with controller(database, "first", step, reached) as first:
        until_heard(database, reached.exists)
        first.kill()
        first.join()
        assert scalar(database, "SELECT count(*) FROM plan") == plans_left

        async def lead(_: PostgresStore, engine: AsyncEngine) -> bool:
            leader = Leader(engine, "second")
            got = await leader.acquire()
            await leader.release()
            return got

        until(lambda: bool(with_store(database, lead)))
    assert assert_consistent(database) == 0
    if step == "during the solve":
        with_store(database, lambda _, engine: remember(engine, None))
    outcome = tick_on(database)
    assert (outcome.state, outcome.generation) == ("target", 1)
    assert assert_consistent(database) == 1


def test_of_two_controllers_one_leads_and_the_other_takes_over_when_it_is_killed(
    database: str, tmp_path: Path
) -> None:
    make_busy_fleet(database)
    never = tmp_path / "never"
    with (
        controller(database, "one", "", never) as one,
        controller(database, "other", "", never) as other,
    ):
        pushed = "SELECT count(*) FROM target"
        until_heard(database, lambda: scalar(database, pushed) == 1)
        until(lambda: scalar(database, _CONNECTED) == 2)
        assert scalar(database, _LEADERS) == 1
        ((holder, epoch),) = rows(database, "SELECT holder, epoch FROM leader")
        assert epoch == 1
        leading, waiting = (one, other) if holder == "one" else (other, one)
        leading.kill()
        until(
            lambda: (
                rows(database, "SELECT holder, epoch FROM leader")
                == [(waiting.name, 2)]
            )
        )
        assert_consistent(database)


def test_a_solver_worker_killed_while_it_solves_costs_one_tick(
    database: str, tmp_path: Path
) -> None:
    make_busy_fleet(database)
    reached = tmp_path / "reached"

    async def work(
        store: PostgresStore, engine: AsyncEngine
    ) -> tuple[list[TickOutcome], list[int | None]]:
        await remember(engine, str(reached))
        solver = SolverWorker(run=fault_bodies.hang_once, prepare=nothing, grace_s=60.0)
        loop = Loop(store=store, solver=solver, clock=WallClock())
        try:
            running = asyncio.create_task(tick(loop))
            await eventually(reached.exists)
            pids = [solver.pid]
            assert solver.pid is not None
            os.kill(solver.pid, signal.SIGKILL)
            outcomes = [await running]
            await hear(store, 2)
            outcomes.append(await tick(loop))
            pids.append(solver.pid)
        finally:
            await solver.close()
        return outcomes, pids

    outcomes, pids = with_store(database, work)
    assert [outcome.state for outcome in outcomes] == ["kept", "target"]
    assert "the solver worker died" in outcomes[0].reason
    assert None not in pids and len(set(pids)) == 2
    assert assert_consistent(database) == 1


def test_a_solver_worker_does_not_outlive_a_killed_controller(
    database: str, tmp_path: Path
) -> None:
    make_busy_fleet(database)
    reached = tmp_path / "reached"
    with_store(database, lambda _, engine: remember(engine, str(reached)))
    with controller(database, "first", "during the solve", reached) as first:
        until_heard(database, reached.exists)
        children = f"/proc/{first.pid}/task/{first.pid}/children"
        workers = [int(pid) for pid in Path(children).read_text().split()]
        assert any(_is_python(pid) for pid in workers)
        first.kill()
        first.join()
        until(lambda: not any(_is_python(pid) for pid in workers))


def _is_python(pid: int) -> bool:
    """Whether a process id still belongs to a running worker; zombies have no command line."""
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class Rogue:
    """A policy that puts more on a GPU than it has."""

    async def start(self) -> None:
        """Always ready."""

    async def make_plan(self, request: PlanRequest) -> PlanAnswer:
        replica = ReplicaPlan(
            service="chat", sm_percent=60.0, batch=8, arrival_rate_rps=10.0
        )
        gpu = GpuPlan(gpu_type="T4", clock_mhz=1000.0, replicas=(replica, replica))
        plan = Plan(policy="hetsev", gpus=(gpu,))
        report = PlanReport(status="optimal", cost_usd_per_hour=1.2)
        return PlanAnswer(plan=plan, report=report, memory={"wrote": "this"})

    async def close(self) -> None:
        """Nothing to end."""


def test_a_plan_with_a_physical_violation_is_recorded_as_refused_and_never_pushed(
    database: str,
) -> None:
    make_busy_fleet(database)
    outcome = tick_on(database, Rogue())
    assert (outcome.state, outcome.generation) == ("refused", 0)
    assert assert_consistent(database) == 0
    assert rows(database, "SELECT state FROM plan") == [("refused",)]
    broken = rows(database, "SELECT rule, severity FROM plan_violation")
    assert ("sm", "physical") in broken
    lines = "SELECT count(*) FROM event WHERE kind = 'PlanRefused'"
    assert scalar(database, lines) == 1
    # A refused plan's policy does not get to remember it either.
    remembered = "SELECT count(memory) FROM policy_memory"
    assert scalar(database, remembered) == 0
    assert tick_on(database).state == "target"


class ChangingStore(PostgresStore):
    """Somebody changes the catalogue between plan and push, once."""

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(engine)
        self._other = engine
        self._is_changed = False

    async def record_plan(self, record: PlanRecord) -> int:
        plan_id = await super().record_plan(record)
        if not self._is_changed:
            self._is_changed = True
            async with self._other.begin() as connection:
                await connection.execute(
                    update(gpu).where(gpu.c.id == "n1/gpu-0").values(cordoned=True)
                )
        return plan_id


def test_a_plan_that_the_catalogue_overtook_is_lost_and_the_next_tick_decides_again(
    database: str,
) -> None:
    make_busy_fleet(database)

    async def work(_: PostgresStore, engine: AsyncEngine) -> list[TickOutcome]:
        loop = Loop(
            store=ChangingStore(engine), solver=InlineSolver(), clock=WallClock()
        )
        return [await tick(loop), await tick(loop)]

    lost, pushed = with_store(database, work)
    assert (lost.state, lost.generation) == ("lost", 0)
    assert (pushed.state, pushed.generation) == ("target", 1)
    assert assert_consistent(database) == 1
    assert rows(database, "SELECT DISTINCT gpu FROM plan_replica") == [("n1/gpu-1",)]


@pytest.fixture(scope="module")
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[postgres.Server]:
    """A PostgreSQL of this module's own, at the newest revision."""
    data_dir = tmp_path_factory.mktemp("doomed")
    try:
        server = postgres.start(data_dir)
        migrate.upgrade(server.url)
        yield server
    finally:
        postgres.stop(data_dir)
        shutil.rmtree(data_dir)


@pytest.mark.thorough
def test_postgres_killed_under_load_loses_nothing_acknowledged_and_everything_comes_back(
    doomed: postgres.Server, tmp_path: Path
) -> None:
    url = doomed.url
    make_busy_fleet(url)
    with_store(url, without_the_silent_node)
    with served(url, tmp_path / "serve") as plane:
        crew = asyncio.run(_live_through_an_outage(doomed, plane))
    assert_consistent(url)
    for agent, transport in zip(crew.agents, crew.transports, strict=True):
        query = f"SELECT sequence FROM observation WHERE node = '{agent.settings.node}' ORDER BY 1"
        kept = [sequence for (sequence,) in rows(url, query)]
        assert kept == list(range(1, len(kept) + 1))
        assert len(kept) >= transport.acknowledged > 10
        assert agent.outbox.dropped == 0
    # Each observation has 3 arrivals; sums were made once per observation too.
    assert scalar(url, "SELECT sum(arrivals) FROM service_hour") == 20 + 3 * scalar(
        url, "SELECT count(*) FROM observation WHERE node LIKE 'crew-%'"
    )


async def _live_through_an_outage(doomed: postgres.Server, plane: Served) -> Crew:
    """Agents under a plan, the database away and back, and a change that a new plan must answer."""
    async with Crew(plane, 3) as crew:
        await eventually(lambda: all(agent.command for agent in crew.agents))
        generation = assert_consistent(doomed.url)
        Database(server=doomed).kill()
        await eventually(lambda: all(each.refusals >= 1 for each in crew.transports))
        await asyncio.to_thread(_assert_unavailable, plane)
        await _assert_agents_go_on(crew)
        await asyncio.to_thread(postgres.start, doomed.data_dir, timeout_s=PATIENCE_S)
        await eventually(lambda: asyncio.to_thread(plane.is_ready))
        # What was kept meanwhile, and not an empty outbox, which a busy machine never sees: windows go on arriving.
        owed = [
            each.acknowledged + len(agent.outbox)
            for agent, each in zip(crew.agents, crew.transports, strict=True)
        ]
        await eventually(
            lambda: all(
                each.acknowledged >= last
                for each, last in zip(crew.transports, owed, strict=True)
            )
        )
        assert assert_consistent(doomed.url) >= generation
        # The loop leads again, hears changes again, and its commands reach the agents of the nodes that they change.
        before = max(agent.command.generation for agent in crew.agents if agent.command)
        answer = await asyncio.to_thread(
            plane.call, "PUT", "api/v1/services/second", json=SECOND_SERVICE
        )
        assert answer.status_code == 201, answer.text
        await eventually(
            lambda: any(
                agent.command and agent.command.generation > before
                for agent in crew.agents
            )
        )
    return crew


def _assert_unavailable(plane: Served) -> None:
    project = {"kind": "Project", "metadata": {"name": "p"}}
    wanted = [("GET", "plans", None), ("PUT", "projects/p", project)]
    for method, path, body in [*wanted, ("GET", "nodes", None)]:
        answer = plane.call(method, f"api/v1/{path}", json=body)
        assert answer.status_code == 503
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert int(answer.headers["Retry-After"]) >= 1
    assert not plane.is_ready()
    assert plane.call("GET", "livez").status_code == 200


async def _assert_agents_go_on(crew: Crew) -> None:
    """Without the control plane a lost replica is started again, and windows are kept."""
    kept = [len(agent.outbox) for agent in crew.agents]
    victim = next(device for device in crew.devices if device.replicas())
    lost = victim.replicas()[0].id
    await victim.stop_replica(lost)
    await eventually(lambda: any(replica.id == lost for replica in victim.replicas()))
    await eventually(
        lambda: all(
            len(a.outbox) > before for a, before in zip(crew.agents, kept, strict=True)
        )
    )


def test_an_api_killed_between_copy_and_commit_leaves_nothing_and_a_replay_counts_once(
    database: str, tmp_path: Path
) -> None:
    url = database
    make_busy_fleet(url)
    observation = {
        "node": "n1",
        "boot": "replayed",
        "sequence": 1,
        "window_start_s": datetime.now(UTC).timestamp() - 2.0,
        "window_s": 2.0,
        "generation": 0,
        "services": [{"service": "chat", "arrivals": 7, "served": 7, "in_slo": 7}],
    }
    kept = "SELECT count(*) FROM observation WHERE boot = 'replayed'"

    def send(plane: Served) -> httpx2.Response:
        return plane.call("POST", "api/v1/nodes/n1/sync", token="n1", json=observation)

    with (
        served(url, tmp_path / "first", API_ALONE) as plane,
        psycopg.connect(conninfo(url)) as blocker,
        ThreadPoolExecutor() as pool,
    ):
        # The hours are summed after the COPY and before the commit.
        blocker.execute("LOCK TABLE service_hour IN ACCESS EXCLUSIVE MODE")
        answer = pool.submit(send, plane)
        until(lambda: scalar(url, _WAITING_TO_COMMIT) > 0)
        plane.process.kill()
        # On a machine that stood still it may have given the wait for the lock up before.
        with suppress(httpx2.TransportError):
            assert answer.result().status_code == 503
        blocker.rollback()
        assert scalar(url, kept) == 0
    with running_api(url) as api:
        api.clock.advance(time.time() - api.clock.now_s())
        for _ in range(2):
            again = api.call("POST", "nodes/n1/sync", observation, token="agent")
            assert (again.status_code, again.json()["acknowledged"]) == (200, 1)
    assert scalar(url, kept) == 1
    # In addition to the 20 of the fleet's first window.
    assert scalar(url, "SELECT sum(arrivals) FROM service_hour") == 20 + 7
