"""The two knobs of real GPUs, clock and power limit, turned so that they are always put back.

    with Knobs(nvml, KnobJournal(state_dir), boot_id=read_boot_id()) as knobs:   # first puts back what was left
        knobs.lock_clock_mhz(gpu, low_mhz=345.0, high_mhz=1200.0)
        knobs.limit_power_w(gpu, 250.0)
        knobs.unlock_clock(gpu)                                                   # what was before us
    # at the end (exit, exception, a SIGTERM that ends the block) every knob is put back

Each change is journalled before it is made, so that after SIGKILL `plimsoll-agent restore` can put it back. Putting
back undoes nothing of anybody else:

    another boot, another driver version, or a smaller energy counter    dropped: the driver has forgotten the setting
    a power limit that is none of those that we set                      dropped: somebody else set it
    an SM clock above the highest that we locked                         dropped: that lock is no longer in force
    otherwise                                                            the limit before ours; the clock unlocked

A lower lock by somebody else cannot be told from ours (no driver reads it back) and is unlocked.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from agents.base.device import DeviceError, NotPermitted, NotSupported, OutOfRange
from agents.gpu.knobs.journal import Held, Knob, KnobJournal, KnobTurn, Setting
from agents.gpu.nvml.types import GpuIdentity, GpuSample

log = logging.getLogger(__name__)

POWER_TOLERANCE_W = 1.0
"""Drivers round a limit to their own steps, all below a watt."""
CLOCK_TOLERANCE_MHZ = 30.0
"""Two steps: a clock may read a step above the one that it is locked at."""


class KnobDriver(Protocol):
    """The part of `agents.gpu.nvml.session.Nvml` that is needed."""

    def gpus(self) -> tuple[GpuIdentity, ...]:
        """Every GPU."""
        ...

    def driver_version(self) -> str:
        """The version of the driver that is loaded."""
        ...

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        """What a GPU does now."""
        ...

    def power_limit_w(self, gpu: GpuIdentity) -> float:
        """The limit that is set."""
        ...

    def limit_power_w(self, gpu: GpuIdentity, limit_w: float | None) -> None:
        """Set it."""
        ...

    def lock_clock_mhz(
        self, gpu: GpuIdentity, *, low_mhz: float, high_mhz: float
    ) -> None:
        """Lock it."""
        ...

    def unlock_clock(self, gpu: GpuIdentity) -> None:
        """Unlock it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack:
    """What became of one knob that was to be put back."""

    message: str
    is_over: bool
    """It is no longer ours; False = it may still be turned, and stays in the journal."""


