"""Running one agent as a process: device, transport, ledger and signals put together."""

import argparse
import asyncio
import contextlib
import ctypes
import logging
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agents.base.addresses import advertised, report_full_process
from agents.base.clock import Clock, ScaledClock
from agents.base.device import Device, DeviceError, GpuState, LaunchFailed
from agents.base.exposition import metrics_port
from agents.base.protocol import (
    METRICS_HEADER,
    ROUTER_HEADER,
    ReplicaCommand,
    TaskCommand,
)
from agents.base.version import REPLY_FIELDS, TAKES_HEADER, agent_version, takes
from agents.base.waits import stop_event
from agents.daemon.log_answers import DocumentTransport, LogTransport
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.daemon.metrics import AgentMetrics, MeteredTransport
from agents.daemon.request_port import front
from agents.fake.device import FakeDevice
from agents.gpu.nvml.known_memory import memory_mib_of
from agents.processes.node_logs import NodeLogs
from agents.processes.user import (
    OWN_USER_WARNING,
    WorkerUser,
    WorkerUsers,
    find_project_users,
    find_worker_user,
    workers_folders,
)
from agents.router.access import RouterAccess, read_access
from agents.sync.ledger import Ledger
from agents.sync.node_token import EnrolledTransport, is_exchanged
from agents.sync.transport import HttpTransport, Transport

if TYPE_CHECKING:
    from agents.kubernetes.manifest import PodSettings

LOAD_DURATION_S = 7 * 86400
"""A simulated agent's own load lasts a week of trace time."""

LEAVING_S = 5.0
"""Ten checks of the gateway, which needs two, or one of most balancers."""
_PR_SET_DUMPABLE = 4
"""linux/prctl.h"""

log = logging.getLogger(__name__)


