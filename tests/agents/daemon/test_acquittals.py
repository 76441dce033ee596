"""Acquittals of GPUs that come with the control plane's answers: each counts once."""

from msgspec import UNSET

from agents.base.device import NodeState
from agents.daemon.acquittals import Acquittals
from tests.agents.factories import an_empty_gpu, run
from tests.agents.paper_device import PaperDevice

STATE = NodeState(gpus=(an_empty_gpu(0), an_empty_gpu(1)))


def test_each_acquittal_counts_once_however_often_it_is_repeated() -> None:
    device = PaperDevice(STATE)
    acquittals = Acquittals(device)
    assert not run(acquittals.take(UNSET))
    for asked, is_new in (
        (((0, 5),), True),
        (((0, 5), (1, 5)), True),
        (((0, 5), (1, 5)), False),
        (((0, 4),), False),
        (((0, 6),), True),
    ):
        assert run(acquittals.take(asked)) is is_new
    assert device.acquitted == [0, 1, 0]


def test_a_gpu_that_is_not_there_keeps_no_other_from_being_acquitted() -> None:
    device = PaperDevice(STATE)
    assert run(Acquittals(device).take(((9, 1), (1, 1))))
    assert device.acquitted == [1]
