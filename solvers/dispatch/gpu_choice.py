"""Which GPUs may take a batch now, in which order.

Source: OLTunes, section 3.4.1 and Algorithm 3: the GPU with the lowest utilisation among those that are empty, have at
least 80 % of their capacity free, or are soon ready: "due to the early completion of a task", taken as a job of their
latest batch that is done, or since their longest job is at least 80 % complete. Capacity here is SMs. Ties by id.
Algorithm 2 takes the first one only; where none of the waiting jobs may run on it, it would keep all others idle, so
the next one is tried.
"""

from collections.abc import Iterable

from solvers.dispatch.job import GpuView

FREE_SHARE = 0.8
DONE_SHARE = 0.8
_ROUNDING = 1e-9


def available(gpus: Iterable[GpuView]) -> list[GpuView]:
    """GPUs that may take a batch, the least utilised first; the order of `gpus` changes nothing."""
    return sorted((gpu for gpu in gpus if is_available(gpu)), key=lambda gpu: (gpu.used_percent, gpu.id))


def is_available(gpu: GpuView) -> bool:
    """Whether it is empty, mostly free, or soon ready."""
    if gpu.free_percent <= 0.0:
        return False
    if gpu.free_percent >= FREE_SHARE * gpu.sm_percent - _ROUNDING:
        return True
    return gpu.has_early_end or all(each.done_share >= DONE_SHARE for each in gpu.residents)
