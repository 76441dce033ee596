"""What each GPU lets this agent do, found by trying and never assumed; what it cannot is said with the reason.

    probe(nvml, gpu, try_writes=True) -> GpuCapabilities    problems(gpu, capabilities) -> words for the operator

There is no harmless way to try a clock lock: nothing reads back who locked it before. Both knobs need the same right
(CAP_SYS_ADMIN), so the right is tried by writing the power limit in force once more. Where a GPU has no power limit the
lock is found out at its first use: the driver's refusal then stands in `Nvml.refusals` and here.
"""

import contextlib
from collections.abc import Iterator

from agents.base.device import DeviceError, GpuLost, NoDriver, NotPermitted, UnknownPart
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
        return _of_slice(probe(nvml, gpu.part.whole, try_writes=False), gpu.part.whole)
    why_not: dict[Capability, str] = {}
    power: PowerRange | None = None
    clocks: tuple[float, ...] = ()
    with _noted(why_not, Capability.LIMIT_POWER):
        power = nvml.power_range(gpu)
    with _noted(why_not, Capability.LOCK_CLOCK):
        clocks = nvml.clocks_mhz(gpu)
    _try_right(nvml, gpu, why_not, try_writes=try_writes)
    for capability in Capability:
        if capability not in KNOBS:
            with _noted(why_not, capability):
                nvml.check(gpu, capability)
    return GpuCapabilities(
        why_not=tuple((each, why_not[each]) for each in Capability if each in why_not),
        power_range=power,
        clocks_mhz=clocks,
    )


def _of_slice(found: GpuCapabilities, whole: GpuIdentity) -> GpuCapabilities:
    knobs = tuple(
        (each, f"it is that of the whole GPU {whole.index}") for each in KNOBS
    )
    return GpuCapabilities(
        why_not=(*knobs, *(each for each in found.why_not if each[0] not in KNOBS))
    )


def problems(gpu: GpuIdentity, capabilities: GpuCapabilities) -> tuple[str, ...]:
    """What an operator should read of this GPU, one line for each thing that it cannot do."""
    return tuple(
        f"GPU {gpu.index} cannot {capability}: {words}"
        for capability, words in capabilities.why_not
    )


def _try_right(
    nvml: Nvml, gpu: GpuIdentity, why_not: dict[Capability, str], *, try_writes: bool
) -> None:
    """Whether this process may turn the knobs that the GPU has."""
    if not try_writes:
        with _noted(why_not, *KNOBS):
            raise NotPermitted(WATCH_ONLY)
        return
    if Capability.LIMIT_POWER not in why_not:
        with _noted(why_not, Capability.LIMIT_POWER):
            try:
                nvml.limit_power_w(gpu, nvml.power_limit_w(gpu))
            except NotPermitted as error:
                why_not.setdefault(Capability.LOCK_CLOCK, str(error))
                raise
    for knob, words in nvml.refusals(gpu):
        why_not.setdefault(knob, words)


@contextlib.contextmanager
def _noted(why_not: dict[Capability, str], *capabilities: Capability) -> Iterator[None]:
    """Refusals are noted as the reason, unless there is one; a GPU or driver that does not answer is the caller's."""
    try:
        yield
    except (NoDriver, GpuLost, UnknownPart):
        raise
    except DeviceError as error:
        for capability in capabilities:
            why_not.setdefault(capability, str(error))
