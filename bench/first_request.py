"""From `plimsoll apply` of a first service to its first answer, on a `plimsoll up` that has just started.

    python -m bench.first_request [--runs 3]
    python -m bench.first_request zero [--runs 20] [--start-s 2] [--path node|gateway|haproxy]

`zero` is in `bench.from_zero`. Each run is an `up` of its own with two nodes and a new database; kernels are
compiled, as after `make install`. All processes are real; the GPUs are fake, and a replica's start takes 2 s of the
time. Requests are tried from the beginning, wherever the service's endpoint is, and given up after a second: one that
waits at a node where no replica comes would be answered later. Prints what `apply` says meanwhile, and a table, and
writes bench/results/first_request.json.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from bench import from_zero
from bench.gateway import BODY, RUN, process
from bench.report import Figures, print_table, write_results
from tests.ports import a_free_port

SERVICE = Path(__file__).parents[1] / "docs" / "examples" / "quickstart.yaml"
NODES = 2
PATIENCE_S = 300.0
WAIT_S = 120
"""What `apply` is told to wait."""
LOOK_S = 0.05
GIVEN_UP = aiohttp.ClientTimeout(total=1.0)


class Caller:
    """Asks the API as the person does who started everything."""

    def __init__(self, session: aiohttp.ClientSession, url: str, folder: Path) -> None:
        self._session, self._url = session, url
        self._token = folder / ".config" / "plimsoll" / "token"

    async def nodes(self) -> int:
        """How many have registered, once the control plane is ready; else 0."""
        async with self._session.get(f"{self._url}/readyz") as answer:
            if not answer.ok:
                return 0
        return len((await self._get("nodes"))["items"])

    async def is_answered(self) -> bool:
        """Whether a request of the service is, at its endpoint."""
        url = (await self._get("services/classify/endpoints"))["url"]
        if url is None:
            return False
        async with self._session.post(url, json=BODY, timeout=GIVEN_UP) as answer:
            return answer.ok

    async def _get(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self._token.read_text().strip()}"}
        url = f"{self._url}/api/v1/{path}"
        async with self._session.get(url, headers=headers) as answer:
            answer.raise_for_status()
            return await answer.json()


async def measure(folder: Path) -> Figures:
    """The times of one new control plane, in seconds."""
    url = f"http://127.0.0.1:{(port := a_free_port())}"
    words = ("up", "--nodes", str(NODES), "--data-dir", str(folder / "data"))
    begun_s = time.monotonic()
    with process(folder, "up", "-c", RUN, *words, PLIMSOLL_PORT=str(port)):
        async with aiohttp.ClientSession() as session:
            caller = Caller(session, url, folder)
            async with asyncio.timeout(PATIENCE_S):
                while await _quietly(caller.nodes) != NODES:  # noqa: ASYNC110  other processes
                    await asyncio.sleep(LOOK_S)
                applied_s = time.monotonic()
                applying = asyncio.create_task(_apply(url, folder, applied_s))
                while not await _quietly(caller.is_answered):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
                answered_s = time.monotonic()
                ended_s = await applying
    return {
        "up_s": applied_s - begun_s,
        "apply_to_first_answer_s": answered_s - applied_s,
        "apply_says_ready_after_s": ended_s - applied_s,
    }


async def _quietly(ask: Callable[[], Awaitable[int]]) -> int:
    """Its answer; 0 while nothing answers, or there is no such thing."""
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        return await ask()
    return 0


async def _apply(url: str, folder: Path, begun_s: float) -> float:
    """Apply the service and wait; when it ended. Prints what it says, with the second at which it does."""
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", RUN, "apply", "-f", str(SERVICE), "-y", "--wait", str(WAIT_S)),
        env={**os.environ, "HOME": str(folder), "PLIMSOLL_URL": url},
        stdout=PIPE,
        stderr=STDOUT,
    )
    assert running.stdout is not None
    async for line in running.stdout:
        print(f"{time.monotonic() - begun_s:5.1f} s  {line.decode().rstrip()}")
    assert await running.wait() == 0
    return time.monotonic()


def main() -> int:
    """Print the table and write the JSON."""
    if sys.argv[1:2] == ["zero"]:
        return from_zero.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m bench.first_request")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    rows: list[Figures] = []
    for run in range(1, options.runs + 1):
        with tempfile.TemporaryDirectory(prefix="fr", dir="/tmp") as name:
            rows.append({"run": run, **asyncio.run(measure(Path(name)))})
    print_table(rows)
    write_results("first_request", rows, settings={"runs": options.runs})
    return 0


if __name__ == "__main__":
    sys.exit(main())
