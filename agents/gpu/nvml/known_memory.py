"""Memory of GPU types, for GPUs that do not tell it: fake and simulated ones, and real ones whose driver does not.

The catalogue of the control plane (`app/catalogue/data/gpu_types.csv`) has the same figures with their sources; a test
compares them. They stand here as well because an agent is installed without the control plane.
"""

import re

from agents.base.device import DeviceError

MEMORY_MIB = {
    "T4": 15360.0,
    "L4": 23034.0,
    "A10G": 23028.0,
    "V100-16GB": 16384.0,
    "V100-32GB": 32768.0,
    "A30": 24576.0,
    "A100-40GB": 40960.0,
    "A100-80GB": 81920.0,
    "L40S": 46068.0,
    "H100": 81559.0,
    "H200": 143771.0,
    "RTX-2080-Ti": 11264.0,
    "RTX-4090": 24564.0,
    "RTX-2060-Super": 8192.0,
    "RTX-2060": 6144.0,
}
"""By the catalogue's name of the type."""

_MAKERS = re.compile(r"^(?:(?:NVIDIA|Tesla|GeForce)[ -])+")
_IN_NAME = re.compile(r"[ -](\d{1,4}) ?GB\b")


def memory_mib_of(gpu_type: str, given_mib: float | None = None) -> float:
    """What is given, else what a GPU of that type has, by the catalogue's name or the driver's.

    Raises DeviceError where neither the known types nor the name say it.
    """
    if given_mib is not None:
        return given_mib
    name = _MAKERS.sub("", gpu_type).replace(" ", "-")
    if name in MEMORY_MIB:
        return MEMORY_MIB[name]
    found = _IN_NAME.search(gpu_type)
    if found is None:
        raise DeviceError(
            f"{gpu_type} is no GPU type whose memory is known, and its name does not say it; give --gpu-memory-mib"
        )
    return float(found[1]) * 1024.0
