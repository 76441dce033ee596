"""Open-loop HTTP load on the agents' routers: requests leave when they are due, however slow the answers are.

    python -m bench.load_http --node http://127.0.0.1:8000 --load chat=20 --duration-s 60

Arrivals are seeded (Poisson along a day curve with measured bursts). Latency counts from the moment a request was
due, so that a slow sender cannot hide a queue. At most `--max-in-flight` requests wait for an answer; one more is not
sent and counts as missed. A service's requests go to the nodes that have a ready replica of it, as a load balancer's
health check would send them; while there is none they go to any node, so that its router counts the demand.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from random import Random

import aiohttp
import numpy as np

from agents.sim.load.arrivals import ArrivalProcess, LoadShape
from bench.report import Figures, print_table

READY_PERIOD_S = 2.0
AHEAD_S = 1.0
"""Requests are drawn for so long at a time."""
BODY = b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]}'
HEADERS = {"Content-Type": "application/json"}


@dataclass(slots=True, kw_only=True)
class Tally:
    """What became of one service's requests since the last line."""

    answers: Counter[str] = field(default_factory=Counter)
    """By HTTP status, `no answer`, or `missed`."""
    latency_ms: list[float] = field(default_factory=list)

    def row(self, service: str, seconds: float) -> Figures:
        """One line of the table."""
        latency_ms = self.latency_ms or [float("nan")]
        bad = {
            answer: count
            for answer, count in sorted(self.answers.items())
            if answer != "200"
        }
        return {
            "service": service,
            "answered_rps": self.answers["200"] / seconds,
            "latency_ms_p50": float(np.percentile(latency_ms, 50)),
            "latency_ms_p98": float(np.percentile(latency_ms, 98)),
            "other_answers": ", ".join(
                f"{count} × {answer}" for answer, count in bad.items()
            )
            or None,
        }


class Sender:
    """Sends every service's requests until its time is over."""

    def __init__(
        self, session: aiohttp.ClientSession, options: argparse.Namespace
    ) -> None:
        self._session = session
        self._nodes: list[str] = [url.rstrip("/") for url in options.node]
        self._options = options
        self._random = Random(options.seed)
        self._ready: dict[str, list[str]] = {}
        self._tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self._in_flight: set[asyncio.Task[None]] = set()
        self.answered = 0

    async def run(self) -> None:
        """All services, with a table every `--report-s`."""
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(self._look_for_replicas())
            reporting = group.create_task(self._report())
            senders = [
                group.create_task(self._send(service, load, began_s))
                for service, load in loads(self._options).items()
            ]
            await asyncio.wait(senders)
            looking.cancel()
            reporting.cancel()
        if self._in_flight:
            await asyncio.wait(self._in_flight)
        self._print_report()

    async def _send(self, service: str, load: ArrivalProcess, began_s: float) -> None:
        at_s = 0.0
        while at_s < self._options.duration_s:
            for due_s in load.arrivals(
                at_s, min(at_s + AHEAD_S, self._options.duration_s)
            ):
                await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
                self._start(service, began_s + float(due_s))
            at_s += AHEAD_S
            await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))

    def _start(self, service: str, due_s: float) -> None:
        if len(self._in_flight) >= self._options.max_in_flight:
            self._tallies[service].answers["missed"] += 1
            return
        node = self._random.choice(self._ready.get(service) or self._nodes)
        task = asyncio.create_task(
            self._request(service, f"{node}/v2/models/{service}/infer", due_s)
        )
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def _request(self, service: str, url: str, due_s: float) -> None:
        try:
            async with self._session.post(url, data=BODY, headers=HEADERS) as response:
                await response.read()
                answer = str(response.status)
        except (aiohttp.ClientError, TimeoutError):
            answer = "no answer"
        tally = self._tallies[service]
        tally.answers[answer] += 1
        if answer == "200":
            self.answered += 1
            tally.latency_ms.append(1000.0 * (time.monotonic() - due_s))

    async def _look_for_replicas(self) -> None:
        while True:
            for service in dict(self._options.load):
                states = await asyncio.gather(
                    *(self._is_ready(node, service) for node in self._nodes)
                )
                self._ready[service] = [
                    node
                    for node, ready in zip(self._nodes, states, strict=True)
                    if ready
                ]
            await asyncio.sleep(READY_PERIOD_S)

    async def _is_ready(self, node: str, service: str) -> bool:
        try:
            async with self._session.get(
                f"{node}/v2/models/{service}/ready"
            ) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(self._options.report_s)
            self._print_report()

    def _print_report(self) -> None:
        print_table(
            [
                tally.row(name, self._options.report_s)
                for name, tally in sorted(self._tallies.items())
            ]
        )
        sys.stdout.flush()
        self._tallies.clear()


def loads(options: argparse.Namespace) -> dict[str, ArrivalProcess]:
    """The load of each service, by name."""
    return {
        service: ArrivalProcess(
            shape=LoadShape(
                mean_rps=rate,
                day_amplitude=0.4,
                day_period_s=options.day_s,
                burst_weight=0.5,
            ),
            duration_s=int(options.duration_s) + 1,
            seed=options.seed,
            stream=stream,
        )
        for stream, (service, rate) in enumerate(sorted(dict(options.load).items()))
    }


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.load_http", description=__doc__
    )
    parser.add_argument(
        "--node",
        action="append",
        required=True,
        metavar="URL",
        help="a router; repeat for several",
    )
    parser.add_argument(
        "--load",
        action="append",
        required=True,
        type=_service_rate,
        metavar="SERVICE=RPS",
    )
    parser.add_argument("--duration-s", type=float, default=86_400.0)
    parser.add_argument(
        "--day-s",
        type=float,
        default=600.0,
        help="period of the day curve (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report-s", type=float, default=30.0)
    parser.add_argument("--max-in-flight", type=int, default=1000)
    return parser


def _service_rate(text: str) -> tuple[str, float]:
    service, _, rate = text.partition("=")
    try:
        rate_rps = float(rate)
    except ValueError:
        rate_rps = 0.0
    if not service or not 0.0 < rate_rps < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} must look like chat=20")
    return service, rate_rps


async def generate(options: argparse.Namespace) -> int:
    """Run to the end; the number of requests that were answered with 200."""
    connector = aiohttp.TCPConnector(limit=options.max_in_flight)
    timeout = aiohttp.ClientTimeout(total=90.0, connect=5.0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        sender = Sender(session, options)
        await sender.run()
        return sender.answered


def main() -> int:
    """1 when nothing at all was answered."""
    try:
        return 0 if asyncio.run(generate(make_parser().parse_args())) else 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
