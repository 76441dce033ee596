"""How soon a node has a new command after a service's rate jumped, and when the new capacity is there.

Run: `python -m bench.reaction`, at the default period. Prints a table and writes bench/results/reaction.json.

Real: PostgreSQL, controller with its period and wake-ups, solver process, agents' loops, group commit, long poll. In
this one process instead of over HTTP: the call between agent and control plane. Simulated: GPUs and requests, at the
wall's speed. Each service's rate triples once, at a moment that has nothing to do with any period. A request is late
from the end of the first report that has it; the capacity is in force when all replicas are ready that the plan for the
new rate has. LAUNCH_S of that are the simulated start of a replica.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.protocol import NodeCommand, Observation, SyncReply
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.sim.cluster import ClusterScript, SimulatedCluster
from agents.sim.device import SimulatedDevice
from agents.sim.load.arrivals import ArrivalProcess, LoadShape, Spike
from agents.sim.spec import make_node
from agents.sim.truth.truth import load_truth
from agents.sync.ledger import Ledger
from agents.sync.transport import DirectTransport
from app.api.caches.commands import CommandBoard
from app.api.caches.listening import BEAT_S
from app.base.clock import WallClock
from app.catalogue.catalogue import load_gpu_types
from app.db.base.leader import Leader
from app.db.base.listen import WAKE_CHANNEL, Listener
from app.db.decisions.commands import COMMAND_CHANNEL
from app.db.postgres_store import PostgresStore
from app.loop.controller import Controller
from app.loop.tick import Loop
from app.solver.process import SolverWorker
from app.store.ingest_queue import IngestQueue
from app.store.store import PolicySettings
from bench.real_store import GPU_TYPES, Fleet, open_fleet, temporary_database
from bench.report import Figure, Figures, print_table, write_results
from bench.sim_engine import measure_queue

FLEET = Fleet(nodes=6, gpus_per_node=2, services=6)
MEAN_RPS = 40.0
JUMP = 3.0
FIRST_JUMP_S = 12
BETWEEN_JUMPS_S = 7
"""Whole seconds, as the load's rates are; no multiple of the loop's 5 s or the agents' 2 s, to meet every phase."""
SETTLE_S = 15
SAME_PLAN_S = 0.2
"""Within so long all nodes have their commands of one plan."""
LAUNCH_S = 5.0
"""Of a simulated replica."""
SERVED_SHARE = 0.9
"""A command answers a jump fully when it plans for this share of the new rate; the new rate itself is random."""


@dataclass(slots=True, kw_only=True)
class Arrivals:
    """Which commands reached the nodes, and when."""

    clock: WallClock
    start_s: float = 0.0
    """The clock's time at which the trace began."""
    commands: list[tuple[float, NodeCommand]] = field(default_factory=list)
    reports: list[tuple[float, Observation]] = field(default_factory=list)

    def note(self, command: NodeCommand) -> None:
        """A node received a command now."""
        self.commands.append((self.clock.now_s() - self.start_s, command))

    def hear(self, observation: Observation) -> None:
        """A node reported now."""
        self.reports.append((self.clock.now_s() - self.start_s, observation))

    def first_late_after(self, at_s: float, service: str) -> float | None:
        """Seconds from trace time `at_s` until a report had a request of the service that missed its SLO."""
        for heard_s, observation in self.reports:
            if heard_s >= at_s and any(
                each.service == service and each.in_slo < each.served + each.rejected
                for each in observation.services
            ):
                return heard_s - at_s
        return None

    def in_force_after(
        self, at_s: float, service: str, rate_rps: float
    ) -> float | None:
        """Seconds from trace time `at_s` until all replicas were ready that the first plan for that rate has."""
        answered_s = self.first_after(at_s, service, rate_rps)
        if answered_s is None:
            return None
        # The newest command of each node that had come by then.
        commands = {
            command.node: command
            for received_s, command in self.commands
            if received_s <= at_s + answered_s + SAME_PLAN_S
        }
        waiting = {
            (node, replica.id)
            for node, command in commands.items()
            for gpu in command.gpus
            for replica in gpu.replicas
            if replica.service == service
        }
        for heard_s, observation in self.reports:
            if heard_s >= at_s:
                waiting -= {
                    (observation.node, each.id)
                    for each in observation.replicas
                    if each.state == "ready"
                }
                if not waiting:
                    return heard_s - at_s
        return None

    def first_after(self, at_s: float, service: str, rate_rps: float) -> float | None:
        """Seconds from trace time `at_s` until a node had a command that plans for at least that rate."""
        for received_s, command in self.commands:
            planned = next(
                (
                    route.arrival_rate_rps
                    for route in command.routes
                    if route.service == service
                ),
                0.0,
            )
            if received_s >= at_s and planned >= rate_rps:
                return received_s - at_s
        return None


def jump_times_s() -> dict[str, int]:
    """Trace time of each service's jump."""
    return {
        service.name: FIRST_JUMP_S + number * BETWEEN_JUMPS_S
        for number, service in enumerate(FLEET.nouns())
    }


async def measure(url: str) -> list[Figures]:
    """One row per jump."""
    clock = WallClock()
    arrivals = Arrivals(clock=clock)
    # Compiles the simulator's queue, so that no agent's first window is long.
    measure_queue(requests=1000)
    async with (
        open_fleet(url, FLEET, PolicySettings(), clock.now()) as engine,
        _control_plane(engine, url, clock) as (ingest, board),
        _agents(arrivals, ingest, board),
    ):
        await clock.sleep(max(jump_times_s().values()) + SETTLE_S)
    return [_row(arrivals, service, at_s) for service, at_s in jump_times_s().items()]