def run_agent(options: argparse.Namespace, *, token: str, boot: str) -> int:
    """Run until SIGTERM or SIGINT; the exit code. `options` as `agents.main.make_parser` reads them."""
    forbid_inspection()
    logging.basicConfig(
        level=options.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        return asyncio.run(_run(options, token=token, boot=boot))
    except (DeviceError, OSError, ValueError) as error:
        log.error("the agent cannot run: %s", error)
        return 1


def forbid_inspection() -> None:
    """Close this process's memory and environment to other processes of its user; root can still look.

    What the process was started with stays in /proc/PID/environ for its life. No core is dumped from here on either,
    and py-spy needs root.
    """
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


async def _run(options: argparse.Namespace, *, token: str, boot: str) -> int:
    report_full_process(asyncio.get_running_loop())
    clock = ScaledClock(speed=options.speed)
    settings = AgentSettings(
        node=options.node,
        boot=boot,
        version=agent_version(),
        period_s=options.period_s,
        # Balancers' clocks run at the machine's pace, whatever this agent's does.
        leaving_s=LEAVING_S * options.speed,
    )
    metrics = AgentMetrics(node=settings.node, version=settings.version)
    addresses = {TAKES_HEADER: takes(REPLY_FIELDS)}
    reach = make_transport(options, clock, token, addresses)
    logs = LogTransport(reach, node=settings.node, logs=_node_logs(options))
    transport = MeteredTransport(logs, metrics)
    # The device is opened last: what cannot be read or made ends the agent before anything is touched.
    ledger = Ledger(options.state_dir)
    access = read_access(options)
    device = await open_device(options, clock, access)
    async with closing_both(device, transport), stop_event(options.parent) as stop:
        log.info(
            "agent of node %s starts; generation %d is in force",
            options.node,
            ledger.generation,
        )
        agent = NodeAgent(
            settings, device, transport=transport, clock=clock, ledger=ledger
        )
        agent.outbox.on_add = metrics.note
        # Routes first: the port must not answer for services that it does not know yet.
        await _take_up(agent)
        async with (
            metrics_port(
                options.metrics_host,
                options.metrics_port,
                lambda: metrics.page(agent.outbox, agent.command).text(),
            ),
            front(device, options.router_port, access) as port,
        ):
            # Known only now: port 0 is any free one.
            addresses |= own_addresses(options, access, port)
            await agent.run(stop)
    log.info("agent of node %s has stopped", options.node)
    return 0


def own_addresses(
    options: argparse.Namespace, access: RouterAccess, router_port: int
) -> dict[str, str]:
    """What the control plane is told of this agent's ports, as headers; nothing of those that no one else can reach."""
    metrics = advertised(options.metrics_host, options.metrics_port, options.url)
    router = advertised(access.host, router_port, options.url)
    scheme = "https" if access.certificate else "http"
    found = {METRICS_HEADER: metrics, ROUTER_HEADER: router and f"{scheme}://{router}"}
    return {name: address for name, address in found.items() if address}


def make_transport(
    options: argparse.Namespace,
    clock: Clock,
    token: str,
    addresses: Mapping[str, str],
) -> DocumentTransport:
    """HTTP by the token that was given, or by the node's own. Raises OSError, ValueError."""
    reach = HttpTransport(
        options.url,
        token,
        speed=options.speed,
        now_s=clock.now_s,
        addresses=addresses,
        tls=_tls_context(options),
    )
    if token and not is_exchanged(token):
        return reach
    options.state_dir.mkdir(parents=True, exist_ok=True)
    return EnrolledTransport(
        reach,
        node=options.node,
        join_token_file=options.token_file,
        directory=options.state_dir,
        now_s=clock.now_s,
    )


def _node_logs(options: argparse.Namespace) -> NodeLogs | None:
    """Where the replicas and tasks of the node write; None: none of them is a process."""
    if options.device != "gpu":
        return None
    return NodeLogs(options.state_dir)


def _tls_context(options: argparse.Namespace) -> ssl.SSLContext | None:
    """Trust and certificate as they were given; None: the system's trust, and no certificate. Raises OSError."""
    if options.ca_file is None and options.client_cert is None:
        return None
    # It verifies the control plane's certificate and its name, as the default does.
    context = ssl.create_default_context(cafile=options.ca_file)
    if options.client_cert is not None:
        context.load_cert_chain(options.client_cert)
    return context


@contextlib.asynccontextmanager
async def closing_both(device: Device, transport: Transport) -> AsyncIterator[None]:
    """Closes the transport and then the device, also where the transport cannot be closed."""
    async with contextlib.AsyncExitStack() as closing:
        closing.push_async_callback(device.close)
        closing.push_async_callback(transport.close)
        yield


async def _take_up(agent: NodeAgent) -> None:
    """Put the last command's routes in force, before requests are taken; a device that does not answer may later."""
    try:
        await agent.enforce()
    except DeviceError as error:
        log.error("the device does not answer: %s", error)


async def open_device(
    options: argparse.Namespace, clock: Clock, access: RouterAccess
) -> Device:
    """The device that the arguments ask for; raises DeviceError, ValueError or OSError."""
    return (
        await _gpu_device(options, clock, access)
        if options.device == "gpu"
        else make_device(options, clock)
    )


def make_device(options: argparse.Namespace, clock: Clock) -> Device:
    """A device that needs no opening; raises DeviceError or ValueError."""
    if options.device == "nvml":
        return _nvml_device(options, clock)
    try:
        if options.device == "fake":
            return _fake_device(options, clock)
        return _simulated_device(options, clock)
    except ModuleNotFoundError as error:
        if error.name not in ("agents.sim", "numpy"):
            raise
        # Where the agent is installed alone, there is no simulation, nor the arrays that it computes with.
        raise DeviceError(
            f"--device {options.device} needs all of Plimsoll (pip install 'plimsoll[server]'); "
            "on a GPU node give --device gpu"
        ) from error


async def _gpu_device(
    options: argparse.Namespace, clock: Clock, access: RouterAccess
) -> Device:
    from agents.gpu.node.open import GpuNodeSettings, open_gpu_device

    user = _worker_user(options)
    uses_mps = options.sharing == "mps"
    home: Path = options.state_dir if user is None else user.folders
    settings = GpuNodeSettings(
        state_dir=options.state_dir,
        mps_dir=options.mps_dir or home / "mps",
        users=WorkerUsers(
            default=user,
            by_project=find_project_users(
                options.worker_user_for, user, uses_mps=uses_mps
            ),
        ),
        templates=options.templates,
        type_of=lambda gpu: options.gpu_type or gpu.name,
        memory_mib=lambda gpu: memory_mib_of(
            options.gpu_type or gpu.name, options.gpu_memory_mib
        ),
        uses_mps=uses_mps,
        pods=_pod_settings(options, options.mps_dir or home / "mps"),
        keeps_replicas=options.keep_replicas,
        haproxy_port=options.router_port if options.router == "haproxy" else None,
        access=access,
    )
    return await open_gpu_device(settings, clock)


def _pod_settings(options: argparse.Namespace, mps_dir: Path) -> "PodSettings | None":
    if options.launcher == "process":
        return None
    from agents.kubernetes.manifest import PodSettings

    return PodSettings(
        node=options.cluster_node,
        namespace=options.pod_namespace,
        own_pod=options.own_pod,
        runtime_class=options.pod_runtime_class,
        uses_gpu_claim=options.pod_gpu_claim,
        shared_memory=mps_dir / "shm",
    )


def _worker_user(options: argparse.Namespace) -> WorkerUser | None:
    """Who replicas run as; None: the agent's own user. Raises DeviceError."""
    user = find_worker_user(options.worker_user, workers_folders(options.state_dir))
    if user is None and not options.worker_user:
        log.warning(OWN_USER_WARNING)
    return user


def _simulated_device(options: argparse.Namespace, clock: Clock) -> Device:
    from agents.sim.cluster import (
        ClusterScript,  # numba: half a second
        SimulatedCluster,
    )
    from agents.sim.device import SimulatedDevice
    from agents.sim.load.arrivals import ArrivalProcess, LoadShape
    from agents.sim.spec import make_node
    from agents.sim.truth.truth import load_truth

    memory_mib = memory_mib_of(options.gpu_type, options.gpu_memory_mib)
    node = make_node(
        options.node,
        options.gpu_type,
        gpus=options.gpus,
        memory_mib=memory_mib,
        launch_s=options.launch_s,
    )
    loads = {
        service: ArrivalProcess(
            shape=LoadShape(mean_rps=rate_rps),
            duration_s=LOAD_DURATION_S,
            seed=options.seed,
            stream=stream,
        )
        for stream, (service, rate_rps) in enumerate(sorted(dict(options.load).items()))
    }
    scenario = ClusterScript(loads=loads, seed=options.seed)
    return SimulatedDevice(
        SimulatedCluster((node,), scenario, world=load_truth(), clock=clock),
        options.node,
    )


def _fake_device(options: argparse.Namespace, clock: Clock) -> FakeDevice:
    from agents.sim.truth.running import RunningPart
    from agents.sim.truth.tables import read_types
    from agents.sim.truth.truth import TruthError, load_truth

    types, truth = read_types(), load_truth()
    if options.gpu_type not in types:
        raise ValueError(
            f"no measured times for GPU type {options.gpu_type!r}; known: {', '.join(types)}"
        )

    def seconds(part: ReplicaCommand | TaskCommand, gpu: GpuState, size: int) -> float:
        placed = RunningPart(
            network=part.network,
            gpu_type=gpu.gpu_type,
            sm_percent=part.sm_percent,
            batch=part.batch,
            clock_mhz=gpu.clock_mhz or types[gpu.gpu_type].max_clock_mhz,
        )
        try:
            # Requests come in batches that fit; a task states the batch of its iterations.
            max_batch = (
                truth.max_batch(part.network)
                if isinstance(part, ReplicaCommand)
                else size
            )
            return truth.execution_ms(placed, min(size, max_batch)) / 1000.0
        except TruthError as error:
            raise LaunchFailed(str(error)) from error

    memory_mib = memory_mib_of(options.gpu_type, options.gpu_memory_mib)
    gpus = tuple(
        GpuState(index=index, gpu_type=options.gpu_type, memory_mib=memory_mib)
        for index in range(options.gpus)
    )
    return FakeDevice(
        gpus,
        execution_s=seconds,
        iteration_s=lambda task, gpu: seconds(task, gpu, task.batch),
        clock=clock,
        launch_s=options.launch_s,
    )


def _nvml_device(options: argparse.Namespace, clock: Clock) -> Device:
    from agents.gpu.node.devices import Devices, type_of
    from agents.gpu.node.readonly_device import ReadOnlyDevice
    from agents.gpu.nvml.session import Nvml

    devices = Devices(
        Nvml(),
        memory_mib=lambda gpu: memory_mib_of(
            options.gpu_type or gpu.name, options.gpu_memory_mib
        ),
    )
    return ReadOnlyDevice(
        devices,
        clock,
        type_of=lambda gpu: type_of(
            gpu, lambda entire: options.gpu_type or entire.name
        ),
        more_problems=lambda: devices.look().problems,
    )
