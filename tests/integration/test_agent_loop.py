"""The agent as it runs: its loops on a fast clock, over HTTP, and as a process that is killed and started again."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web

from agents.base.clock import ScaledClock
from agents.base.protocol import Observation, SyncReply
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.main import main
from agents.sim.cluster import ClusterScript, SimulatedCluster
from agents.sim.device import SimulatedDevice
from agents.sync.ledger import Ledger
from agents.sync.transport import (
    ControlPlaneSilent,
    DirectTransport,
    HttpTransport,
    NotAuthorised,
    TransportError,
    Unacceptable,
)
from app.base.token_file import write_token
from tests.agents.control_planes import PaperControlPlane
from tests.agents.factories import a_command, a_gpu, a_replica, an_observation
from tests.agents.sim.worlds import EvenLoad, PlainWorld, a_node
from tests.ports import a_free_port
from tests.waiting import PATIENCE_S, eventually, run

pytestmark = pytest.mark.integration

COMMAND = a_command(a_gpu(a_replica("r1", batch=8)), generation=3)
SPEED = 50.0


def in_order(sequences: list[int]) -> bool:
    """Whether none is missing or comes late; after a command the newest comes once more, so that the next is heard."""
    return sequences == sorted(sequences) and sorted(set(sequences)) == list(
        range(1, sequences[-1] + 1)
    )


class Running:
    """A simulated node with its agent's loops running, 50 times as fast as the wall clock."""

    def __init__(self) -> None:
        self.clock = ScaledClock(speed=SPEED)
        self.plane = PaperControlPlane(self.clock, COMMAND)
        scenario = ClusterScript(loads={"chat": EvenLoad(rate_rps=100.0)}, seed=1)
        self.cluster = SimulatedCluster(
            (a_node("n1"),), scenario, world=PlainWorld(), clock=self.clock
        )
        self.came: dict[int, int] = {}
        """By observation: the requests that had come to the cluster when it had been made."""
        self.agent = NodeAgent(
            AgentSettings(node="n1", boot="b1"),
            SimulatedDevice(self.cluster, "n1"),
            transport=DirectTransport(self.plane.answer),
            clock=self.clock,
            ledger=Ledger(None),
        )
        self.agent.outbox.on_add = self.note

    def note(self, made: Observation) -> None:
        self.came[made.sequence] = sum(each.arrivals for each in self.cluster.totals())

    async def run(self, is_enough: Callable[[], bool]) -> None:
        stop = asyncio.Event()
        loops = asyncio.create_task(self.agent.run(stop))
        try:
            await eventually(lambda: is_enough() or loops.done())
        finally:
            stop.set()
            await loops

    def is_applied(self) -> bool:
        return any(
            ack.status == "applied" for each in self.plane.received for ack in each.acks
        )


def arrivals(observations: list[Observation]) -> int:
    """What came in all their windows; an observation that was sent twice counts once."""
    once = {each.sequence: each for each in observations}
    return sum(service.arrivals for each in once.values() for service in each.services)


def test_the_loops_carry_a_command_out_and_count_every_request() -> None:
    running = Running()
    run(running.run(lambda: running.is_applied() and len(running.plane.received) >= 10))
    received = running.plane.received
    assert in_order([each.sequence for each in received])
    for earlier, later in pairwise(received):
        end_s = earlier.window_start_s + earlier.window_s
        assert later.window_start_s == pytest.approx(end_s)
    # However late the machine is, an observation tells all that came before the one before it had been made.
    last = received[-1].sequence
    came = running.came
    assert 0 < came[last - 1] <= arrivals(received) <= came[last]
    assert received[-1].replicas[0].state == "ready"
    # One and a half periods: the next observation is at a multiple of it.
    assert max(running.plane.waits_s) <= 3.0


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(answer: Answer) -> AsyncIterator[str]:
    """An HTTP server on a free port of this machine; its URL."""
    app = web.Application()
    app.router.add_post("/api/v1/nodes/{node}/sync", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def exchange(url: str, *, node: str = "n1") -> SyncReply:
    transport = HttpTransport(url, "secret", speed=10.0)
    try:
        return await transport.exchange(an_observation(node=node), wait_s=5.0)
    finally:
        await transport.close()


def test_an_observation_goes_up_and_a_reply_comes_down_over_http() -> None:
    seen: dict[str, str] = {}

    async def answer(request: web.Request) -> web.Response:
        observation = msgspec.json.decode(await request.read(), type=Observation)
        seen.update(
            token=request.headers["Authorization"],
            wait_s=request.query["wait_s"],
            node=request.match_info["node"],
        )
        reply = SyncReply(
            boot=observation.boot, acknowledged=1, server_time_s=7.0, command=COMMAND
        )
        return web.Response(body=msgspec.json.encode(reply))

    async def scenario() -> SyncReply:
        async with served(answer) as url:
            return await exchange(url + "/", node="rack 1/n 2")

    assert run(scenario()).command == COMMAND
    assert seen == {"token": "Bearer secret", "wait_s": "0.500", "node": "rack 1/n 2"}


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (401, '{"detail":"the token was revoked"}', NotAuthorised, "revoked"),
        (403, "", NotAuthorised, "scope join"),
        (422, '{"detail":"window_s: must be above 0"}', Unacceptable, "window_s"),
        (404, '{"title":"Not found"}', ControlPlaneSilent, "Not found"),
        (503, "", ControlPlaneSilent, "come again in 2 s"),
        (200, "<html>", ControlPlaneSilent, "not a sync reply"),
        (0, "", ControlPlaneSilent, "no answer from"),
    ],
)
def test_every_refusal_has_its_own_error(
    status: int, body: str, error: type[TransportError], words: str
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body, headers={"Retry-After": "2"})

    async def scenario() -> None:
        async with served(answer) as url:
            if status:
                await exchange(url)
        await exchange(url)

    with pytest.raises(error, match=words):
        run(scenario())


