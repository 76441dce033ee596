"""`python -m agents.serving` as a real process with the fake: what it promises over HTTP and by signals."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from app.cli.commands import ENTRIES, load
from tests.agents.harness import Client, Reply, all_of, client_of, ready, worker
from tests.app.runner import cli
from tests.waiting import PATIENCE_S, eventually, run

pytestmark = pytest.mark.integration


async def waits(client: Client) -> None:
    """Return when requests wait behind a batch that runs."""

    async def is_so() -> bool:
        return await client.count("waiting") > 0

    await eventually(is_so)


async def taken(client: Client, count: int) -> None:
    """Return when `count` requests were taken."""

    async def is_so() -> bool:
        status = (await client.call("GET", "/status")).json
        return (
            sum(int(str(status[name])) for name in ("requests", "waiting", "running"))
            == count
        )

    await eventually(is_so)


def by_batch(replies: list[Reply]) -> dict[int, list[Reply]]:
    found: dict[int, list[Reply]] = {}
    for reply in replies:
        found.setdefault(reply.batch_number, []).append(reply)
    return found


def test_batches_form_and_every_request_gets_its_own_answer() -> None:
    async def check(url: str) -> None:
        async with client_of(url) as client:
            await ready(client)
            replies = await all_of([client.send(float(number)) for number in range(64)])
            series = await client.series()
        assert [reply.numbers for reply in replies] == [
            [float(number)] for number in range(64)
        ]
        batches = by_batch(replies)
        # What the answers say of their batches is what really ran together, and it was never above eight.
        assert all(
            {reply.batch for reply in each} == {len(each)} for each in batches.values()
        )
        assert max(map(len, batches.values())) <= 8
        assert len(batches) < 64
        assert series["plimsoll_worker_batches_total", (("outcome", "ok"),)] == len(
            batches
        )
        assert series["plimsoll_worker_batch_size_rows_sum", ()] == 64.0
        assert series["plimsoll_worker_latency_seconds_count", ()] == 64.0

    with worker("--times-ms", "1:30", "--batch", "8") as started:
        run(check(started.url))


HELD = """
import sys, time
from pathlib import Path
from agents.serving.arguments import main
from agents.serving.engines.timed_engine import TimedEngine

run, gate = TimedEngine.run, Path(sys.argv[1])

def held(*arguments):
    while not gate.exists():
        time.sleep(0.02)
    return run(*arguments)

TimedEngine.run = held
sys.exit(main(sys.argv[2:]))
"""
"""No batch ends before the file exists."""
ENDLESS = f"1:0,2:{1000 * PATIENCE_S:g}"
"""A batch of two rows outlasts its test; the one of one row, with which a worker warms up, takes no time."""


def test_sigterm_answers_all_that_was_taken_and_ends_with_0(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def check(url: str, pid: int) -> None:
        async with client_of(url) as client:
            await ready(client)
            sent = [client.send(float(number)) for number in range(20)]
            await taken(client, 20)
            await waits(client)
            os.kill(pid, signal.SIGTERM)

            async def is_draining() -> bool:
                return (await client.call("GET", "/status")).json["state"] == "draining"

            await eventually(is_draining)
            refused = await client.infer(99.0)
            gate.touch()
            replies = await all_of(sent)
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert [reply.status for reply in replies] == [200] * 20
        assert [reply.numbers for reply in replies] == [
            [float(number)] for number in range(20)
        ]

    program = ("-c", HELD, str(gate))
    with worker("--batch", "4", "--drain-s", "3600", program=program) as started:
        run(check(started.url, started.pid))
        assert started.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("how", ["a second signal", "the end of --drain-s"])
def test_a_drain_that_is_cut_short_says_so_by_its_exit_code(how: str) -> None:
    async def check(url: str, pid: int) -> None:
        async with client_of(url) as client:
            await ready(client)
            sent = [client.send(1.0, 1.0), client.send(2.0, 2.0)]
            await taken(client, 2)
            os.kill(pid, signal.SIGTERM)
            if how == "a second signal":

                async def is_draining() -> bool:
                    return (await client.call("GET", "/status")).json[
                        "state"
                    ] == "draining"

                await eventually(is_draining)
                os.kill(pid, signal.SIGTERM)
            replies = await asyncio.gather(*sent, return_exceptions=True)
        # The one that waited was not run; the one in the engine was.
        found = sorted(each.status for each in replies if isinstance(each, Reply))
        assert found == [500, 503]

    drain_s = "3600" if how == "a second signal" else "0"
    with worker("--times-ms", ENDLESS, "--drain-s", drain_s) as started:
        run(check(started.url, started.pid))
        assert started.process.wait(PATIENCE_S) == 1


REFUSED = [
    (("--times-ms", "1"), 1, "are not times like 1:5,8:12"),
    (("--times-csv", "absent.csv"), 1, "absent.csv cannot be read"),
    (("--engine", "onnx", "--network", "net.onnx"), 1, "--network-dir"),
    (("--engine", "torch", "--network", "net.pt"), 1, "give --input"),
    (
        ("--engine", "torch", "--network", "net.pt", "--input", "x:FP99"),
        1,
        "not an input like x:FP32:3,224,224",
    ),
    (("--host", "256.0.0.1"), 1, "the worker of chat cannot run"),
    (("--batch", "0"), 2, "'0' must be a whole number from 1 to 65536"),
    (("--batch", "8", "--batch-limit", "4"), 2, "is above --batch-limit 4"),
    (("--delay-ms", "-1"), 2, "'-1' must be a number from 0 to 10000"),
    (("--delay-ms", "nan"), 2, "'nan' must be a number"),
    (("--port", "65536"), 2, "0 to 65535"),
    (("--engine", "onnx"), 2, "--engine onnx needs --network"),
    (("--times-ms", "1:1", "--times-csv", "x"), 2, "not allowed with"),
    (("a share that is none",), 1, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is '120'"),
]
ENDS = """
import os, sys
from agents.serving.arguments import main

for words in {all_words}:
    if len(words) == 1:
        os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], words = "120", ()
    try:
        code = main(["--service", "chat", *words])
    except SystemExit as end:
        code = end.code
    print("ended with", code, file=sys.stderr, flush=True)
"""


def test_what_cannot_run_ends_with_its_code_and_says_why() -> None:
    # In one process of its own, one after the other: each sets up logs for its whole process.
    script = ENDS.format(all_words=[words for words, _, _ in REFUSED])
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert "Traceback" not in ended.stderr
    *told, _ = re.split(r"ended with (?=\d)", ended.stderr)
    codes = re.findall(r"^ended with (\d)$", ended.stderr, re.MULTILINE)
    assert codes == [str(code) for _, code, _ in REFUSED]
    for (_, _, words), said in zip(REFUSED, told, strict=True):
        assert words in said


def test_a_killed_worker_loses_its_requests_visibly() -> None:
    async def check(url: str, pid: int) -> None:
        async with client_of(url) as client:
            await ready(client)
            sent = client.send(1.0, 1.0)
            await taken(client, 1)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(aiohttp.ClientError):
                await sent

    with worker("--times-ms", ENDLESS) as started:
        run(check(started.url, started.pid))


def test_the_command_is_the_same_program() -> None:
    (entry,) = [each for each in ENTRIES if each.name == "worker"]
    load(entry)
    ended = cli("worker --service chat --batch 0")
    assert ended.code == 2
    assert "plimsoll worker: error: argument --batch" in ended.err
