"""Commands and states, for tests of the node side."""

from collections.abc import Coroutine
from dataclasses import replace
from typing import TypeVar

import msgspec
from hypothesis import strategies as st

from agents.base.device import (
    GpuState,
    NodeState,
)
from agents.base.protocol import (
    EngineCommand,
    GovernorCommand,
    GpuCommand,
    NodeCommand,
    Observation,
    ReplicaCommand,
    Route,
    TaskCommand,
)
from agents.processes.records import Identity, Record, Records
from agents.processes.template_file import built_in
from agents.replicas.replica import ReplicaView
from tests.agents.paper_device import a_running_task

GPU_TYPE = "V100-32GB"
Result = TypeVar("Result")
MEMORIES_MIB = st.sampled_from([50.0, 900.0])
TASKS = ("t0", "t1", "r0", "r1")
"""Names of random tasks; some are called like replicas."""


def run(coroutine: Coroutine[None, None, Result]) -> Result:
    """The result of a coroutine that never really waits, without the cost of an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    coroutine.close()
    raise AssertionError("the coroutine waits; run it in an event loop")


def a_replica(
    replica_id: str = "r1",
    *,
    service: str = "chat",
    sm_percent: float = 50.0,
    batch: int = 4,
    memory_mib: float = 1000.0,
    rate_rps: float = 10.0,
    project: str = "default",
) -> ReplicaCommand:
    return ReplicaCommand(
        id=replica_id,
        service=service,
        project=project,
        network="resnet50",
        sm_percent=sm_percent,
        batch=batch,
        memory_mib=memory_mib,
        arrival_rate_rps=rate_rps,
    )


def a_view(replica_id: str = "r1", **changes: object) -> ReplicaView:
    """A replica that runs, as its node sees it."""
    facts = {
        "service": "chat",
        "network": "resnet50",
        "gpu_index": 0,
        "sm_percent": 40.0,
        "batch": 4,
        "memory_mib": 1000.0,
        "state": "ready",
        "url": "",
        "served_as": "chat",
        "template": "own",
        "pid": 1,
        **changes,
    }
    return ReplicaView(id=replica_id, **facts)  # type: ignore[arg-type]


def an_engine(*gpus: int, drain_s: float = 600.0) -> EngineCommand:
    """How a language model's replica is started on these GPUs."""
    return EngineCommand(
        gpus=gpus,
        max_num_batched_tokens=2048,
        max_num_seqs=64,
        max_model_len=4096,
        drain_s=drain_s,
    )


def a_task(
    name: str = "t1",
    *,
    network: str = "resnet50",
    sm_percent: float = 30.0,
    batch: int = 4,
    memory_mib: float = 1000.0,
    iterations: int = 1000,
    done: float = 0.0,
    is_resident: bool = True,
    project: str = "default",
) -> TaskCommand:
    return TaskCommand(
        name=name,
        kind="offline",
        project=project,
        network=network,
        batch=batch,
        sm_percent=sm_percent,
        memory_mib=memory_mib,
        iterations=iterations,
        done_iterations=done,
        is_resident=is_resident,
    )


def a_gpu(
    *replicas: ReplicaCommand,
    tasks: tuple[TaskCommand, ...] = (),
    index: int = 0,
    clock_mhz: float = 1500.0,
    cap_w: float = 300.0,
    governor: GovernorCommand | None = None,
) -> GpuCommand:
    return GpuCommand(
        index=index,
        gpu_type=GPU_TYPE,
        clock_mhz=clock_mhz,
        power_cap_w=cap_w,
        replicas=replicas,
        tasks=tasks,
        governor=governor,
    )


def a_governor(name: str = "dfs", **changes: object) -> GovernorCommand:
    facts = {
        "clocks_mhz": tuple(float(clock) for clock in range(900, 1501, 15)),
        "power_limit_w": 330.0,
        **changes,
    }
    return GovernorCommand(name=name, **facts)  # type: ignore[arg-type]


def a_command(
    *gpus: GpuCommand,
    generation: int = 1,
    node: str = "n1",
    services: tuple[str, ...] = (),
) -> NodeCommand:
    named = {replica.service for gpu in gpus for replica in gpu.replicas} | set(
        services
    )
    routes = tuple(
        Route(service=each, slo_ms=100.0, percentile=0.98, arrival_rate_rps=10.0)
        for each in sorted(named)
    )
    return NodeCommand(node=node, generation=generation, gpus=gpus, routes=routes)


