"""How an agent's process gives back what it opened."""

import pytest

from agents.base.device import NodeState
from agents.base.protocol import Observation, SyncReply
from agents.daemon.build import closing_both
from agents.sync.transport import ControlPlaneSilent
from tests.agents.paper_device import PaperDevice
from tests.waiting import in_loop


class StuckTransport:
    """It cannot be closed."""

    async def exchange(self, observation: Observation, *, wait_s: float) -> SyncReply:
        raise ControlPlaneSilent("no one is there")

    async def close(self) -> None:
        raise OSError("the connection is broken")


@in_loop
async def test_the_device_is_given_back_though_the_transport_cannot_be_closed() -> None:
    device = PaperDevice(NodeState(gpus=()))
    with pytest.raises(OSError, match="the connection is broken"):
        async with closing_both(device, StuckTransport()):
            assert not device.is_closed
    assert device.is_closed
