"""The devices of a node: whole GPUs, and in the place of those in MIG mode their slices.

    devices = Devices(nvml)
        gpus()          what replicas can run on, by index (`agents.gpu.nvml.mig_types` has the rule)
        sample(gpu)     of a slice: its own memory; power and energy of its GPU by its part of the SMs; the GPU's clock
        power_w(gpu)    the power alone
        look()          what became of the layout since: slices that are gone, slices that are new

Clock, power limit and energy are the whole GPU's. A slice has neither knob; energy is split among the slices by their
SMs, so that their sum is what the GPU drew and nothing counts twice. A slice that computes more than its part draws
more than it is said to: the board has one meter.

Any error of one GPU costs that GPU: one that does not answer is a device by what is known of it from an earlier start
(`agents.gpu.node.inventory`), else `look` says so.

A critical error of a GPU condemns its slices (`SliceErrors`): only a reset of the whole GPU helps. Slices that are made
while an agent runs wait for its next start; replicas and tasks on one that goes are failed (`fail_stranded`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from agents.base.device import (
    DeviceError,
    GpuLost,
    NotPermitted,
    NotSupported,
    UnknownPart,
)
from agents.gpu.node.inventory import missing_of
from agents.gpu.nvml.mig_types import MigSlice, slice_index, slice_type
from agents.gpu.nvml.types import (
    GpuIdentity,
    GpuListing,
    GpuProcess,
    GpuSample,
    SlicePart,
)
from agents.replicas.replica import ReplicaView
from agents.tasks.task import TaskHolder

log = logging.getLogger(__name__)


class SliceDriver(Protocol):
    """The part of `agents.gpu.nvml.session.Nvml` that is needed."""

    def listing(self) -> GpuListing:
        """Every whole GPU."""
        ...

    def is_sliced(self, gpu: GpuIdentity) -> bool:
        """Whether it is in MIG mode."""
        ...

    def mig_slices(self, gpu: GpuIdentity) -> tuple[MigSlice, ...]:
        """Its slices."""
        ...

    def used_mib(self, uuid: str) -> float:
        """Memory in use of a slice."""
        ...

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        """What a whole GPU does now."""
        ...

    def power_w(self, gpu: GpuIdentity) -> float:
        """What a whole GPU draws now."""
        ...

    def processes(self, gpu: GpuIdentity) -> tuple[GpuProcess, ...]:
        """Who computes on a GPU or slice."""
        ...

    def close(self) -> None:
        """Shut down."""
        ...


class Failing(Protocol):
    """The part of `agents.replicas.replicas.Workers` that is needed."""

    def replicas(self) -> tuple[ReplicaView, ...]:
        """Every replica."""
        ...

    async def fail(self, replica_id: str, reason: str) -> None:
        """End one and tell why."""
        ...


class FailingTasks(Protocol):
    """The part of `agents.tasks.tasks.Tasks` that is needed."""

    def holders(self) -> tuple[TaskHolder, ...]:
        """Every task that has not ended."""
        ...

    def fail(self, name: str, reason: str) -> None:
        """End one and tell why."""
        ...


class GpuErrors(Protocol):
    """The part of `agents.gpu.nvml.xid_watch.XidWatch` that is needed."""

    @property
    def problem(self) -> str:
        """Why no errors are told at present."""
        ...

    def condemned(self) -> dict[str, str]:
        """Why each condemned GPU must not be used, by UUID."""
        ...

    def acquit(self, uuid: str) -> None:
        """Forget what was told of a GPU."""
        ...

    def close(self) -> None:
        """Watch no more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceChanges:
    """What became of a node's slices since its devices were listed."""

    gone: tuple[tuple[int, str], ...] = ()
    """Indices of slices that are no more, each with the words for it."""
    problems: tuple[str, ...] = ()
    """All that an operator should know of it."""


class Slices(Protocol):
    """The part of `Devices` that a device asks again and again."""

    def look(self) -> SliceChanges:
        """What became of the slices."""
        ...


