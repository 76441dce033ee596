"""One worker as a process: engine, HTTP and signals put together.

When it listens it prints one line of JSON to stdout, {"url": ..., "pid": ...}, then loads its network; logs go to
stderr. SIGTERM or SIGINT drains: requests that were taken are answered, new ones get 503, and the process ends. A
second signal ends it at once.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web
from prometheus_client import disable_created_metrics

from agents.base.addresses import report_full_process
from agents.base.device import DeviceError
from agents.serving.batching import BatchLimits
from agents.serving.engines.engine import Engine
from agents.serving.engines.errors import WrongState
from agents.serving.metrics import WorkerMetrics
from agents.serving.replica import ServedReplica, WorkerSettings
from agents.serving.request_bodies import IS_RAW
from agents.serving.server import make_app

LAST_ANSWERS_S = 5.0
"""For answers that are still being sent when the last batch has ended."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Signals:
    """Events of the signals that came."""

    first: asyncio.Event
    second: asyncio.Event

    def came(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


def run_worker(options: argparse.Namespace) -> int:
    """Serve until a signal or until the engine is lost; the exit code. `options` as `arguments.make_parser` reads."""
    # Each of them would double its series.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    logging.basicConfig(
        level=options.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        return asyncio.run(_serve(options, os.environ))
    except (DeviceError, OSError) as error:
        log.error("the worker of %s cannot run: %s", options.service, error)
        return 1


def make_engine(options: argparse.Namespace, environment: Mapping[str, str]) -> Engine:
    """The engine that the arguments ask for, not yet loaded. Raises LaunchFailed."""
    if options.engine == "timed":
        from agents.serving.engines.timed_engine import (
            TimedEngine,
            load_times,
            read_times,
        )

        times = (
            load_times(options.times_csv)
            if options.times_csv
            else read_times(options.times_ms or "1:1")
        )
        return TimedEngine(
            times=times,
            sms=options.fake_sms,
            memory_mib=options.memory_mib or 0.0,
            environment=environment,
        )
    if options.engine == "torch":
        # Imported here: PyTorch takes seconds and is not installed everywhere.
        from agents.serving.engines.torch_engine import make_torch_engine

        return make_torch_engine(options)
    from agents.serving.engines.onnx_engine import make_onnx_engine

    return make_onnx_engine(options)


async def _serve(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    settings = WorkerSettings(
        service=options.service,
        limits=BatchLimits(batch=options.batch, delay_ms=options.delay_ms),
        batch_limit=options.batch_limit,
        queue_limit=options.queue,
    )
    replica = ServedReplica(
        settings,
        make_engine(options, environment),
        metrics=WorkerMetrics(),
        environment=environment,
    )
    report_full_process(asyncio.get_running_loop())
    signals = _Signals(asyncio.Event(), asyncio.Event())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.came)
    app = make_app(replica)
    app[IS_RAW] = True
    runner = web.AppRunner(
        app,
        access_log=None,
        auto_decompress=False,
        shutdown_timeout=LAST_ANSWERS_S,
    )
    await runner.setup()
    try:
        # Listening before the network is loaded, so that health can be asked from the start.
        await web.TCPSite(runner, options.host, options.port).start()
        _announce(runner)
        return await _run(replica, signals, options.drain_s)
    finally:
        await runner.cleanup()


async def _run(replica: ServedReplica, signals: _Signals, drain_s: float) -> int:
    """Run the replica until a signal and the drain after it; the exit code. Raises what the engine raised."""
    running = asyncio.create_task(replica.run())
    signalled = asyncio.create_task(signals.first.wait())
    try:
        await asyncio.wait({running, signalled}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running  # It ends only by raising.
        is_complete = await _drain(replica, running, signals.second, drain_s)
    finally:
        for task in (signalled, running):
            task.cancel()
        await asyncio.wait({signalled, running})
    return 0 if is_complete else 1


async def _drain(
    replica: ServedReplica,
    running: "asyncio.Task[None]",
    again: asyncio.Event,
    drain_s: float,
) -> bool:
    """Answer what was taken; whether it all was, in time and before the second signal."""
    try:
        left = replica.drain().waiting
        log.info(
            "the worker of %s drains, %d requests wait", replica.settings.service, left
        )
    except WrongState as error:
        log.info("nothing to drain: %s", error)
    idle = asyncio.create_task(replica.idle())
    hurried = asyncio.create_task(again.wait())
    try:
        await asyncio.wait(
            {idle, hurried, running},
            timeout=drain_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not idle.done():
            log.error(
                "requests were still open after %g s or at the second signal; they are lost",
                drain_s,
            )
        return idle.done()
    finally:
        idle.cancel()
        hurried.cancel()


def _announce(runner: web.AppRunner) -> None:
    """Say where it listens: the starter of the worker reads one line."""
    host, port = runner.addresses[0][:2]
    shown = f"[{host}]" if ":" in host else host
    line = msgspec.json.encode({"url": f"http://{shown}:{port}", "pid": os.getpid()})
    sys.stdout.write(line.decode() + "\n")
    sys.stdout.flush()
