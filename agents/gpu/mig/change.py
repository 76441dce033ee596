"""Changing the layout of one GPU: all slices go, the wanted ones come, or the layout before is made again.

    change(driver, gpu, wanted, journal)   carry it out; raises DeviceError, with the layout before in place if possible
    objection(driver, gpu, wanted)         why it would not be carried out; empty = nothing speaks against it
    slices_of(driver, gpu)                 -> the GPU instances as they can be made again

    idle ──journal──▶ destroy all ──▶ create, in one order after another ──▶ done, journal forgotten
                          └──────────────┴── failed ──▶ as before, journal forgotten
                                                 └── that fails, too ──▶ journal stays, said

The caller has seen to it that nothing uses the GPU (`agents.gpu.mig.idle`); the driver refuses to destroy what is in
use all the same. MIG mode is never switched, and no GPU is ever reset. The devices of a layout that is made again may
have other UUIDs than before.
"""

from collections import Counter
from typing import Protocol

from agents.base.device import DeviceError, NotSupported
from agents.gpu.mig.journal import Made, MigJournal
from agents.gpu.mig.layout import (
    Wanted,
    fits,
    is_same,
    names_of,
    orders,
    room,
    what_fits,
)
from agents.gpu.nvml.mig_types import MigInstance, MigProfile, NoRoom, Placement
from agents.gpu.nvml.types import GpuIdentity


class LayoutDriver(Protocol):
    """The part of `agents.gpu.nvml.session.Nvml` that is needed."""

    def is_sliced(self, gpu: GpuIdentity) -> bool:
        """Whether it is in MIG mode."""
        ...

    def mig_profiles(self, gpu: GpuIdentity) -> tuple[MigProfile, ...]:
        """Which slices it can have."""
        ...

    def mig_instances(self, gpu: GpuIdentity) -> tuple[MigInstance, ...]:
        """Its GPU instances."""
        ...

    def create_slice(
        self, gpu: GpuIdentity, profile: MigProfile, placement: Placement | None
    ) -> None:
        """Make one."""
        ...

    def destroy_instance(self, gpu: GpuIdentity, instance_id: int) -> None:
        """Destroy one with what is in it."""
        ...


def check_mode(driver: LayoutDriver, gpu: GpuIdentity) -> None:
    """Raises NotSupported with what to do where the GPU is not in MIG mode."""
    if not driver.is_sliced(gpu):
        raise NotSupported(
            f"GPU {gpu.index} ({gpu.uuid}) is not in MIG mode: drain it, then run `nvidia-smi -i {gpu.uuid} -mig 1` as "
            "root; some GPUs (A100, A30) must be reset after that. This command neither switches the mode nor resets"
        )


def objection(driver: LayoutDriver, gpu: GpuIdentity, wanted: Wanted) -> str:
    """Why the layout cannot be had, as far as can be told without a change. Raises DeviceError."""
    if shared := [
        each.id for each in driver.mig_instances(gpu) if each.compute_count > 1
    ]:
        return (
            f"GPU instances {shared} of GPU {gpu.index} hold several compute instances, which could not be made again: "
            "destroy those by `nvidia-smi mig -dci` first"
        )
    if not fits(wanted):
        profiles = driver.mig_profiles(gpu)
        return f"GPU {gpu.index} has no room for {names_of(wanted)} together: {what_fits(wanted, profiles)}"
    return ""


def change(
    driver: LayoutDriver, gpu: GpuIdentity, wanted: Wanted, journal: MigJournal
) -> str:
    """Give the GPU this layout, empty = no slice; what was done, in words.

    Raises NoRoom, InUse, NotPermitted or another DeviceError; its words say which layout the GPU has then.
    """
    present = driver.mig_instances(gpu)
    if all(each.compute_count == 1 for each in present) and is_same(
        wanted, (each.profile_id for each in present)
    ):
        journal.forget(gpu.uuid)
        return (
            f"GPU {gpu.index} has this layout already: {names_of(wanted) or 'no slice'}"
        )
    if reason := objection(driver, gpu, wanted):
        raise NoRoom(reason)
    # A change that was cut off left the layout of before in the journal, which is the one to come back to.
    cut = journal.find(gpu.uuid)
    before = cut.before if cut else slices_of(driver, gpu)
    # On disk before the first slice goes, since slices cannot be asked what they replaced.
    journal.note(gpu.uuid, before, tuple(each.name for each in wanted))
    try:
        _clear(driver, gpu)
        _create(driver, gpu, wanted)
    except DeviceError as error:
        _undo(driver, gpu, before, error)
        journal.forget(gpu.uuid)
        kept = ",".join(each.profile for each in before) or "no slice"
        raise type(error)(
            f"{error}; GPU {gpu.index} has its layout of before again: {kept}"
        ) from error
    journal.forget(gpu.uuid)
    return f"GPU {gpu.index} has {names_of(wanted) or 'no slice'} now"


def slices_of(driver: LayoutDriver, gpu: GpuIdentity) -> tuple[Made, ...]:
    """The layout of now, by place."""
    names = {each.id: each.name for each in driver.mig_profiles(gpu)}
    return tuple(
        Made(
            profile_id=each.profile_id,
            profile=names[each.profile_id],
            placement=each.placement,
        )
        for each in sorted(
            driver.mig_instances(gpu), key=lambda each: each.placement.start
        )
    )


def _clear(driver: LayoutDriver, gpu: GpuIdentity) -> None:
    for instance in driver.mig_instances(gpu):
        driver.destroy_instance(gpu, instance.id)


def _create(driver: LayoutDriver, gpu: GpuIdentity, wanted: Wanted) -> None:
    """In the first order that the driver has places for. Raises NoRoom when there is none."""
    tried, left = 0, ""
    # The driver places slices itself, so whether all find a place depends on the order.
    for order in orders(wanted):
        tried += 1
        try:
            for profile in order:
                driver.create_slice(gpu, profile, None)
        except NoRoom:
            left = room(
                {each.name: each.free_count or 0 for each in driver.mig_profiles(gpu)}
            )
            _clear(driver, gpu)
        else:
            return
    raise NoRoom(
        f"the driver found no places for {names_of(wanted)} on GPU {gpu.index} in {tried} orders; at the end of the "
        f"last there was room for {left}"
    )


def _undo(
    driver: LayoutDriver, gpu: GpuIdentity, before: tuple[Made, ...], cause: DeviceError
) -> None:
    """Make the layout of before again; what of it is still there stays. Raises DeviceError when that fails."""
    try:
        profiles = {each.id: each for each in driver.mig_profiles(gpu)}
        missing = Counter(before)
        for instance in driver.mig_instances(gpu):
            name = profiles[instance.profile_id].name
            made = Made(
                profile_id=instance.profile_id,
                profile=name,
                placement=instance.placement,
            )
            # Slices that are there already keep their UUID, by which others may know them.
            if missing[made] and instance.compute_count == 1:
                missing[made] -= 1
            else:
                driver.destroy_instance(gpu, instance.id)
        for made in missing.elements():
            driver.create_slice(gpu, profiles[made.profile_id], made.placement)
    except DeviceError as error:
        raise DeviceError(
            f"{cause}; and the layout of before could not be made again: {error}. See `plimsoll-agent mig list`, then "
            "apply a layout again, or clear the GPU"
        ) from error