class AgentProcess:
    """`plimsoll-agent` as an operator starts it."""

    def __init__(self, url: str, state_dir: Path, *more: str) -> None:
        token_file = state_dir / "agent.token"
        write_token(token_file, "secret")
        words = f"--url {url} --node n1 --gpu-type V100-32GB --speed 20".split()
        paths = ["--token-file", str(token_file), "--state-dir", str(state_dir)]
        command = [sys.executable, "-m", "agents.main", *words, *paths, *more]
        self.process = subprocess.Popen(command)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE_S)


def commanding(received: list[Observation]) -> Answer:
    """A control plane that notes what it hears, and has COMMAND for those who have none."""

    async def answer(request: web.Request) -> web.Response:
        observation = msgspec.json.decode(await request.read(), type=Observation)
        received.append(observation)
        reply = SyncReply(
            boot=observation.boot,
            acknowledged=observation.sequence,
            server_time_s=0.0,
            command=None if observation.generation else COMMAND,
        )
        return web.Response(body=msgspec.json.encode(reply))

    return answer


def test_a_killed_agent_comes_back_with_its_command_and_a_terminated_one_says_goodbye(
    tmp_path: Path,
) -> None:
    received: list[Observation] = []

    def of_second() -> list[Observation]:
        """Without those of the first one, of which the last may come in after its end."""
        return [each for each in received if each.boot != received[0].boot]

    async def scenario() -> int:
        async with served(commanding(received)) as url:
            first = AgentProcess(url, tmp_path, "--load", "chat=50")
            await eventually(
                lambda: (
                    any(each.generation == 3 for each in received)
                    or first.process.poll() is not None
                )
            )
            await asyncio.to_thread(first.end, signal.SIGKILL)
            second = AgentProcess(url, tmp_path, "--load", "chat=50")
            await eventually(
                lambda: (
                    any(each.replicas for each in of_second())
                    or second.process.poll() is not None
                )
            )
            return await asyncio.to_thread(second.end, signal.SIGTERM)

    assert run(scenario()) == 0
    assert {each.generation for each in of_second()} == {3}
    assert len({each.boot for each in of_second()}) == 1
    assert of_second()[-1].replicas[0].id == "r1"


def test_an_agent_with_timed_workers_answers_requests_on_its_router_port(
    tmp_path: Path,
) -> None:
    received: list[Observation] = []
    asked: list[int] = []
    port = a_free_port()

    async def scenario() -> int:
        async with (
            served(commanding(received)) as url,
            aiohttp.ClientSession() as client,
        ):
            agent = AgentProcess(
                url, tmp_path, "--device", "fake", "--router-port", str(port)
            )
            await eventually(
                lambda: bool(
                    received
                    and received[-1].acks
                    and received[-1].acks[-1].status == "applied"
                )
            )
            tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}
            url = f"http://127.0.0.1:{port}/v2/models/chat/infer"

            async def is_answered() -> bool:
                # On a clock that is twenty times as fast a busy machine's answer may come too late.
                async with client.post(url, json={"inputs": [tensor]}) as response:
                    asked.append(response.status)
                    return response.status == 200

            await eventually(is_answered)
            return await asyncio.to_thread(agent.end, signal.SIGTERM)

    assert run(scenario()) == 0
    # What was answered too late was served, too.
    told = sum(service.served for each in received for service in each.services)
    assert asked.count(200) == 1 <= told <= len(asked)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "--url"),
        (["--url", "ftp://x", "--gpu-type", "T4"], 2, "must begin with http"),
        (
            ["--url", "http://x", "--gpu-type", "T4"],
            2,
            "pass a token with --token-file; ",
        ),
        (["--url", "http://x"], 2, "needs --gpu-type"),
        (["--url", "http://x", "--gpu-type", "T4", "--speed", "-1"], 2, "above 0"),
        (["--url", "http://x", "--gpu-type", "T4", "--load", "chat"], 2, "chat=50"),
        (["--url", "http://x", "--gpu-type", "GB10"], 1, "give --gpu-memory-mib"),
        (["--url", "http://x", "--gpu-type", "K80-12GB"], 1, "known: T4"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    # A token of the environment is none: it could be read there as long as the agent runs.
    monkeypatch.setenv("PLIMSOLL_TOKEN", "t")
    # Tests go on being inspected.
    monkeypatch.setattr("agents.daemon.build.forbid_inspection", lambda: None)
    token_file = tmp_path / "token"
    token_file.write_text("t")
    given = [] if "--token-file" in words else ["--token-file", str(token_file)]
    try:
        ended = main([*arguments, *given])
    except SystemExit as end:
        ended = end.code
    assert ended == code
    assert words in capsys.readouterr().err + caplog.text
