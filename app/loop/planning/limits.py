"""What a service's team allows, as plans take it."""

from collections.abc import Sequence

from solvers.types.state import GpuType, Scaling, Service


def min_replicas(scaling: Scaling) -> int:
    """With the buffer, within what the team allows."""
    # The buffer stands ready for spikes, but never beyond what the team allows.
    wanted = scaling.min_replicas + scaling.buffer_replicas
    return wanted if scaling.max_replicas is None else min(wanted, scaling.max_replicas)


def allowed_types(
    service: Service, gpu_types: Sequence[GpuType]
) -> tuple[str, ...] | None:
    """Names of the GPU types that it may use; None = all."""
    # A list of all of them would only make every problem longer.
    if service.allowed_gpu_types is None and not service.excluded_gpu_types:
        return None
    return tuple(
        gpu_type.name
        for gpu_type in gpu_types
        if (
            service.allowed_gpu_types is None
            or gpu_type.name in service.allowed_gpu_types
        )
        and gpu_type.name not in service.excluded_gpu_types
    )
