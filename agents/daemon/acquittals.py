"""GPUs that an operator acquits of the critical errors that they told so far: each acquittal counts once."""

import logging
from collections.abc import Iterable

from msgspec import UnsetType

from agents.base.device import Device, DeviceError

log = logging.getLogger(__name__)


class Acquittals:
    """Those that came with the control plane's answers."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._taken: dict[int, int] = {}
        """The number of the last one, by GPU."""

    async def take(self, asked: Iterable[tuple[int, int]] | UnsetType) -> bool:
        """Carry out those that are new; whether there was any.

        `asked`: (GPU, number). An answer repeats them until the GPU is reported healthy, and must not acquit it of
        what happened meanwhile.
        """
        new = [
            (index, number)
            for index, number in asked or ()
            if number > self._taken.get(index, 0)
        ]
        for index, number in new:
            self._taken[index] = number
            try:
                await self._device.acquit(index)
                log.info("GPU %d was acquitted by an operator", index)
            except DeviceError as error:
                log.error("GPU %d cannot be acquitted: %s", index, error)
        return bool(new)
