"""What the doctor says of a GPU in MIG mode: read next to the driver's other facts, judged without it.

read_mig(nvml, gpu)   -> MigFacts, None where the GPU is not in MIG mode       check_mig(gpu, facts) -> findings
"""

from collections.abc import Iterator

from agents.base.device import NotPermitted, NotSupported
from agents.doctor.types import GpuFacts, MigFacts, NodeFinding
from agents.gpu.mig.layout import room
from agents.gpu.nvml.mig_types import slice_index
from agents.gpu.nvml.session import Nvml
from agents.gpu.nvml.types import GpuIdentity

PAGE = "docs/gpus.md"


def read_mig(nvml: Nvml, gpu: GpuIdentity) -> MigFacts | None:
    """Slices and room for others. Raises DeviceError."""
    try:
        if not nvml.is_sliced(gpu):
            return None
    # A GPU that cannot have MIG, or may not be asked, as of a virtual one, is reported as one with MIG switched off.
    except (NotSupported, NotPermitted):
        return None
    profiles = nvml.mig_profiles(gpu)
    # Some drivers tell how much room is left only to users who may change the layout.
    is_open = all(each.free_count is not None for each in profiles)
    return MigFacts(
        slices=tuple(
            f"{each.profile} ({slice_index(gpu.index, each.gpu_instance, each.compute_instance)})"
            for each in nvml.mig_slices(gpu)
        ),
        can_have=room({each.name: each.max_count for each in profiles}),
        room=room({each.name: each.free_count or 0 for each in profiles})
        if is_open
        else "",
    )


def check_mig(
    gpu: GpuFacts, facts: MigFacts, *, uses_mps: bool
) -> Iterator[NodeFinding]:
    """Which slices there are, and what that means for knobs and MPS."""
    name = f"GPU {gpu.index} MIG"
    more = (
        f"; room for {facts.room}"
        if facts.room
        else "; its layout cannot be changed by this user"
    )
    if facts.slices:
        words = f"on, each slice is a GPU of its own: {', '.join(facts.slices)}{more}"
        yield NodeFinding(check=name, level="pass", words=words)
    else:
        words = f"on, without slices: nothing can run on this GPU; it can have {facts.can_have}"
        remedy = (
            f"plimsoll-agent mig apply ({PAGE}), or nvidia-smi -i {gpu.uuid} -mig 0"
        )
        yield NodeFinding(check=name, level="warn", words=words, remedy=remedy)
    words = "slices have no clock lock and no power limit: those of the whole GPU stay as they are"
    yield NodeFinding(
        check=name,
        level="warn",
        words=words,
        remedy="nothing to do; plans leave them alone",
    )
    if uses_mps:
        words = "inside slices it is tried when the agent starts; where it does not work replicas take turns"
        yield NodeFinding(check=f"GPU {gpu.index} MPS", level="skip", words=words)
