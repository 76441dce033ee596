"""Tasks through the whole path: `plimsoll serve` and real agents as processes, over HTTP and PostgreSQL."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from app.base.token_file import write_token
from app.db.operations.token_secrets import TokenOrder
from app.db.postgres_store import PostgresStore
from app.db.predictions import profiles
from app.db.workloads import services
from bench.real_store import make_tokens
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import Scaling, Service, Slo
from tests.integration.fault_harness import (
    plimsoll,
    rows,
    scalar,
    with_store,
)
from tests.integration.fleet import make_fleet
from tests.integration.test_api_tasks import task
from tests.ports import a_free_port, own_environment
from tests.waiting import until

pytestmark = pytest.mark.integration
REPLICA_MIB = 2048.0
POINTS = OperatingPoints(
    network="resnet50",
    gpu_type="T4",
    sensitivity=0.5,
    rows=tuple(
        OperatingPoint(sm, 8, 1000.0, 1.0, 1.0, 480.0 / sm, REPLICA_MIB, 20.0, 0.1)
        for sm in (40.0, 60.0)
    ),
)
"""Two shares that fit next to each other."""
SERVICE = Service(
    name="chat",
    network="resnet50",
    slo=Slo(latency_ms=400.0, percentile=0.98),
    scaling=Scaling(min_replicas=1, max_replicas=1),
)


@dataclass(slots=True, kw_only=True)
class Plane:
    """A control plane on a database, which may be killed and started again at the same port, and a node's agent."""

    url: str
    port: int
    folder: Path
    secrets: dict[str, str]
    process: "subprocess.Popen[bytes] | None" = None
    starts: int = 0
    client: httpx2.Client = field(default_factory=lambda: httpx2.Client(timeout=15.0))
    """One for all calls: each client loads the system's authorities."""

    def call(self, method: str, path: str, **request: Any) -> httpx2.Response:
        headers = {
            "Authorization": f"Bearer {self.secrets['admin']}",
            **request.pop("headers", {}),
        }
        address = f"http://127.0.0.1:{self.port}/api/v1/{path}"
        return self.client.request(method, address, headers=headers, **request)

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"tasks/{name}").json()["status"]
        return found

    def drain(self) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", "nodes/n1").json()["status"]["drain"]
        return found

    def start(self) -> None:
        self.starts += 1
        folder = self.folder / f"plane-{self.starts}"
        folder.mkdir()
        self.process = plimsoll(
            ["serve", "--port", str(self.port)], folder, PLIMSOLL_DATABASE_URL=self.url
        )
        until(self.is_ready)

    def is_ready(self) -> bool:
        try:
            address = f"http://127.0.0.1:{self.port}/readyz"
            return self.client.get(address).status_code == 200
        except httpx2.TransportError:
            return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @contextmanager
    def agent(self) -> Iterator[None]:
        """Node n1 with two fake T4s."""
        token_file = self.folder / "agent.token"
        write_token(token_file, self.secrets["agent"])
        gpus = "--device fake --gpu-type T4 --gpus 2 --gpu-memory-mib 16384"
        paths = [
            "--token-file",
            str(token_file),
            "--state-dir",
            str(self.folder / "n1"),
        ]
        words = f"--url http://127.0.0.1:{self.port} --node n1 {gpus} --launch-s 0.2 --period-s 0.5"
        words += f" --router-port {a_free_port()}"
        process = subprocess.Popen(
            [sys.executable, "-m", "agents.main", *words.split(), *paths],
            env=own_environment(),
            cwd=os.fspath(Path(__file__).parents[2]),
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def put_policy(plane: Plane, **spec: object) -> None:
    policy = {"kind": "Policy", "metadata": {"name": "default"}, "spec": spec}
    any_version = {"If-Match": "*"}
    answer = plane.call("PUT", "policies/default", json=policy, headers=any_version)
    assert answer.status_code == 200


@pytest.fixture
def plane(database: str, tmp_path: Path) -> Iterator[Plane]:
    async def prepare(_: PostgresStore, engine: AsyncEngine) -> dict[str, str]:
        await make_fleet(engine, {"default": []})
        at = datetime.now(UTC)
        async with engine.begin() as connection:
            await profiles.save_profiles(
                connection,
                [profiles.StoredProfile(points=POINTS, provenance="measured")],
                at=at,
            )
            await services.save(connection, SERVICE, at=at, actor="test")
        orders = (
            TokenOrder(name="admin", scope="admin"),
            # Used once: the agent keeps what it gets for it over its restarts.
            TokenOrder(name="agent", scope="join", uses_left=1),
        )
        return await make_tokens(engine, orders)

    plane = Plane(
        url=database,
        port=a_free_port(),
        folder=tmp_path,
        secrets=with_store(database, prepare),
    )
    try:
        plane.start()
        put_policy(plane, policy="hetsev_greedy", period_s=0.5)
        yield plane
    finally:
        plane.kill()
        plane.client.close()


def submit(plane: Plane, name: str, iterations: int) -> None:
    """A job that has what the service's replica leaves over."""
    answer = plane.call("PUT", f"tasks/{name}", json=task(name, iterations=iterations))
    assert answer.status_code == 201, answer.text


def has_done_something(plane: Plane, name: str) -> bool:
    return bool(plane.status(name)["done_iterations"] > 0.0)


def test_a_task_runs_to_its_end_through_a_crash_of_the_control_plane_and_a_cancelled_one_leaves_its_node(
    plane: Plane,
) -> None:
    with plane.agent():
        submit(plane, "nightly", 200)
        until(lambda: has_done_something(plane, "nightly"))
        before = plane.status("nightly")
        assert before["state"] == "running"
        plane.kill()
        plane.start()
        after = plane.status("nightly")
        assert after["done_iterations"] >= before["done_iterations"]
        assert after["submitted_at"] == before["submitted_at"]
        until(lambda: plane.status("nightly")["state"] == "finished")
        done = plane.status("nightly")
        assert (done["done_iterations"], done["starts"], done["swaps"]) == (200.0, 1, 0)
        lines = plane.call("GET", "events?subject=task/nightly").json()["items"]
        kinds = [line["kind"] for line in lines]
        assert kinds == ["TaskFinished", "TaskStarted", "TaskSubmitted"]

        submit(plane, "endless", 1_000_000)
        until(lambda: has_done_something(plane, "endless"))
        cancelled = plane.call("POST", "tasks/endless/cancel").json()
        assert cancelled["status"]["state"] == "cancelled"
        # Its memory is free again on the node: what is left is the service's replica.
        memory = "SELECT DISTINCT ON (gpu) memory_used_mib FROM gpu_observation ORDER BY gpu, window_start DESC"
        until(
            lambda: (
                sorted(row[0] for row in rows(plane.url, memory)) == [0.0, REPLICA_MIB]
            )
        )
        placed = "SELECT count(gpu) FROM task WHERE name = 'endless'"
        assert scalar(plane.url, placed) == 0
        billed = "SELECT task, cost_usd > 0 FROM report.cost_by_task_hour GROUP BY task, cost_usd > 0 ORDER BY task"
        assert rows(plane.url, billed) == [("endless", True), ("nightly", True)]


@pytest.mark.thorough
def test_under_policy_oltunes_jobs_are_dispatched_beside_the_tick_and_done(
    plane: Plane,
) -> None:
    put_policy(plane, policy="oltunes", period_s=5.0)
    with plane.agent():
        until(lambda: scalar(plane.url, "SELECT count(*) FROM gpu") == 2)
        pushed = "SELECT count(*) FROM plan WHERE state = 'target'"
        until(lambda: scalar(plane.url, pushed) > 0)
        names = ("first", "second", "third")
        for name in names:
            submit(plane, name, 200)
        until(lambda: all(plane.status(name)["state"] == "finished" for name in names))
        assert [plane.status(name)["done_iterations"] for name in names] == [200.0] * 3
        # Who made the plan is said by its report: the dispatcher's count jobs, the tick's plan services.
        found = "SELECT count(*) FROM plan WHERE {}"
        dispatched = found.format("method = 'dispatch' AND state <> 'lost'")
        assert scalar(plane.url, dispatched) >= 1
        assert scalar(plane.url, found.format("state = 'refused'")) == 0


@pytest.mark.thorough
def test_a_task_goes_on_where_it_was_when_its_node_s_agent_was_killed(
    plane: Plane,
) -> None:
    with plane.agent():
        submit(plane, "nightly", 1_000_000)
        until(lambda: bool(plane.status("nightly")["done_iterations"] >= 50.0))
    seen = [plane.status("nightly")["done_iterations"]]

    def goes_on() -> bool:
        seen.append(plane.status("nightly")["done_iterations"])
        return bool(seen[-1] > seen[0] + 50.0)

    with plane.agent():
        until(goes_on)
    assert seen == sorted(seen)


@pytest.mark.thorough
def test_a_draining_node_keeps_its_running_task_until_the_deadline_and_then_what_it_did_is_known(
    plane: Plane,
) -> None:
    with plane.agent():
        submit(plane, "nightly", 1_000_000)
        until(lambda: has_done_something(plane, "nightly"))
        submit(plane, "later", 100)
        drain(plane, deadline_s=600)
        before = plane.status("nightly")["done_iterations"]
        until(lambda: bool(plane.status("nightly")["done_iterations"] > before + 20.0))
        # Nothing has left, since there is no other node for the service, and nothing new has come.
        left = plane.drain()
        assert (left["replicas_left"], left["tasks_left"]) == (1, 1)
        assert plane.status("nightly")["starts"] == 1
        assert not has_done_something(plane, "later")

        drain(plane, deadline_s=0)
        until(lambda: plane.drain()["tasks_left"] == 0)
        assert plane.status("nightly")["done_iterations"] > before + 20.0


def drain(plane: Plane, *, deadline_s: int) -> None:
    answer = plane.call("POST", "nodes/n1/drain", json={"deadline_s": deadline_s})
    assert answer.status_code == 200, answer.text