def on_gpu(
    *replicas: ReplicaCommand, generation: int = 1, **changes: object
) -> NodeCommand:
    """A command for one GPU, 0 where no index is given, with these replicas on it."""
    return a_command(a_gpu(*replicas, **changes), generation=generation)  # type: ignore[arg-type]


def an_observation(**changes: object) -> Observation:
    """The first one of an agent; it says nothing."""
    facts = {
        "node": "n1",
        "boot": "b",
        "sequence": 1,
        "window_start_s": 0.0,
        "window_s": 1.0,
        "generation": 0,
        **changes,
    }
    return Observation(**facts)  # type: ignore[arg-type]


def an_empty_gpu(
    index: int = 0, *, memory_mib: float = 4000.0, max_replicas: int = 48
) -> GpuState:
    return GpuState(
        index=index, gpu_type=GPU_TYPE, memory_mib=memory_mib, max_replicas=max_replicas
    )


def an_empty_node(*gpus: GpuState) -> NodeState:
    return NodeState(gpus=gpus or (an_empty_gpu(),))


@st.composite
def commands(draw: st.DrawFn, generation: int) -> NodeCommand:
    """Any command that two GPUs of 4000 MiB can carry; ids return with other sizes, services and GPUs."""
    gpus = []
    free_ids = draw(st.permutations([f"r{number}" for number in range(6)]))
    for index in (0, 1):
        count = draw(st.integers(0, 3))
        ids, free_ids = free_ids[:count], free_ids[count:]
        replicas = [
            a_replica(
                each,
                service=draw(st.sampled_from(["a", "b"])),
                sm_percent=draw(st.sampled_from([10.0, 30.0])),
                batch=draw(st.sampled_from([1, 8])),
                memory_mib=draw(st.sampled_from([200.0, 1300.0])),
            )
            for each in ids
        ]
        if draw(st.booleans()):
            gpus.append(
                a_gpu(
                    *replicas,
                    index=index,
                    clock_mhz=draw(st.sampled_from([900.0, 1500.0])),
                )
            )
    return a_command(*gpus, generation=generation, services=("a", "b"))


@st.composite
def commands_with_tasks(draw: st.DrawFn, generation: int) -> NodeCommand:
    """As `commands`, with tasks on the memory and SMs that the replicas leave over."""
    command = draw(commands(generation))
    gpus, free_names = [], draw(st.permutations(TASKS))
    for gpu in command.gpus:
        free_mib = 4000.0 - sum(each.memory_mib for each in gpu.replicas)
        tasks = []
        for _ in range(draw(st.integers(0, 2))):
            memory_mib, is_resident = draw(MEMORIES_MIB), draw(st.booleans())
            if is_resident and memory_mib > free_mib:
                continue
            free_mib -= memory_mib if is_resident else 0.0
            sm_percent = draw(st.sampled_from([2.0, 4.0]))
            name, *free_names = free_names
            tasks.append(
                a_task(
                    name,
                    sm_percent=sm_percent,
                    memory_mib=memory_mib,
                    is_resident=is_resident,
                )
            )
        gpus.append(msgspec.structs.replace(gpu, tasks=tuple(tasks)))
    return msgspec.structs.replace(command, gpus=tuple(gpus))


@st.composite
def task_states(draw: st.DrawFn) -> NodeState:
    """Any tasks in any states on two GPUs of 4000 MiB."""
    gpus, names = [], iter(draw(st.permutations(TASKS)))
    states = ("starting", "running", "swapping", "swapped", "finished", "failed")
    for index in (0, 1):
        tasks = [
            a_running_task(
                a_task(
                    next(names),
                    sm_percent=draw(st.sampled_from([2.0, 4.0])),
                    memory_mib=draw(MEMORIES_MIB),
                ),
                draw(st.sampled_from(states)),
            )
            for _ in range(draw(st.integers(0, 2)))
        ]
        gpus.append(replace(an_empty_gpu(index), tasks=tuple(tasks)))
    return NodeState(gpus=tuple(gpus))


def a_record(
    records: Records[Record],
    replica_id: str = "chat-1",
    *,
    identity: Identity,
    gpu_index: int = 0,
) -> Record:
    """What an agent keeps of a replica's process, not yet saved."""
    template = built_in()
    return Record(
        id=replica_id,
        service="chat",
        network="resnet50",
        gpu_index=gpu_index,
        sm_percent=40.0,
        batch=4,
        memory_mib=1000.0,
        ports=(21000,),
        served_as="chat",
        readiness_path="",
        template=template,
        digest=template.digest,
        identity=identity,
        mark=f"{records.mark}.1",
    )
