"""What each GPU lets this agent do, found by trying and never assumed; what it cannot is said with the reason.

    probe(nvml, gpu, try_writes=True) -> GpuCapabilities    problems(gpu, capabilities) -> words for the operator
    find_abilities(nvml, gpu, try_writes=True) -> GpuAbilities    the same of a whole GPU, with kinds instead of words

There is no harmless way to try a clock lock: nothing reads back who locked it before. Both knobs need the same right
(CAP_SYS_ADMIN), so the right is tried by writing the power limit in force once more. Where a GPU has no power limit the
lock is found out at its first use: the driver's refusal then stands in `Nvml.refusals` and here.
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from agents.base.device import DeviceError, GpuLost, NoDriver, NotPermitted, UnknownPart
from agents.gpu.nvml.lacks import Lack, LackKind, lack_of
from agents.gpu.nvml.session import Nvml
from agents.gpu.nvml.types import Capability, GpuCapabilities, GpuIdentity, PowerRange

WATCH_ONLY = "this agent was started to watch only"
KNOBS = (Capability.LOCK_CLOCK, Capability.LIMIT_POWER)


def probe(nvml: Nvml, gpu: GpuIdentity, *, try_writes: bool) -> GpuCapabilities:
    """What the GPU lets this process do now.

    A slice has neither knob: they are its GPU's, and so is whatever is read of it but memory and processes.
    `try_writes`: False writes nothing, and both knobs count as not permitted. Raises NoDriver, GpuLost or UnknownPart.
    """
    if gpu.part is not None:
        return _of_slice(
            probe(nvml, gpu.part.parent, try_writes=False), gpu.part.parent
        )
    found = find_abilities(nvml, gpu, try_writes=try_writes)
    return GpuCapabilities(
        why_not=tuple((each.capability, each.message) for each in found.lacks),
        power_range=found.power_range,
        clocks_mhz=found.clocks_mhz,
    )


class GpuAbilities(NamedTuple):
    """What a whole GPU lets this process do, and what not."""

    lacks: tuple[Lack, ...]
    """In the order of `Capability`."""
    power_range: PowerRange | None
    clocks_mhz: tuple[float, ...]


def find_abilities(nvml: Nvml, gpu: GpuIdentity, *, try_writes: bool) -> GpuAbilities:
    """The same of a whole GPU, with the kind of each lack. Raises as `probe` does."""
    lacks: dict[Capability, Lack] = {}
    power: PowerRange | None = None
    clocks: tuple[float, ...] = ()
    with _noted(lacks, Capability.LIMIT_POWER):
        power = nvml.power_range(gpu)
    with _noted(lacks, Capability.LOCK_CLOCK):
        clocks = nvml.clocks_mhz(gpu)
    # After the ranges: a knob that the GPU does not have is not tried, and keeps the more precise reason.
    _try_right(nvml, gpu, lacks, try_writes=try_writes)
    for capability in Capability:
        if capability not in KNOBS:
            with _noted(lacks, capability):
                nvml.check(gpu, capability)
    return GpuAbilities(
        lacks=tuple(lacks[each] for each in Capability if each in lacks),
        power_range=power,
        clocks_mhz=clocks,
    )


def _of_slice(found: GpuCapabilities, parent: GpuIdentity) -> GpuCapabilities:
    knobs = tuple(
        (each, f"it is that of the whole GPU {parent.index}") for each in KNOBS
    )
    return GpuCapabilities(
        why_not=(*knobs, *(each for each in found.why_not if each[0] not in KNOBS))
    )


def problems(gpu: GpuIdentity, capabilities: GpuCapabilities) -> tuple[str, ...]:
    """What an operator should read of this GPU, one line for each thing that it cannot do."""
    return tuple(
        f"GPU {gpu.index} cannot {capability}: {message}"
        for capability, message in capabilities.why_not
    )


def _try_right(
    nvml: Nvml, gpu: GpuIdentity, lacks: dict[Capability, Lack], *, try_writes: bool
) -> None:
    """Whether this process may turn the knobs that the GPU has."""
    if not try_writes:
        for knob in KNOBS:
            untried = Lack(knob, LackKind.NOT_TRIED, WATCH_ONLY, WATCH_ONLY)
            lacks.setdefault(knob, untried)
        return
    if Capability.LIMIT_POWER not in lacks:
        with _noted(lacks, Capability.LIMIT_POWER):
            try:
                # The limit in force is written once more, so that the try changes nothing.
                nvml.limit_power_w(gpu, nvml.power_limit_w(gpu))
            except NotPermitted as error:
                clock = Capability.LOCK_CLOCK
                # Both knobs need the same right, so one refusal holds for both.
                lacks.setdefault(clock, lack_of(clock, error))
                raise
    # What was refused in earlier use counts as well: a clock lock cannot be tried without harm.
    for lack in nvml.refusals(gpu):
        lacks.setdefault(lack.capability, lack)


@contextlib.contextmanager
def _noted(lacks: dict[Capability, Lack], capability: Capability) -> Iterator[None]:
    """Refusals are noted as the reason, unless there is one; a GPU or driver that does not answer is the caller's."""
    try:
        yield
    except (NoDriver, GpuLost, UnknownPart):
        raise
    except DeviceError as error:
        lacks.setdefault(capability, lack_of(capability, error))
