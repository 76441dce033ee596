"""Shadow switches under load by the agent's own device: no request may fail, into switch.csv (one row per switch).

    start the new replica ── ready, share proven ── routes ── drain the old one ── stop it
    ├─────────────────────────────── "during" ──────────────────────────────────────────┤

The device is the agent's (`agents.gpu.node.device`) with MPS, workers, router and enforcement; only its knobs are
missing. Requests come at a fixed rate whether earlier ones were answered or not, so that a stall shows in p99 and not
as fewer requests.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial

import aiohttp
from aiohttp import web

from agents.base.clock import ScaledClock
from agents.base.device import LaunchFailed
from agents.base.protocol import GpuCommand, NodeCommand, ReplicaCommand, Route
from agents.enforce.actions import perform
from agents.enforce.diff import actions, is_settled
from agents.gpu.mps.gpu_sharing import ByTurns, Sharing, UnderMps
from agents.gpu.node.device import GpuDevice
from agents.gpu.node.foreign_memory import ForeignMemory
from agents.gpu.node.open import WITHOUT_KNOBS, Basis, put_together
from agents.gpu.node.readonly_device import ReadOnlyDevice
from agents.gpu.nvml.power_watch import PowerWatch
from agents.gpu.nvml.xid_watch import XidWatch
from agents.processes.templates import Template, Templates
from agents.replicas.replicas import Workers, WorkersSettings
from agents.router.router import Router
from agents.tasks.tasks import TasksSettings
from bench.real_gpu.probe import trusted_nvml
from bench.real_gpu.run import Run, Session, python_path, under_mps
from bench.real_gpu.tables import Table
from bench.report import Figures

FILE = "switch.csv"
COLUMNS = (
    *("switch", "network", "gpu_type", "from_sm_percent", "to_sm_percent", "rate_rps"),
    *("requests_before", "requests_during", "failures", "first_failure"),
    *(
        "latency_ms_p50_before",
        "latency_ms_p99_before",
        "latency_ms_p50_during",
        "latency_ms_p99_during",
    ),
    "switch_s",
)
SHARES = (40.0, 60.0, 30.0, 50.0)
"""A switch from each to the next."""
RATE_RPS = 30.0
BATCH = 4
BEFORE_WINDOWS = 5.0
"""Times the window of the other steps: how long requests are watched before a switch."""
MAX_OPEN = 256
START_S = 180.0
SERVICE = "served"
FILES = {FILE: COLUMNS}
HOW = (
    f"{RATE_RPS:g} requests per second with one image each, sent on time whether earlier ones were answered or not; "
    "the agent's device changes the SM percent by a shadow switch. Latency is that of a client of the router on the "
    "same machine. `failures` counts answers other than 200 and requests without one; it must be 0."
)


@dataclass(slots=True, kw_only=True)
class Answers:
    """Requests that were sent: when, how long each took, and what went wrong."""

    latencies_ms: list[tuple[float, float]] = field(default_factory=list)
    """(sent at, took), by the monotonic clock."""
    failures: list[str] = field(default_factory=list)

    def between(self, start_s: float, end_s: float) -> list[float]:
        """Latencies of requests sent in that time, ascending."""
        return sorted(
            took_ms
            for sent_s, took_ms in self.latencies_ms
            if start_s <= sent_s < end_s
        )


async def measure(run: Run) -> bool:
    """Every switch that is not in the file yet."""
    table = Table(run.path(FILE), COLUMNS)
    left = [number for number in range(1, len(SHARES)) if not table.has(switch=number)]
    if left:
        router = Router()
        async with (
            under_mps(run) as session,
            _device(run, session, router) as device,
            _front(router) as url,
        ):
            await _settle(device, _command(run, left[0] - 1))
            async with _load(run, url) as answers:
                for number in left:
                    if run.left_s <= 0.0:
                        run.say(
                            f"the budget is over before switch {number}: run the same command again"
                        )
                        return False
                    table.add(await _switch(run, device, answers, number))
    for row in table.rows:
        run.say(
            f"  {row['from_sm_percent']} % -> {row['to_sm_percent']} %: {row['failures']} failures; p99 "
            f"{row['latency_ms_p99_before']} ms before, {row['latency_ms_p99_during']} ms during {row['switch_s']} s"
        )
    failed = sum(int(row["failures"]) for row in table.rows)
    if failed:
        first = next(row["first_failure"] for row in table.rows if row["first_failure"])
        run.say(f"{failed} requests FAILED; the first: {first}")
    return not failed


async def _switch(
    run: Run, device: GpuDevice, answers: Answers, number: int
) -> Figures:
    await asyncio.sleep(BEFORE_WINDOWS * run.options.window_s)
    begun_s = time.monotonic()
    watched_s = begun_s - BEFORE_WINDOWS * run.options.window_s
    failed = len(answers.failures)
    await _settle(device, _command(run, number))
    ended_s = time.monotonic()
    # Requests that are still open were sent during the switch.
    await asyncio.sleep(run.options.window_s)
    before, during = (
        answers.between(watched_s, begun_s),
        answers.between(begun_s, ended_s),
    )
    return {
        "switch": number,
        "network": _network(run),
        "gpu_type": run.gpu_type,
        "from_sm_percent": SHARES[number - 1],
        "to_sm_percent": SHARES[number],
        "rate_rps": RATE_RPS,
        "requests_before": len(before),
        "requests_during": len(during),
        "failures": len(answers.failures) - failed,
        "first_failure": answers.failures[failed]
        if len(answers.failures) > failed
        else None,
        "latency_ms_p50_before": _quantile(before, 0.5),
        "latency_ms_p99_before": _quantile(before, 0.99),
        "latency_ms_p50_during": _quantile(during, 0.5),
        "latency_ms_p99_during": _quantile(during, 0.99),
        "switch_s": ended_s - begun_s,
    }


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None


def _network(run: Run) -> str:
    return run.options.networks[0]


def _command(run: Run, number: int) -> NodeCommand:
    """One replica with the share of that place, under another name at each."""
    replica = ReplicaCommand(
        id=f"r{number}",
        service=SERVICE,
        network=_network(run),
        sm_percent=SHARES[number],
        batch=BATCH,
        memory_mib=run.gpu.memory_mib / 4.0,
        arrival_rate_rps=RATE_RPS,
    )
    limit_w = run.nvml.sample(run.gpu).enforced_limit_w or 0.0
    gpu = GpuCommand(
        index=run.gpu.index,
        gpu_type=run.gpu_type,
        clock_mhz=0.0,
        power_cap_w=limit_w,
        replicas=(replica,),
    )
    route = Route(
        service=SERVICE, slo_ms=10_000.0, percentile=0.99, arrival_rate_rps=RATE_RPS
    )
    return NodeCommand(
        node="measured", generation=number + 1, gpus=(gpu,), routes=(route,)
    )


async def _settle(device: GpuDevice, wanted: NodeCommand) -> None:
    """Enforce until the node is as wanted. Raises LaunchFailed when a replica fails or time is over."""
    end_s = time.monotonic() + START_S
    while not is_settled(wanted, actual := await device.state()):
        if failed := [
            each.id
            for gpu in actual.gpus
            for each in gpu.replicas
            if each.state == "failed"
        ]:
            problems = "; ".join((await device.read()).problems)
            raise LaunchFailed(f"replica {failed[0]} failed: {problems}")
        if time.monotonic() > end_s:
            raise LaunchFailed(
                f"the node is not as commanded after {START_S:g} s: {actual}"
            )
        for action in actions(wanted, actual):
            await perform(device, action)
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def _device(
    run: Run, session: Session, router: Router
) -> AsyncIterator[GpuDevice]:
    """The agent's device on this GPU, without knobs; nothing of it is left afterwards."""
    gpus, nvml, clock = run.nvml.gpus(), trusted_nvml(run), ScaledClock()
    sharings: dict[int, Sharing] = {
        gpu.index: ByTurns(gpu, "it is not measured") for gpu in gpus
    }
    sharings[run.gpu.index] = UnderMps(run.gpu, session.mps, total_sms=run.gpu.sm_count)

    async def make_router(_: Workers) -> Router:
        return router

    basis = Basis(
        telemetry=ReadOnlyDevice(run.nvml, clock, type_of=lambda _: run.gpu_type),
        gpus=gpus,
        capabilities=dict.fromkeys(sharings, WITHOUT_KNOBS),
        sharings=sharings,
        errors=XidWatch(run.nvml, (run.gpu,)),
        peaks=partial(PowerWatch, run.nvml.power_w),
        memory=ForeignMemory(nvml),
        uses=nvml,
        templates=_templates(run),
        workers=WorkersSettings(directory=session.directory / "workers"),
        tasks=TasksSettings(directory=session.directory / "tasks"),
        environment=run.environment,
        make_router=make_router,
    )
    device = await put_together(basis, clock)
    try:
        yield device
    finally:
        await device.close()


