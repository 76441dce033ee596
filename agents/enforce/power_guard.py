"""The hard guard of power caps: a GPU that draws more than its cap is slowed down within a period.

    guard = PowerGuard(device)
    await guard.step(command, spared)     # once a second; returns what an operator should know
    guard.in_force(command)               # the command with the clocks that the guard holds: enforcement keeps them

It acts where no governor does: `spared` are the GPUs whose governor is acting. Of those it lets go.

    peak of a period > cap            down, by at least a step, to the clock at which power in proportion would fit
    CALM_PERIODS in a row, each of    up by one step, at most to the commanded clock
      whose peaks would fit there

The period after a turn does not count: boards tell a mean over a second. Power rises at most with the cube of the clock
(P ~ f · V², and the voltage at most in proportion to f), so "would fit" is peak · (next / present)³ <= cap: under a
steady load a step up never has to be taken back. A clock that cannot be locked leaves the board's own limit, which is
set to the cap; where there is neither, or the power is not told, nothing holds the cap and the node says so.
"""

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import msgspec

from agents.base.device import Device, DeviceError, GpuState, NotSupported
from agents.base.protocol import GpuCommand, NodeCommand
from agents.enforce.actions import LimitPower, LockClock, perform

TOLERANCE = 1.02
"""A board that keeps its own limit is above it by as much at times."""
CALM_PERIODS = 5

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Hold:
    """One GPU under guard."""

    commanded_mhz: float
    cap_w: float
    clock_mhz: float
    """At most; the commanded one = nothing is held back."""
    calm: int = 0
    """Periods in a row after which one step up would fit."""
    is_settled: bool = False
    """Whether the present period began with this clock."""
    message: str = ""


