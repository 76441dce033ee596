"""What waits at a node that no longer has the service goes where the control plane says, and waits until it does."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from agents.base.protocol import SyncReply
from agents.daemon.loop import AgentSettings
from agents.enforce.progress import Progress
from agents.enforce.reconcile import Enforcing
from tests.agents.factories import a_command, an_empty_node
from tests.agents.paper_device import PaperDevice
from tests.waiting import run


@dataclass
class Router:
    passed: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def pass_on(self, service: str, urls: Sequence[str]) -> None:
        self.passed.append((service, tuple(urls)))


class WaitingDevice(PaperDevice):
    """Requests for two services wait there that run nowhere on it."""

    def __init__(self) -> None:
        super().__init__(replace(an_empty_node(), stranded=("chat", "doze")))
        self.router = Router()


@pytest.mark.parametrize(
    ("carriers", "passed"),
    [
        (None, []),
        ({}, []),
        ({"chat": ("http://n2:1",)}, [("chat", ("http://n2:1",))]),
        ({"chat": ()}, [("chat", ())]),
        ({"other": ()}, []),
    ],
)
def test_only_what_has_a_carrier_or_is_gone_leaves_the_node(
    carriers: dict[str, tuple[str, ...]] | None,
    passed: list[tuple[str, tuple[str, ...]]],
) -> None:
    device = WaitingDevice()
    enforcing = Enforcing(
        device,
        Progress(),
        hands=asyncio.Lock(),
        limits=AgentSettings(node="n1", boot="b"),
    )
    assert enforcing.report_within_s == math.inf
    run(enforcing.enforce(a_command, 0.0))
    assert enforcing.report_within_s < AgentSettings(node="n1", boot="b").period_s
    reply = SyncReply(
        boot="b",
        acknowledged=0,
        server_time_s=0.0,
        ready_elsewhere=("chat", "doze", "other"),
        **({} if carriers is None else {"carriers": carriers}),
    )
    enforcing.note_ready_elsewhere(reply)
    assert device.router.passed == passed
