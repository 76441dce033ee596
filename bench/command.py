"""How long a command takes on its node: to another batch, and to another SM percent by a shadow switch.

    python -m bench.command

The agent, its workers (`plimsoll worker`, timed engine, on the CPU) and the fake MPS are real processes; the
control plane answers in this one. A switch takes the start of a worker and what the agent adds; both are told.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec

from agents.base.device import NodeState
from agents.base.protocol import NodeCommand, Observation, SyncReply
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.gpu.node.device import GpuDevice
from agents.gpu.node.parts import DEFAULT_LOOKS
from agents.sync.ledger import Ledger
from agents.sync.transport import DirectTransport
from bench.report import Figures, print_table, write_results
from tests.agents.factories import a_command, a_gpu, a_replica
from tests.agents.gpu_nodes import CLOCK, Wanted, gpu_device

ROUNDS = 10
LOOK_S = 0.002
PATIENCE_S = 60.0


class WaitingPlane:
    """Answers at once when there is a newer command, else when the agent's wait is over."""

    def __init__(self) -> None:
        self._command: NodeCommand | None = None
        self._news = asyncio.Event()

    def publish(self, command: NodeCommand) -> None:
        """Make it the newest."""
        self._command = command
        self._news.set()

    async def answer(self, observation: Observation, wait_s: float) -> SyncReply:
        """A control plane's long poll."""
        if not self._is_new(observation):
            self._news.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            except TimeoutError:
                pass
        return SyncReply(
            boot=observation.boot,
            acknowledged=observation.sequence,
            server_time_s=CLOCK.now_s(),
            command=self._command if self._is_new(observation) else None,
        )

    def _is_new(self, observation: Observation) -> bool:
        return (
            self._command is not None
            and self._command.generation > observation.generation
        )


def wanted(
    generation: int, *, batch: int = 8, sm_percent: float = 40.0, name: str = "r1"
) -> NodeCommand:
    """One replica on the first GPU."""
    replica = msgspec.structs.replace(
        a_replica(name, sm_percent=sm_percent), batch=batch
    )
    return a_command(a_gpu(replica), generation=generation)


async def seconds_until(
    device: GpuDevice, holds: Callable[[NodeState], bool], begun_s: float
) -> float:
    """From `begun_s` until it holds, to LOOK_S."""
    while not holds(await device.state()):
        if time.perf_counter() > begun_s + PATIENCE_S:
            raise TimeoutError(f"it does not hold after {PATIENCE_S:g} s")
        await asyncio.sleep(LOOK_S)
    return time.perf_counter() - begun_s


def _has_batch(batch: int) -> Callable[[NodeState], bool]:
    return lambda state: any(
        each.batch == batch for gpu in state.gpus for each in gpu.replicas
    )


def _is_routed(name: str) -> Callable[[NodeState], bool]:
    return lambda state: (
        [shares for route in state.routes for shares, _ in route.shares] == [name]
    )


def _is_at(name: str, *is_in: str) -> Callable[[NodeState], bool]:
    return lambda state: any(
        each.id == name and each.state in is_in
        for gpu in state.gpus
        for each in gpu.replicas
    )


async def batches_ms(
    device: GpuDevice, plane: WaitingPlane, generation: int
) -> list[float]:
    """Command to batch in force."""
    found = []
    for at in range(ROUNDS):
        batch = 16 if at % 2 == 0 else 8
        begun_s = time.perf_counter()
        plane.publish(wanted(generation + at, batch=batch))
        found.append(1000.0 * await seconds_until(device, _has_batch(batch), begun_s))
        await asyncio.sleep(
            0.37
        )  # so that the rounds meet the agent's periods at different moments
    return found


async def switches_ms(
    device: GpuDevice, plane: WaitingPlane, generation: int
) -> list[tuple[float, float]]:
    """(command to route switched, of it start of the worker until the agent sees it ready)."""
    found = []
    for at in range(ROUNDS):
        name, begun_s = f"s{at}", time.perf_counter()
        plane.publish(
            wanted(generation + at, sm_percent=40.0 + 5.0 * (at % 2), name=name)
        )
        started_s = await seconds_until(
            device, _is_at(name, "starting", "ready"), begun_s
        )
        ready_s = await seconds_until(device, _is_at(name, "ready"), begun_s)
        routed_s = await seconds_until(device, _is_routed(name), begun_s)
        found.append((1000.0 * routed_s, 1000.0 * (ready_s - started_s)))
        await seconds_until(
            device,
            lambda state: sum(len(gpu.replicas) for gpu in state.gpus) == 1,
            begun_s,
        )
    return found


async def measure() -> list[Figures]:
    """Both, on one node."""
    with tempfile.TemporaryDirectory(prefix="cmd") as name:
        async with gpu_device(
            Wanted(directory=Path(name), has_mps=True, looks=DEFAULT_LOOKS)
        ) as device:
            plane, stop = WaitingPlane(), asyncio.Event()
            settings = AgentSettings(node="n1", boot="boot-1")
            transport = DirectTransport(plane.answer)
            agent = NodeAgent(
                settings,
                device,
                transport=transport,
                clock=CLOCK,
                ledger=Ledger(Path(name) / "state"),
            )
            running = asyncio.create_task(agent.run(stop))
            plane.publish(wanted(1))
            await seconds_until(device, _is_routed("r1"), time.perf_counter())
            batches = await batches_ms(device, plane, 2)
            switches = await switches_ms(device, plane, 2 + ROUNDS)
            stop.set()
            await running
    added = [whole - start for whole, start in switches]
    return [
        _figures("batch applied", batches, goal_ms=200.0),
        _figures("share switched, besides the worker's start", added, goal_ms=500.0),
        _figures("the worker's start", [start for _, start in switches], goal_ms=None),
    ]


def _figures(what: str, found_ms: list[float], *, goal_ms: float | None) -> Figures:
    return {
        "what": what,
        "median_ms": median(found_ms),
        "largest_ms": max(found_ms),
        "goal_ms": "" if goal_ms is None else goal_ms,
    }


def main() -> None:
    """Print the table, write the JSON."""
    rows = asyncio.run(measure())
    print_table(rows)
    write_results("command", rows, settings={"rounds": ROUNDS})


if __name__ == "__main__":
    main()