def _templates(run: Run) -> Templates:
    engine = "--engine torch --factory-module torchvision.models --network {network} --input x:FP16:3,224,224"
    words = (
        "--engine timed --times-ms 1:5,64:20"
        if run.options.is_fake
        else f"{engine} --device cuda"
    )
    common = "--service {service} --port {port} --batch {batch} --drain-s 20 --log-level warning"
    template = Template(
        name="switched",
        command=(*run.programs.worker, *words.split(), *common.split()),
        environment={"PYTHONPATH": python_path(run)},
        drain="server",
        start_limit_s=START_S,
        drain_limit_s=25.0,
    )
    return Templates(by_name={template.name: template}, default=template.name)


@contextlib.asynccontextmanager
async def _front(router: Router) -> AsyncIterator[str]:
    """The router's address."""
    runner = web.AppRunner(router.make_app(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v2/models/{SERVICE}/infer"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _load(run: Run, url: str) -> AsyncIterator[Answers]:
    """Requests at a fixed rate while it lasts; all of them are answered or failed afterwards."""
    answers = Answers()
    limit = aiohttp.TCPConnector(limit=MAX_OPEN)
    async with aiohttp.ClientSession(
        connector=limit, timeout=aiohttp.ClientTimeout(total=20.0)
    ) as session:
        sending = asyncio.create_task(
            _send(partial(_ask, session, url, _body(run), answers), answers)
        )
        try:
            yield answers
        finally:
            sending.cancel()
            await asyncio.wait({sending})


async def _send(
    ask: Callable[[], Coroutine[None, None, None]], answers: Answers
) -> None:
    """Until cancelled."""
    next_s = time.monotonic()
    open_ones: set[asyncio.Task[None]] = set()
    try:
        while True:
            if len(open_ones) < MAX_OPEN:
                task = asyncio.create_task(ask())
                open_ones.add(task)
                task.add_done_callback(open_ones.discard)
            else:
                answers.failures.append(
                    f"not sent: {MAX_OPEN} requests have no answer yet"
                )
            next_s += 1.0 / RATE_RPS
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
    finally:
        if open_ones:
            await asyncio.wait(open_ones)


async def _ask(
    session: aiohttp.ClientSession,
    url: str,
    body: tuple[bytes, dict[str, str]],
    answers: Answers,
) -> None:
    sent_s = time.monotonic()
    try:
        async with session.post(url, data=body[0], headers=body[1]) as response:
            text = await response.read()
            if response.status != 200:
                answers.failures.append(
                    f"{response.status}: {text[:200].decode(errors='replace')}"
                )
    except (aiohttp.ClientError, TimeoutError) as error:
        answers.failures.append(f"{type(error).__name__}: {error}")
    answers.latencies_ms.append((sent_s, (time.monotonic() - sent_s) * 1000.0))


def _body(run: Run) -> tuple[bytes, dict[str, str]]:
    """An image of zeros, as binary data; two numbers for the fake. And its headers."""
    if run.options.is_fake:
        return (
            b'{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 1]}]}',
            {},
        )
    size = 3 * 224 * 224 * 2
    head = (
        b'{"inputs": [{"name": "x", "shape": [1, 3, 224, 224], "datatype": "FP16", '
        b'"parameters": {"binary_data_size": %d}}]}' % size
    )
    return head + bytes(size), {"Inference-Header-Content-Length": str(len(head))}
