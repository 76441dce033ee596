"""How an agent's process gives back what it opened."""

import pytest

from agents.base.device import NodeState
from agents.base.protocol import Observation, SyncReply
from agents.daemon.build import closing_both
from agents.sync.transport import ControlPlaneSilent
from tests.agents.factories import (
    run,
)
from tests.agents.paper_device import PaperDevice


class StuckTransport:
    """It cannot be closed."""

    async def exchange(self, observation: Observation, *, wait_s: float) -> SyncReply:
        raise ControlPlaneSilent("nobody is there")

    async def close(self) -> None:
        raise OSError("the connection is broken")


def test_the_device_is_given_back_where_the_transport_cannot_be_closed() -> None:
    device = PaperDevice(NodeState(gpus=()))

    async def open_and_close() -> None:
        async with closing_both(device, StuckTransport()):
            assert not device.is_closed

    with pytest.raises(OSError, match="the connection is broken"):
        run(open_and_close())
    assert device.is_closed
