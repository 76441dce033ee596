"""A spare that does not start: it is tried again, later and later, and holds nothing else up."""

import pytest

from tests.agents.daemon.test_loop import Bench
from tests.agents.factories import a_replica, on_gpu

SPARE = a_replica("s", service="photo", sm_percent=30.0, rate_rps=0.0, is_spare=True)


def a_bench() -> Bench:
    """The replica is up, and the spare does not start."""
    bench = Bench()
    bench.device.fails_to_start = {"s"}
    bench.plane.command = on_gpu(a_replica("r1"), SPARE)
    bench.step(1.0)
    bench.device.make_ready()
    return bench


def test_it_is_tried_again_later_and_later_and_the_command_is_carried_out() -> None:
    bench = a_bench()
    for _ in range(39):
        bench.step(1.0)
    assert bench.device.log.count("start s") == 4  # after 0, 5, 15 and 35 s
    (ack,) = bench.last.acks
    assert (ack.status, ack.detail) == ("applied", "")
    failures = [each for seen in bench.plane.received for each in seen.failures]
    assert [each.replica for each in failures] == ["s"] * 4
    bench.device.fails_to_start = set()
    bench.step(40.0)
    bench.device.make_ready()
    bench.step()
    bench.step()
    assert bench.last.acks[-1].status == "applied"
    assert bench.device.log.count("start s") == 5


def test_one_that_ends_by_itself_waits_in_the_same_way() -> None:
    bench = a_bench()
    bench.device.fails_to_start = set()
    bench.step(10.0)
    bench.device.put("s", state="failed")
    for _ in range(3):
        bench.step(1.0)
    assert bench.last.acks[-1].status == "applied"
    starts = bench.device.log.count("start s")
    bench.step(10.0)
    assert bench.device.log.count("start s") == starts + 1


@pytest.mark.parametrize("is_spare", [True, False])
def test_a_replica_that_fails_as_well_is_named_alone(is_spare: bool) -> None:
    bench = a_bench()
    other = a_replica("r2", sm_percent=10.0, is_spare=is_spare)
    bench.device.fails_to_start = {"s", "r2"}
    bench.plane.command = on_gpu(a_replica("r1"), other, SPARE, generation=2)
    for _ in range(3):
        bench.step(1.0)
    ack = bench.last.acks[-1]
    expected = (
        ("applied", "") if is_spare else ("failed", "replica r2: r2 does not start")
    )
    assert (ack.status, ack.detail) == expected
