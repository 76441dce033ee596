"""Points that both sides of a pipe know: the same come out, and only new ones are sent."""

from dataclasses import replace

from app.solver.shared_points import ReceivedPoints, SentPoints
from solvers.types.problem import OperatingPoints
from tests.solvers.instances import HALVES


def points(network: str) -> OperatingPoints:
    return OperatingPoints(
        network=network, gpu_type="gpu", sensitivity=0.0, rows=HALVES
    )


A, B, C = points("a"), points("b"), points("c")


def test_what_was_sent_before_is_named_by_its_place() -> None:
    sent = SentPoints()
    assert sent.pack((A, B)) == (A, B)
    assert sent.pack((B, C, A)) == (1, C, 0)
    assert sent.pack((C,)) == (1,)
    # What left and comes back is sent again, and so is what only equals it.
    assert sent.pack((A,)) == (A,)
    other = replace(A)
    assert sent.pack((other,)) == (other,)


def test_the_other_side_receives_what_was_meant_and_the_same_objects_again() -> None:
    sent, received = SentPoints(), ReceivedPoints()
    for message in ((A, B), (B, C, A), (), (C, A), (A, C)):
        assert received.unpack(sent.pack(message)) == message
    first = received.unpack(sent.pack((A, C)))
    assert all(one is other for one, other in zip(first, (A, C), strict=True))