def _row(arrivals: Arrivals, service: str, at_s: float) -> Figures:
    full_rps = SERVED_SHARE * JUMP * MEAN_RPS
    late_s = arrivals.first_late_after(at_s, service)
    in_force_s = arrivals.in_force_after(at_s, service, full_rps)
    return {
        "service": service,
        "jump_at_s": at_s,
        "new_command_s": arrivals.first_after(at_s, service, 1.5 * MEAN_RPS),
        "full_answer_s": arrivals.first_after(at_s, service, full_rps),
        "first_late_s": late_s,
        "late_to_force_s": None
        if late_s is None or in_force_s is None
        else max(0.0, in_force_s - late_s),
    }


@asynccontextmanager
async def _control_plane(
    engine: AsyncEngine, url: str, clock: WallClock
) -> AsyncIterator[tuple[IngestQueue, CommandBoard]]:
    """Group commit, long poll and a leading controller, as `plimsoll serve` runs them."""
    leader, wakeups = Leader(engine, "bench"), Listener(url, WAKE_CHANNEL)
    store = PostgresStore(engine, epoch=lambda: leader.epoch)
    solver = SolverWorker(threads=2)
    await solver.start()
    ingest = IngestQueue(store, clock, limit=1000)
    board = CommandBoard(store, Listener(url, COMMAND_CHANNEL, beat_s=BEAT_S))

    async def period_s() -> float:
        return PolicySettings().period_s

    async def maintain() -> None:
        """Nothing is old enough yet."""

    loop = Loop(store=store, solver=solver, clock=clock)
    controller = Controller(loop, leader, wakeups, period_s=period_s, maintain=maintain)
    ingest.start()
    board.start()
    running = asyncio.create_task(controller.run())
    try:
        yield ingest, board
    finally:
        await _cancel(running)
        await board.stop()
        await ingest.stop()
        await solver.close()


@asynccontextmanager
async def _agents(
    arrivals: Arrivals, ingest: IngestQueue, board: CommandBoard
) -> AsyncIterator[None]:
    """Every node's agent with its own loops, around one simulated cluster."""
    clock = arrivals.clock
    arrivals.start_s = clock.now_s()
    memory_mib = {
        gpu_type.name: gpu_type.memory_mib for gpu_type in load_gpu_types(GPU_TYPES)
    }
    nodes = tuple(
        make_node(
            name,
            gpu_type,
            gpus=FLEET.gpus_per_node,
            memory_mib=memory_mib[gpu_type],
            launch_s=LAUNCH_S,
        )
        for name, gpu_type in FLEET.node_types().items()
    )
    cluster = SimulatedCluster(
        nodes,
        ClusterScript(loads=_loads(), seed=1),
        world=load_truth(),
        clock=clock,
        start_s=arrivals.start_s,
    )

    async def sync(observation: Observation, wait_s: float) -> SyncReply:
        arrivals.hear(observation)
        acknowledged = await ingest.add(observation)
        within = partial(clock.sleep, wait_s)
        command = await board.wait_for(observation.node, observation.generation, within)
        if command is not None:
            arrivals.note(command)
        return SyncReply(
            boot=observation.boot,
            acknowledged=acknowledged,
            server_time_s=clock.now_s(),
            command=command,
        )

    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        stack.callback(stop.set)
        for node in nodes:
            agent = NodeAgent(
                AgentSettings(node=node.name, boot="bench"),
                SimulatedDevice(cluster, node.name),
                transport=DirectTransport(sync),
                clock=clock,
                ledger=Ledger(None),
            )
            stack.push_async_callback(_cancel, asyncio.create_task(agent.run(stop)))
        yield


def _loads() -> dict[str, ArrivalProcess]:
    last_s = max(jump_times_s().values()) + SETTLE_S
    return {
        service: ArrivalProcess(
            shape=LoadShape(
                mean_rps=MEAN_RPS,
                spikes=(
                    Spike(start_s=at_s, length_s=last_s, factor=JUMP, ramp_s=1e-6),
                ),
            ),
            duration_s=int(2 * last_s),
            seed=1,
            stream=stream,
        )
        for stream, (service, at_s) in enumerate(jump_times_s().items())
    }


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _summary(
    label: str, rows: list[Figures], of: Callable[[list[float]], float]
) -> Figures:
    """One figure per column; None where a command never came."""
    figures: dict[str, Figure] = {}
    for name in ("new_command_s", "full_answer_s", "first_late_s", "late_to_force_s"):
        found = [value for row in rows if isinstance(value := row[name], float)]
        # A jump that made no request late has no time from there on; a command that never came has none at all.
        is_whole = len(found) == len(rows) or name in (
            "first_late_s",
            "late_to_force_s",
        )
        figures[name] = of(found) if found and is_whole else None
    return {"service": label, "jump_at_s": None, **figures}


def run() -> list[Figures]:
    """The jumps, then a row of their median and worst."""
    with temporary_database() as url:
        rows = asyncio.run(measure(url))
    return [*rows, _summary("median", rows, median), _summary("worst", rows, max)]


def main() -> None:
    """Measure, print the table, write the JSON."""
    rows = run()
    print(
        f"Rate × {JUMP:g} → new command at the node, seconds; period {PolicySettings().period_s:g} s"
    )
    print_table(rows)
    write_results("reaction", rows)


if __name__ == "__main__":
    main()
