"""A node that is as its command wants it is left alone, until anything but its load changes."""

from collections.abc import Callable

import pytest

from agents.base.clock import ManualClock
from tests.agents.control_planes import PaperControlPlane, an_agent
from tests.agents.factories import (
    a_replica,
    an_empty_node,
    on_gpu,
)
from tests.agents.factories import run as finish
from tests.agents.paper_device import PaperDevice

CHANGES: dict[str, tuple[Callable[[PaperDevice], object], str]] = {
    "gone": (lambda device: finish(device.stop_replica("r1")), "start r1"),
    "failed": (lambda device: device.put("r1", state="failed"), "route {'chat': []}"),
    "batch": (lambda device: finish(device.set_batch("r1", 1)), "batch r1 4"),
    "clock": (lambda device: finish(device.lock_clock_mhz(0, None)), "clock 0 1500.0"),
    "power": (lambda device: finish(device.limit_power_w(0, None)), "power 0 300.0"),
    "routes": (
        lambda device: finish(device.switch_routes(())),
        "route {'chat': ['r1']}",
    ),
}
"""What changes, and what is done about it."""


class Settled:
    """An agent whose command is carried out."""

    def __init__(self) -> None:
        self.clock, self.device = ManualClock(1000.0), PaperDevice(an_empty_node())
        self.plane = PaperControlPlane(self.clock)
        self.plane.command = on_gpu(a_replica("r1"))
        self.agent = an_agent(self.device, self.plane, self.clock)
        self.step()
        self.device.make_ready()
        self.step()
        self.step()
        assert self.plane.received[-1].acks[-1].status == "applied"
        self.device.log.clear()

    def step(self) -> None:
        self.clock.advance(2.0)
        finish(self.agent.step())


def test_load_alone_changes_nothing() -> None:
    settled = Settled()
    settled.device.put("r1", in_flight=7)
    settled.step()
    assert settled.device.log == []
    assert settled.plane.received[-1].acks[-1].status == "applied"


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_else_changes_behind_the_agents_back_is_put_right(name: str) -> None:
    settled, (change, remedy) = Settled(), CHANGES[name]
    change(settled.device)
    settled.device.log.clear()
    settled.step()
    assert remedy in settled.device.log
