"""What simulated, fake and real tasks have in common: how they are shown to enforcement and in a reading."""

from agents.base.device import RunningTask
from agents.base.protocol import (
    Amount,
    Iterations,
    TaskCommand,
    TaskReading,
    TaskState,
    within,
)

SWAP_MIB_PER_S = 10e9 / 2**20
"""What a copy between GPU and host reaches over PCIe 3 x16: 10 GB/s, as iGniter measured on a V100. Newer
boards are faster; 10 GiB take about a second here. Only simulated and fake tasks need it."""


def running_task(command: TaskCommand, state: TaskState) -> RunningTask:
    """The task as enforcement sees it."""
    # Without a UID: only real processes have a user, and whoever runs them adds it.
    return RunningTask(
        name=command.name,
        network=command.network,
        batch=command.batch,
        state=state,
        sm_percent=command.sm_percent,
        memory_mib=command.memory_mib,
    )


def task_reading(
    command: TaskCommand,
    state: TaskState,
    gpu_index: int,
    *,
    done_iterations: float,
    window_iterations: float,
    busy_s: float,
) -> TaskReading:
    """A task's reading; `window_iterations` in `busy_s` seconds are what it did since the reading before."""
    # A window without a step has no mean: 0 says so on the wire.
    has_steps = window_iterations > 0.0
    iteration_ms = 1000.0 * busy_s / window_iterations if has_steps else 0.0
    return TaskReading(
        name=command.name,
        gpu_index=gpu_index,
        state=state,
        sm_percent=command.sm_percent,
        batch=command.batch,
        done_iterations=within(done_iterations, Iterations),
        iteration_ms=within(iteration_ms, Amount),
    )
