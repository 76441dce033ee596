"""NVML's calls about the slices of one GPU and what they answer: leaves of `agents.gpu.nvml.session`, which tells
errors.

Every function takes a GPU's handle, raises NVML's own errors, and keeps nothing. Listing instances, free room and
placements takes the right to change them; where that is missing the slices themselves can still be read.
"""

import contextlib
import ctypes
from collections.abc import Iterator

import pynvml

from agents.gpu.nvml.mig_types import MigInstance, MigProfile, MigSlice, Placement
from agents.gpu.nvml.reading import Handle, or_none

_MAX_PLACEMENTS = 64
_MAX_COMPUTE = 16


def is_sliced(handle: Handle) -> bool:
    """Whether MIG mode is on."""
    return bool(pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)


def slices(handle: Handle) -> tuple[MigSlice, ...]:
    """The devices that there are, by instance; empty while MIG is off."""
    if not is_sliced(handle):
        return ()
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        # Places are empty where a slice was destroyed.
        with contextlib.suppress(pynvml.NVMLError_NotFound):
            found.append(
                _slice(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
            )
    return tuple(
        sorted(found, key=lambda each: (each.gpu_instance, each.compute_instance))
    )


def profiles(handle: Handle) -> tuple[MigProfile, ...]:
    """Every kind of slice that the GPU can have, the largest first."""
    found = [_profile(handle, info) for info in _profile_infos(handle)]
    return tuple(
        sorted(found, key=lambda each: (-each.slice_count, -each.memory_mib, each.name))
    )


def instances(handle: Handle) -> tuple[MigInstance, ...]:
    """Every GPU instance, by id."""
    found = []
    for info in _profile_infos(handle):
        # NVML fills the caller's array, which must be as large as the profile's count on an empty GPU.
        handles = (pynvml.c_nvmlGpuInstance_t * info.instanceCount)()
        count = ctypes.c_uint(info.instanceCount)
        pynvml.nvmlDeviceGetGpuInstances(handle, info.id, handles, ctypes.byref(count))
        found += [_instance(handles[place]) for place in range(count.value)]
    return tuple(sorted(found, key=lambda each: each.id))


def create(handle: Handle, profile: MigProfile, placement: Placement | None) -> None:
    """A GPU instance with one compute instance; without the second the first is taken away again."""
    if placement is None:
        made = pynvml.nvmlDeviceCreateGpuInstance(handle, profile.id)
    else:
        place = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
            handle, profile.id, ctypes.byref(place)
        )
    try:
        # The compute instance with as many slices as the GPU instance takes all of it.
        profile_info = next(
            info
            for info in _compute_infos(made)
            if info.sliceCount == profile.slice_count
        )
        pynvml.nvmlGpuInstanceCreateComputeInstance(made, profile_info.id)
    except BaseException:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlGpuInstanceDestroy(made)
        raise


def destroy(handle: Handle, instance_id: int) -> None:
    """A GPU instance goes, its compute instances before it: the driver refuses any other order."""
    instance = pynvml.nvmlDeviceGetGpuInstanceById(handle, instance_id)
    for compute in _compute_instances(instance):
        pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)


def _slice(handle: Handle) -> MigSlice:
    attributes = pynvml.nvmlDeviceGetAttributes(handle)
    return MigSlice(
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=str(pynvml.nvmlDeviceGetName(handle)),
        gpu_instance=int(pynvml.nvmlDeviceGetGpuInstanceId(handle)),
        compute_instance=int(pynvml.nvmlDeviceGetComputeInstanceId(handle)),
        sm_count=int(attributes.multiprocessorCount),
        memory_mib=float(attributes.memorySizeMB),
    )


def _profile_infos(
    handle: Handle,
) -> Iterator["pynvml.c_nvmlGpuInstanceProfileInfo_v2_t"]:
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        # The binding may know of more kinds than the driver (2), and the driver of more than the GPU has (3).
        with contextlib.suppress(
            pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_NotSupported
        ):
            yield pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)


def _profile(
    handle: Handle, info: "pynvml.c_nvmlGpuInstanceProfileInfo_v2_t"
) -> MigProfile:
    # Both need the right to change instances; without it the profile is still worth listing.
    free_count = or_none(
        lambda: int(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, info.id))
    )
    places = or_none(lambda: _placements(handle, info.id))
    return MigProfile(
        id=int(info.id),
        name=str(info.name).removeprefix("MIG ").strip(),
        slice_count=int(info.sliceCount),
        sm_count=int(info.multiprocessorCount),
        memory_mib=float(info.memorySizeMB),
        max_count=int(info.instanceCount),
        free_count=free_count,
        placements=places or (),
    )


def _placements(handle: Handle, profile_id: int) -> tuple[Placement, ...]:
    found = (pynvml.c_nvmlGpuInstancePlacement_t * _MAX_PLACEMENTS)()
    count = ctypes.c_uint(_MAX_PLACEMENTS)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(
        handle, profile_id, found, ctypes.byref(count)
    )
    return tuple(
        Placement(start=int(each.start), size=int(each.size))
        for each in found[: count.value]
    )


def _instance(instance: object) -> MigInstance:
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    return MigInstance(
        id=int(info.id),
        profile_id=int(info.profileId),
        placement=Placement(
            start=int(info.placement.start), size=int(info.placement.size)
        ),
        compute_count=len(_compute_instances(instance)),
    )


def _compute_infos(
    instance: object,
) -> Iterator["pynvml.c_nvmlComputeInstanceProfileInfo_v2_t"]:
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        with contextlib.suppress(
            pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_NotSupported
        ):
            yield pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance, number, shared
            )


def _compute_instances(instance: object) -> list[object]:
    found: list[object] = []
    for info in _compute_infos(instance):
        handles = (pynvml.c_nvmlComputeInstance_t * _MAX_COMPUTE)()
        count = ctypes.c_uint(_MAX_COMPUTE)
        pynvml.nvmlGpuInstanceGetComputeInstances(
            instance, info.id, handles, ctypes.byref(count)
        )
        found += list(handles[: count.value])
    return found
