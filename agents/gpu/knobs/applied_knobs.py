"""Clocks and power limits as this agent has turned them, and those that it cannot turn, with the reason.

What a GPU does not have, or this user may not turn, is refused once, told, and not asked for again until the agent
starts again.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

from agents.base.device import DeviceError, NotPermitted, NotSupported
from agents.gpu.nvml.types import Capability, GpuCapabilities, GpuIdentity

KnobName: TypeAlias = Literal["clock", "power limit"]

_CAPABILITIES: Mapping[Capability, KnobName] = {
    Capability.LOCK_CLOCK: "clock",
    Capability.LIMIT_POWER: "power limit",
}

log = logging.getLogger(__name__)


class Turnable(Protocol):
    """The part of `agents.gpu.knobs.knobs.KnobWriter` that is needed."""

    def lock_clock_mhz(
        self, gpu: GpuIdentity, *, low_mhz: float, high_mhz: float
    ) -> None:
        """Keep the SM clock in this range."""
        ...

    def unlock_clock(self, gpu: GpuIdentity) -> None:
        """Take our lock away."""
        ...

    def limit_power_w(self, gpu: GpuIdentity, limit_w: float | None) -> None:
        """Limit the board's power; None = as before us."""
        ...

    def close(self) -> None:
        """Put everything back."""
        ...


@dataclass(slots=True)
class TurnedGpu:
    """One GPU's knobs now."""

    clock_mhz: float | None = None
    power_limit_w: float | None = None
    refused: dict[KnobName, str] = field(default_factory=dict)
    """Why, in words; empty words of a slice, of which none is expected."""


class TurnedKnobs:
    """The knobs of a node's GPUs."""

    def __init__(
        self,
        knobs: Turnable,
        gpus: Sequence[GpuIdentity],
        capabilities: Mapping[int, GpuCapabilities],
    ) -> None:
        """`capabilities` by index, filled in as GPUs start."""
        self._knobs, self._capabilities = knobs, capabilities
        self._gpus = {gpu.index: gpu for gpu in gpus}
        self._of = {gpu.index: TurnedGpu() for gpu in gpus}

    def of(self, gpu_index: int) -> TurnedGpu:
        """The knobs of one GPU."""
        turned = self._of[gpu_index]
        # Looked up now: what a GPU lacks that started late is found out then.
        missing = _missing(self._gpus[gpu_index], self._capabilities[gpu_index])
        return replace(turned, refused=missing | turned.refused)

    @property
    def problems(self) -> tuple[str, ...]:
        """What cannot be turned, by GPU."""
        return tuple(
            message
            for gpu_index in sorted(self._of)
            for message in self.of(gpu_index).refused.values()
            if message
        )

    async def lock_clock_mhz(self, gpu: GpuIdentity, clock_mhz: float | None) -> None:
        """Lock the graphics clock; None unlocks it. Raises OutOfRange or GpuLost; a refusal is kept."""
        try:
            if clock_mhz is None:
                await asyncio.to_thread(self._knobs.unlock_clock, gpu)
            else:
                await asyncio.to_thread(
                    self._knobs.lock_clock_mhz,
                    gpu,
                    low_mhz=clock_mhz,
                    high_mhz=clock_mhz,
                )
        except (NotPermitted, NotSupported) as error:
            # A refusal does not fail the command: replicas can serve without that knob.
            self._refuse(gpu, "clock", error)
        else:
            self._of[gpu.index].clock_mhz = clock_mhz

    async def limit_power_w(self, gpu: GpuIdentity, limit_w: float | None) -> None:
        """Limit the board's power; None restores its own limit. Raises OutOfRange or GpuLost; a refusal is kept."""
        try:
            # The driver may take a while, and requests are routed meanwhile.
            await asyncio.to_thread(self._knobs.limit_power_w, gpu, limit_w)
        except (NotPermitted, NotSupported) as error:
            self._refuse(gpu, "power limit", error)
        else:
            self._of[gpu.index].power_limit_w = limit_w

    async def close(self) -> None:
        """Put everything back."""
        await asyncio.to_thread(self._knobs.close)

    def _refuse(self, gpu: GpuIdentity, knob: KnobName, error: DeviceError) -> None:
        log.warning("GPU %d: the %s is not turned: %s", gpu.index, knob, error)
        self._of[gpu.index].refused[knob] = (
            f"GPU {gpu.index}: the {knob} is not in force: {error}"
        )


def _missing(gpu: GpuIdentity, capabilities: GpuCapabilities) -> dict[KnobName, str]:
    """Knobs that the GPU was found not to have, or that this user may not turn."""
    missing = [
        (_CAPABILITIES[each], why)
        for each, why in capabilities.why_not
        if each in _CAPABILITIES
    ]
    # Clock and power are those of the whole board, so a slice is expected to have neither.
    if gpu.part is not None:
        return {knob: "" for knob, _ in missing}
    return {
        knob: f"GPU {gpu.index}: the {knob} is not in force: {why}"
        for knob, why in missing
    }