class KnobWriter(contextlib.AbstractContextManager["KnobWriter"]):
    """The only writer of clocks and power limits; safe from several threads."""

    def __init__(
        self,
        driver: KnobDriver,
        journal: KnobJournal,
        *,
        boot_id: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`boot_id`: see `read_boot_id`. The journal is closed with this."""
        self._driver = driver
        self._journal = journal
        self._boot_id = boot_id
        self._now = now
        self._lock = threading.RLock()

    def __enter__(self) -> "KnobWriter":
        self.restore()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Put everything back and let another process have the journal; what cannot be put back stays in it."""
        with self._lock:
            try:
                self.restore()
            finally:
                self._journal.close()

    def restore(self) -> tuple[PutBack, ...]:
        """Put every knob back that is in the journal; one that fails keeps no other from it."""
        with self._lock:
            # A restart of the machine has undone them, so there is nothing to put back.
            dropped = drop_other_boots(self._journal, self._boot_id)
            done = dropped + tuple(
                self._put_back(held) for held in self._journal.held()
            )
        for each in done:
            log.log(
                logging.INFO if each.is_over else logging.WARNING, "%s", each.message
            )
        return done

    def in_force(self, gpu: GpuIdentity, knob: Knob) -> Setting:
        """What we turned this knob to, as long as it is so as far as can be told; empty = it is not ours.

        So it is empty, and the knob should be turned again, after the driver was reloaded. Raises DeviceError.
        """
        with self._lock:
            held = self._journal.of(gpu.uuid, knob)
            if held is None or self._not_ours(gpu, held):
                return ()
            # The newest setting alone is in force; the older ones only tell ours from other people's when it
            # is put back.
            setting = held.settings[-1]
            if knob == "power_limit_w" and not _is_one_of(
                self._driver.power_limit_w(gpu), (setting,)
            ):
                return ()
            return setting

    def lock_clock_mhz(
        self, gpu: GpuIdentity, *, low_mhz: float, high_mhz: float
    ) -> None:
        """Keep the SM clock in this range. Raises as `Nvml.lock_clock_mhz`, and OSError when the journal fails."""
        with self._lock:
            _refuse_slice(gpu)
            held = self._journal.of(gpu.uuid, "clock_mhz")
            # What was locked before us cannot be read from the driver, so only our own lock is known.
            old = held.settings[-1] if held else ()
            self._turn(
                self._change(gpu, "clock_mhz", old=old, new=(low_mhz, high_mhz)),
                lambda: self._driver.lock_clock_mhz(
                    gpu, low_mhz=low_mhz, high_mhz=high_mhz
                ),
            )

    def unlock_clock(self, gpu: GpuIdentity) -> None:
        """Take our lock away; nothing happens where there is none. Raises DeviceError when it stays."""
        self._give_back(gpu, "clock_mhz")

    def limit_power_w(self, gpu: GpuIdentity, limit_w: float | None) -> None:
        """Limit the board's power; None sets what was set before us, and nothing where the limit is not ours.

        Raises as `Nvml.limit_power_w`, DeviceError where the driver holds another limit afterwards, and OSError.
        """
        if limit_w is None:
            self._give_back(gpu, "power_limit_w")
            return
        with self._lock:
            _refuse_slice(gpu)
            now_w = self._driver.power_limit_w(gpu)
            held = self._journal.of(gpu.uuid, "power_limit_w")
            if held and not _is_one_of(now_w, (held.old, *held.settings)):
                # An operator set it meanwhile: that is what must come back one day.
                self._journal.forget(gpu.uuid, "power_limit_w")
            change = self._change(gpu, "power_limit_w", old=(now_w,), new=(limit_w,))
            self._turn(change, lambda: self._driver.limit_power_w(gpu, limit_w))
            held_w = self._driver.power_limit_w(gpu)
            if not _is_one_of(held_w, ((limit_w,),)):
                # Ours all the same, however the driver came by it: it must be known again when it is put back.
                self._turn(replace(change, new=(held_w,)), lambda: None)
                raise DeviceError(
                    f"GPU {gpu.index} ({gpu.uuid}) holds {held_w:g} W after {limit_w:g} W were set"
                )

    def _change(
        self, gpu: GpuIdentity, knob: Knob, *, old: Setting, new: Setting
    ) -> KnobTurn:
        return KnobTurn(
            gpu_uuid=gpu.uuid,
            boot_id=self._boot_id,
            driver_version=self._driver.driver_version(),
            energy_j=self._driver.sample(gpu).energy_j,
            knob=knob,
            old=old,
            new=new,
            at=self._now(),
        )

    def _turn(self, change: KnobTurn, turn: Callable[[], None]) -> None:
        """Journal, then turn. What the driver refused did not happen; after any other error it is unknown."""
        # First on disk: a limit that no journal knows could never be put back.
        self._journal.write(change)
        try:
            turn()
        except (OutOfRange, NotSupported, NotPermitted):
            self._journal.withdraw(change.gpu_uuid, change.knob)
            raise
        self._journal.settle(change.gpu_uuid, change.knob)

    def _give_back(self, gpu: GpuIdentity, knob: Knob) -> None:
        with self._lock:
            held = self._journal.of(gpu.uuid, knob)
            if held is None:
                return
            done = self._put_back(held)
            if not done.is_over:
                raise DeviceError(done.message)

    def _put_back(self, held: Held) -> PutBack:
        try:
            message = self._undo(held)
        except DeviceError as error:
            return PutBack(message=f"{_name(held)} is not back: {error}", is_over=False)
        self._journal.forget(held.last.gpu_uuid, held.last.knob)
        return PutBack(message=f"{_name(held)} {message}", is_over=True)

    def _undo(self, held: Held) -> str:
        """What was done, in words. Raises DeviceError when the knob could not be put back."""
        last = held.last
        gpu = next(
            (gpu for gpu in self._driver.gpus() if gpu.uuid == last.gpu_uuid), None
        )
        if gpu is None:
            raise DeviceError(
                "there is no such GPU now; run this again when it is back"
            )
        if reason := self._not_ours(gpu, held):
            return reason
        if last.knob == "clock_mhz":
            self._driver.unlock_clock(gpu)
            return "was unlocked"
        (before_w,) = held.old
        if _is_one_of(self._driver.power_limit_w(gpu), ((before_w,),)):
            return f"is at {before_w:g} W already"
        self._driver.limit_power_w(gpu, before_w)
        return f"was set to {before_w:g} W again"

    def _not_ours(self, gpu: GpuIdentity, held: Held) -> str:
        """Why the knob is not as we turned it, in words; empty = it is, as far as can be told."""
        last = held.last
        version = self._driver.driver_version()
        sample = self._driver.sample(gpu)
        # A driver that was reloaded starts without our settings.
        if last.driver_version != version:
            return f"was dropped: driver {last.driver_version} has been replaced by {version}"
        if (
            last.energy_j is not None
            and sample.energy_j is not None
            and sample.energy_j < last.energy_j
        ):
            return "was dropped: the driver was reloaded since"
        if last.knob == "power_limit_w":
            now_w = self._driver.power_limit_w(gpu)
            is_known = _is_one_of(now_w, (held.old, *held.settings))
            return (
                ""
                if is_known
                else f"was left alone: somebody else set {now_w:g} W after our {last.new[0]:g}"
            )
        # A clock above our highest lock shows that it is not in force; a lower one shows nothing.
        highest_mhz = max(setting[-1] for setting in held.settings)
        clock_mhz = sample.clock_mhz or 0.0
        if clock_mhz > highest_mhz + CLOCK_TOLERANCE_MHZ:
            return f"was left alone: at {clock_mhz:g} MHz our lock at {highest_mhz:g} is not in force"
        return ""


def drop_other_boots(journal: KnobJournal, boot_id: str) -> tuple[PutBack, ...]:
    """Forget what was turned before this start of the machine; needs no driver."""
    return tuple(
        PutBack(
            message=f"{_name(held)} was dropped: the machine was started again since",
            is_over=True,
        )
        for held in journal.drop_other_boots(boot_id)
    )


def _refuse_slice(gpu: GpuIdentity) -> None:
    if gpu.part is not None:
        raise NotSupported(
            f"slice {gpu.index} has no clock and no power limit: they are those of {gpu.part.parent.uuid}"
        )


def _name(held: Held) -> str:
    return f"{held.last.knob} of {held.last.gpu_uuid}"


def _is_one_of(limit_w: float, settings: tuple[Setting, ...]) -> bool:
    return any(
        abs(limit_w - each) <= POWER_TOLERANCE_W
        for setting in settings
        for each in setting
    )