class PowerGuard:
    """Guards the power caps of one node. Two must not use it at once."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._holds: dict[int, _Hold] = {}

    def in_force(self, command: NodeCommand) -> NodeCommand:
        """The command, with lower clocks where they are held."""
        if not any(
            each.clock_mhz < each.commanded_mhz for each in self._holds.values()
        ):
            return command
        return msgspec.structs.replace(
            command, gpus=tuple(self._held(gpu) for gpu in command.gpus)
        )

    async def step(
        self, command: NodeCommand, spared: Collection[int] = ()
    ) -> tuple[str, ...]:
        """Look at every GPU with a power cap once, and turn what must be. Returns what stands, in words."""
        state = await self._device.state()
        # A GPU that is not healthy tells no power.
        gpus = {gpu.index: gpu for gpu in state.gpus if gpu.healthy}
        guarded = {
            gpu.index: gpu
            for gpu in command.gpus
            if _is_guarded(gpu, spared) and gpu.index in gpus
        }
        self._holds = {
            index: _hold(gpu, self._holds.get(index)) for index, gpu in guarded.items()
        }
        for index, hold in sorted(self._holds.items()):
            try:
                await self._look(gpus[index], hold)
            except NotSupported as error:
                self._unwatched(gpus[index], hold, error)
            except DeviceError as error:
                hold.message = f"GPU {index}: the power cap of {hold.cap_w:g} W cannot be guarded: {error}"
        return tuple(self._message())

    def _message(self) -> Iterator[str]:
        yield from (
            hold.message for _, hold in sorted(self._holds.items()) if hold.message
        )

    async def _look(self, gpu: GpuState, hold: _Hold) -> None:
        peak_w = await self._device.peak_power_w(gpu.index)
        # The peak still covers the time before the last turn.
        if not hold.is_settled:
            hold.is_settled = True
            return
        if peak_w > hold.cap_w * TOLERANCE:
            hold.calm = 0
            await self._slow_down(gpu, hold, peak_w)
        elif hold.clock_mhz < hold.commanded_mhz:
            await self._speed_up(gpu, hold, peak_w)
        else:
            hold.message = ""

    def _unwatched(self, gpu: GpuState, hold: _Hold, error: NotSupported) -> None:
        """The power is not known: the board alone may keep the cap, where it takes a limit."""
        if gpu.has_power_limit:
            hold.message = ""
        else:
            _say(
                hold,
                f"GPU {gpu.index}: the power cap of {hold.cap_w:g} W is not kept: {error}",
            )

    async def _slow_down(self, gpu: GpuState, hold: _Hold, peak_w: float) -> None:
        over = (
            f"GPU {gpu.index} drew {peak_w:.0f} W, over its power cap of {hold.cap_w:g}"
        )
        clock_mhz = slower(gpu.clocks_mhz, hold.clock_mhz, share=hold.cap_w / peak_w)
        # Without a clock lock the board's own limit is the only brake left.
        if not gpu.has_clock_lock or not gpu.clocks_mhz:
            await self._limit(gpu, hold, over)
        elif clock_mhz == hold.clock_mhz:
            _say(
                hold,
                f"{over}, at its lowest clock of {clock_mhz:g} MHz: only fewer replicas can lower it",
            )
        else:
            await self._turn(gpu, hold, clock_mhz)
            _say(
                hold,
                f"{over}: held at {clock_mhz:g} MHz instead of {hold.commanded_mhz:g}",
            )

    async def _limit(self, gpu: GpuState, hold: _Hold, over: str) -> None:
        if not gpu.has_power_limit:
            _say(
                hold,
                f"{over}, and neither clock nor power limit can be changed here: NOTHING enforces the cap",
            )
        elif gpu.power_limit_w == hold.cap_w:
            _say(
                hold,
                f"{over}, which is also its board's limit: the board does not enforce it; check its driver",
            )
        else:
            await perform(
                self._device, LimitPower(gpu_index=gpu.index, limit_w=hold.cap_w)
            )
            _say(
                hold,
                f"{over}: its board's limit was set to the cap, since its clock cannot be locked",
            )

    async def _speed_up(self, gpu: GpuState, hold: _Hold, peak_w: float) -> None:
        clock_mhz = faster(gpu.clocks_mhz, hold.clock_mhz, max_mhz=hold.commanded_mhz)
        # Power grows at most with the cube of the clock (voltage falls with it), so the guess is a safe one.
        fits = peak_w * (clock_mhz / hold.clock_mhz) ** 3 <= hold.cap_w
        hold.calm = hold.calm + 1 if fits else 0
        # A load that swings would turn the clock up and down with every period.
        if hold.calm < CALM_PERIODS:
            return
        hold.calm = 0
        await self._turn(gpu, hold, clock_mhz)
        if clock_mhz == hold.commanded_mhz:
            hold.message = ""
            log.info(
                "GPU %d is back at its commanded clock of %g MHz", gpu.index, clock_mhz
            )

    async def _turn(self, gpu: GpuState, hold: _Hold, clock_mhz: float) -> None:
        await perform(self._device, LockClock(gpu_index=gpu.index, clock_mhz=clock_mhz))
        hold.clock_mhz, hold.is_settled = clock_mhz, False

    def _held(self, gpu: GpuCommand) -> GpuCommand:
        hold = self._holds.get(gpu.index)
        if hold is None or gpu.clock_mhz <= hold.clock_mhz:
            return gpu
        return msgspec.structs.replace(gpu, clock_mhz=hold.clock_mhz)


def slower(clocks_mhz: tuple[float, ...], clock_mhz: float, *, share: float) -> float:
    """The highest clock that is at most that share of the present one, else the lowest; the same where it is that."""
    below = [each for each in clocks_mhz if each < clock_mhz]
    return max(
        (each for each in below if each <= clock_mhz * share),
        default=min(below, default=clock_mhz),
    )


def faster(clocks_mhz: tuple[float, ...], clock_mhz: float, *, max_mhz: float) -> float:
    """The next clock up, at most `max_mhz`."""
    return min(
        (each for each in clocks_mhz if clock_mhz < each < max_mhz), default=max_mhz
    )


def _is_guarded(gpu: GpuCommand, spared: Collection[int]) -> bool:
    """An empty GPU draws little, and one without a clock of its own boosts as it likes."""
    has_knobs = gpu.power_cap_w > 0.0 and gpu.clock_mhz > 0.0
    return has_knobs and bool(gpu.replicas or gpu.tasks) and gpu.index not in spared


def _hold(gpu: GpuCommand, before: _Hold | None) -> _Hold:
    """The one before, while clock and cap are commanded as they were."""
    if before is not None and (before.commanded_mhz, before.cap_w) == (
        gpu.clock_mhz,
        gpu.power_cap_w,
    ):
        return before
    return _Hold(
        commanded_mhz=gpu.clock_mhz, cap_w=gpu.power_cap_w, clock_mhz=gpu.clock_mhz
    )


def _say(hold: _Hold, message: str) -> None:
    if not hold.message:
        log.error("%s", message)
    hold.message = message