class Devices:
    """What replicas can run on; listed once, when made."""

    def __init__(
        self,
        driver: SliceDriver,
        *,
        known: Iterable[GpuIdentity] = (),
        memory_mib: Callable[[GpuIdentity], float] | None = None,
    ) -> None:
        """`known`: devices of an earlier start. `memory_mib`: of a whole GPU whose driver does not tell it; raises
        DeviceError, as this does where the driver is gone."""
        self._driver = driver
        listing = driver.listing()
        found: dict[GpuIdentity, tuple[GpuIdentity, ...]] = {}
        silent = dict(listing.silent)
        for gpu in listing.gpus:
            try:
                parent = gpu if memory_mib is None else _with_memory(gpu, memory_mib)
                found[parent] = tuple(_devices(driver, parent))
            except DeviceError as error:
                silent[gpu.index] = str(error)
        present = [each for devices in found.values() for each in devices]
        missing = missing_of(known, present, {gpu.uuid for gpu in found})
        lost = dict.fromkeys(map(parent_of, missing))
        # Those that are known tell by themselves what is wrong, as soon as they are read.
        self._silent = {
            index: why
            for index, why in silent.items()
            if index not in {gpu.index for gpu in lost}
        }
        for index, why in sorted(self._silent.items()):
            log.error("GPU %d is not used: %s", index, why)
        self.entire_gpus = (*found, *lost)
        """Every GPU, sliced or not."""
        self._gpus = tuple(sorted((*present, *missing), key=lambda gpu: gpu.index))

    def gpus(self) -> tuple[GpuIdentity, ...]:
        """Whole GPUs and slices, by index."""
        return self._gpus

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        """What it does now. Raises GpuLost, also of a slice that is gone, or another DeviceError."""
        if gpu.part is None:
            return self._driver.sample(gpu)
        # The board has one meter and one clock; only memory is known of a slice by itself.
        sample = self._driver.sample(gpu.part.parent)
        try:
            used_mib = self._driver.used_mib(gpu.uuid)
        except UnknownPart as error:
            raise GpuLost(_gone(gpu)) from error
        share = gpu.part.sm_share
        return replace(
            sample,
            memory_used_mib=used_mib,
            # The driver's own reserve is known for the entire GPU only.
            memory_reserved_mib=0.0,
            power_w=None if sample.power_w is None else sample.power_w * share,
            energy_j=None if sample.energy_j is None else sample.energy_j * share,
            enforced_limit_w=None,
            # The GPU's figure says nothing about one of its slices.
            busy_percent=None,
        )

    def power_w(self, gpu: GpuIdentity) -> float:
        """What it draws now, a slice by its part of the SMs. Raises DeviceError."""
        return self._driver.power_w(parent_of(gpu)) * (
            1.0 if gpu.part is None else gpu.part.sm_share
        )

    def processes(self, gpu: GpuIdentity) -> tuple[GpuProcess, ...]:
        """Who computes on it. Raises NotSupported where the driver's list cannot be read."""
        return self._driver.processes(gpu)

    def look(self) -> SliceChanges:
        """Compare the slices that there are with those that were listed."""
        gone: list[tuple[int, str]] = []
        problems: list[str] = []
        for parent in self.entire_gpus:
            known = {
                gpu.uuid: gpu
                for gpu in self._gpus
                # A GPU that was not sliced when the devices were listed is its own entry.
                if parent.uuid in (gpu.uuid, parent_of(gpu).uuid)
            }
            try:
                found = {each.uuid for each in _slices(self._driver, parent)}
            except DeviceError:
                continue  # Its slices say so by themselves: their samples fail, too.
            listed = {uuid: gpu for uuid, gpu in known.items() if gpu.part is not None}
            gone += [
                (gpu.index, _gone(gpu))
                for uuid, gpu in listed.items()
                if uuid not in found
            ]
            if fresh := sorted(found - listed.keys()):
                problems.append(
                    f"GPU {parent.index} has new slices {', '.join(fresh)}: restart the agent to use them"
                )
            elif not known:
                problems.append(
                    f"GPU {parent.index} is in MIG mode without slices: `plimsoll-agent mig apply` makes some"
                )
        return SliceChanges(
            gone=tuple(gone),
            problems=(
                *(message for _, message in gone),
                *problems,
                *(
                    f"GPU {index} is not used: {why}; once that is over, restart the agent"
                    for index, why in sorted(self._silent.items())
                ),
            ),
        )

    def close(self) -> None:
        """Shut the driver's library down."""
        self._driver.close()


