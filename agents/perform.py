"""Carrying one action out on a device."""

from agents.actions import (
    Action,
    Drain,
    LimitPower,
    LockClock,
    SetBatch,
    Start,
    StartTask,
    Stop,
    StopTask,
    SwapIn,
    SwapOut,
    SwitchRoutes,
)
from agents.device import Device


async def perform(device: Device, action: Action) -> None:
    """Carry the action out; DeviceError passes through."""
    match action:
        case Start(gpu_index=index, replica=replica):
            await device.start_replica(index, replica)
        case SwitchRoutes(routes=routes):
            await device.switch_routes(routes)
        case Drain(replica_id=replica_id):
            await device.drain(replica_id)
        case Stop(replica_id=replica_id):
            await device.stop_replica(replica_id)
        case SetBatch(replica_id=replica_id, batch=batch):
            await device.set_batch(replica_id, batch)
        case LockClock(gpu_index=index, clock_mhz=clock_mhz):
            await device.lock_clock_mhz(index, clock_mhz)
        case LimitPower(gpu_index=index, limit_w=limit_w):
            await device.limit_power_w(index, limit_w)
        case StartTask(gpu_index=index, task=task):
            await device.start_task(index, task)
        case StopTask(task=name):
            await device.stop_task(name)
        case SwapOut(task=name):
            await device.swap_out(name)
        case SwapIn(task=name):
            await device.swap_in(name)