class SliceErrors:
    """Critical errors by device: what condemns a GPU condemns its slices."""

    def __init__(self, errors: GpuErrors, gpus: tuple[GpuIdentity, ...]) -> None:
        """`errors`: of the whole GPUs; closed with this."""
        self._errors, self._gpus = errors, gpus

    @property
    def problem(self) -> str:
        """Why no errors are told at present."""
        return self._errors.problem

    def condemned(self) -> dict[str, str]:
        """Why each condemned device must not be used, by UUID."""
        found = self._errors.condemned()
        slices = {
            gpu.uuid: found[parent_of(gpu).uuid]
            for gpu in self._gpus
            if parent_of(gpu).uuid in found
        }
        return {**slices, **found}

    def acquit(self, uuid: str) -> None:
        """Forget what was told of the GPU that this is, or is a slice of."""
        for gpu in self._gpus:
            if gpu.uuid == uuid:
                self._errors.acquit(parent_of(gpu).uuid)

    def close(self) -> None:
        """Watch no more."""
        self._errors.close()


async def fail_stranded(
    slices: Slices, workers: Failing, tasks: FailingTasks
) -> tuple[str, ...]:
    """Fail the replicas and tasks of slices that are gone; what an operator should know of all slices."""
    changes = await asyncio.to_thread(slices.look)
    gone = dict(changes.gone)
    for view in workers.replicas():
        # One that failed already keeps its first reason.
        if view.gpu_index in gone and view.state != "failed":
            await workers.fail(view.id, gone[view.gpu_index])
    for task in tasks.holders():
        if task.gpu_index in gone:
            tasks.fail(task.name, gone[task.gpu_index])
    return changes.problems


def parent_of(gpu: GpuIdentity) -> GpuIdentity:
    """The GPU that it is a slice of, or itself."""
    return gpu if gpu.part is None else gpu.part.parent


def type_of(gpu: GpuIdentity, type_of_entire: Callable[[GpuIdentity], str]) -> str:
    """The catalogue's name of a device's type."""
    return (
        type_of_entire(gpu)
        if gpu.part is None
        else slice_type(type_of_entire(gpu.part.parent), gpu.part.profile)
    )


def _with_memory(
    gpu: GpuIdentity, memory_mib: Callable[[GpuIdentity], float]
) -> GpuIdentity:
    if gpu.memory_mib:
        return gpu
    try:
        return replace(gpu, memory_mib=memory_mib(gpu))
    except DeviceError as error:
        raise DeviceError(
            f"the driver does not tell the memory of this {gpu.name} (nvmlDeviceGetMemoryInfo is not supported): "
            f"{error}"
        ) from error


def _devices(driver: SliceDriver, parent: GpuIdentity) -> Iterator[GpuIdentity]:
    if _is_sliced(driver, parent):
        yield from _identities(parent, driver.mig_slices(parent))
    else:
        yield parent


def _identities(
    parent: GpuIdentity, slices: tuple[MigSlice, ...]
) -> Iterator[GpuIdentity]:
    # Shares are of the SMs in slices, not of the GPU's: then the slices' energies add up to what the GPU drew.
    all_sms = sum(each.sm_count for each in slices)
    for each in slices:
        yield GpuIdentity(
            index=slice_index(parent.index, each.gpu_instance, each.compute_instance),
            uuid=each.uuid,
            name=each.name,
            memory_mib=each.memory_mib,
            sm_count=each.sm_count,
            part=SlicePart(
                parent=parent, profile=each.profile, sm_share=each.sm_count / all_sms
            ),
        )


def _slices(driver: SliceDriver, parent: GpuIdentity) -> tuple[MigSlice, ...]:
    return driver.mig_slices(parent) if _is_sliced(driver, parent) else ()


def _is_sliced(driver: SliceDriver, parent: GpuIdentity) -> bool:
    try:
        return driver.is_sliced(parent)
    # Guests of a virtual GPU may not even ask.
    except (NotSupported, NotPermitted):
        return False


def _gone(gpu: GpuIdentity) -> str:
    assert gpu.part is not None
    return (
        f"slice {gpu.index} ({gpu.uuid}) is gone, the MIG layout of GPU {gpu.part.parent.index} was changed; restart "
        "the agent"
    )
