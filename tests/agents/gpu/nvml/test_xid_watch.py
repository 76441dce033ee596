"""Critical errors of GPUs: which condemn a GPU, and a watch that outlives the driver."""

import time
from collections.abc import Iterator

import pytest

from agents.gpu.nvml.session import Nvml
from agents.gpu.nvml.types import XidEvent
from agents.gpu.nvml.xid_watch import MAX_EVENTS, RECENT_S, XidWatch
from tests.agents.fakes.nvml import fake_gpus
from tests.agents.fakes.nvml.fake_gpus import FakeGpus
from tests.agents.fakes.nvml.fixtures import fake, library
from tests.waiting import until

__all__ = ("fake", "library")


@pytest.fixture
def nvml(fake: FakeGpus) -> Iterator[Nvml]:
    # A time that runs far faster than the wall's lets NVML be started again at once, as often as a test needs.
    with Nvml(now_s=lambda: time.monotonic() * 1e6) as opened:
        yield opened


@pytest.fixture
def watch(nvml: Nvml) -> Iterator[XidWatch]:
    with XidWatch(nvml, nvml.gpus(), wait_ms=20, pause_s=0.02) as watching:
        until(lambda: is_waiting(watching))
        yield watching


def is_waiting(watch: XidWatch) -> bool:
    return watch.is_waiting


def taken(watch: XidWatch, count: int) -> tuple[XidEvent, ...]:
    """The next `count` events."""
    found: list[XidEvent] = []

    def are_enough() -> bool:
        found.extend(watch.take())
        return len(found) >= count

    until(are_enough)
    return tuple(found)


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 68, 92, 94, 121, 154, 160])
def test_errors_that_a_restart_of_programs_ends_are_told_and_condemn_nothing(
    watch: XidWatch, fake: FakeGpus, xid: int
) -> None:
    fake.happens(xid, gpu=1)
    assert taken(watch, 1) == (XidEvent(gpu_uuid="GPU-1", xid=xid),)
    assert watch.condemned() == {}


@pytest.mark.parametrize(
    "xid", [1, 46, 48, 54, 62, 64, 74, 78, 79, 95, 109, 119, 120, 140, 143, 151, 158]
)
def test_any_other_condemns_its_gpu_and_no_other(
    watch: XidWatch, fake: FakeGpus, xid: int
) -> None:
    fake.happens(xid, gpu=1)
    taken(watch, 1)
    ((uuid, message),) = watch.condemned().items()
    assert uuid == "GPU-1"
    assert f"Xid {xid};" in message


def test_memory_that_cannot_be_corrected_condemns_without_a_number(
    watch: XidWatch, fake: FakeGpus
) -> None:
    fake.happens(13, kind=0x2)  # the number of such an event is no Xid
    assert taken(watch, 1) == (XidEvent(gpu_uuid="GPU-0", xid=0),)
    assert "memory" in watch.condemned()["GPU-0"]


def test_the_first_reason_stays_and_events_keep_their_order(
    watch: XidWatch, fake: FakeGpus
) -> None:
    for xid in (31, 79, 62, 31):
        fake.happens(xid)
    assert [event.xid for event in taken(watch, 4)] == [31, 79, 62, 31]
    assert "Xid 79" in watch.condemned()["GPU-0"]


def test_all_that_condemn_are_named_and_the_strongest_action_is_asked_for(
    watch: XidWatch, fake: FakeGpus
) -> None:
    for xid in (45, 48, 79, 48):
        fake.happens(xid)
    taken(watch, 4)
    message = watch.condemned()["GPU-0"]
    assert message.startswith(
        "the driver told Xid 48 and Xid 79; NVIDIA's catalogue asks to restart the machine ("
    )
    assert "`plimsoll acquit NODE`" in message


def test_an_acquitted_gpu_is_condemned_by_later_errors_alone(
    watch: XidWatch, fake: FakeGpus
) -> None:
    for xid, gpu in ((79, 0), (94, 0), (62, 1)):
        fake.happens(xid, gpu=gpu)
    taken(watch, 3)
    assert "GPU 0 told Xid 94" in watch.problem and "stays in use" in watch.problem
    watch.acquit("GPU-0")
    assert list(watch.condemned()) == ["GPU-1"] and watch.problem == ""
    fake.happens(95)
    taken(watch, 1)
    assert "Xid 79" not in watch.condemned()["GPU-0"]


@pytest.mark.parametrize(
    ("recovery", "condemns"), [(0, False), (1, False), (None, True)]
)
def test_an_error_that_has_to_be_decoded_is_the_drivers_recovery_action(
    watch: XidWatch, fake: FakeGpus, recovery: int | None, condemns: bool
) -> None:
    if recovery is None:
        fake.fail("nvmlDeviceGetFieldValues", 13)
    else:
        fake.gpu(0).recovery = recovery  # a reading of the GPU shows it
    fake.happens(149)
    taken(watch, 1)
    assert bool(watch.condemned()) is condemns


def test_errors_that_leave_a_gpu_in_use_are_told_for_a_while(
    nvml: Nvml, fake: FakeGpus
) -> None:
    now = [1000.0]
    with XidWatch(
        nvml, nvml.gpus(), wait_ms=20, pause_s=0.02, now_s=lambda: now[0]
    ) as watch:
        until(lambda: is_waiting(watch))
        fake.happens(31)
        taken(watch, 1)
        assert "restart the application" in watch.problem
        now[0] += RECENT_S + 1.0
        assert watch.problem == ""


def test_a_gpu_that_came_back_is_listened_to(nvml: Nvml, fake: FakeGpus) -> None:
    gpus = nvml.gpus()
    fake.gpu(0).lost = 15
    with XidWatch(nvml, gpus, wait_ms=20, pause_s=0.02) as watch:
        until(lambda: is_waiting(watch))
        fake.gpu(0).lost = 0
        rounds = watch.rounds
        watch.renew()
        until(lambda: watch.rounds > rounds and is_waiting(watch))
        fake.happens(79)
        taken(watch, 1)
        assert "GPU-0" in watch.condemned()


def test_an_event_that_does_not_say_its_gpu_condemns_all(
    watch: XidWatch, fake: FakeGpus
) -> None:
    fake.fail("nvmlDeviceGetUUID", 15)
    fake.happens(79)
    assert taken(watch, 1) == (XidEvent(gpu_uuid="", xid=79),)
    assert set(watch.condemned()) == {"GPU-0", "GPU-1"}


def test_a_lost_gpu_does_not_keep_the_others_from_being_watched(
    nvml: Nvml, fake: FakeGpus
) -> None:
    gpus = nvml.gpus()
    fake.gpu(0).lost = 15
    with XidWatch(nvml, gpus, wait_ms=20, pause_s=0.02) as watch:
        until(lambda: is_waiting(watch))
        fake.happens(79, gpu=1)
        taken(watch, 1)
        assert set(watch.condemned()) == {"GPU-1"}


def test_where_no_gpu_tells_its_errors_the_watch_says_so_and_ends(
    nvml: Nvml, fake: FakeGpus
) -> None:
    fake.gpu(0).without = fake.gpu(1).without = fake_gpus.NO_EVENTS
    with XidWatch(nvml, nvml.gpus(), wait_ms=20, pause_s=0.02) as watch:
        until(lambda: "does not have it" in watch.problem)
        until(lambda: not watch.is_running)


@pytest.mark.parametrize("code", [1, 15, 18])
def test_the_watch_goes_on_after_the_driver_was_loaded_again(
    watch: XidWatch, fake: FakeGpus, code: int
) -> None:
    fake.reload(code=code)
    until(lambda: bool(watch.problem) or watch.rounds > 1)
    until(lambda: watch.is_waiting and watch.rounds > 1)
    fake.happens(79)
    taken(watch, 1)
    assert set(watch.condemned()) == {"GPU-0"}


def test_nvml_can_be_started_again_while_somebody_waits_for_events(
    nvml: Nvml, watch: XidWatch, fake: FakeGpus
) -> None:
    fake.reload()
    assert nvml.sample(nvml.gpus()[0]).clock_mhz == 345.0
    until(lambda: watch.is_waiting and watch.rounds > 1)
    fake.happens(48, gpu=1)
    taken(watch, 1)
    assert set(watch.condemned()) == {"GPU-1"}


def test_events_that_nobody_takes_are_bounded_and_condemn_all_the_same(
    watch: XidWatch, fake: FakeGpus
) -> None:
    fake.happens(79)
    sent = 1
    # The driver's own ring holds 64: a few at a time.
    while sent < MAX_EVENTS + 20:
        before = watch.seen
        for _ in range(25):
            fake.happens(31)
        sent += 25
        until(lambda before=before: watch.seen >= before + 25)  # type: ignore[misc]
    events = watch.take()
    assert len(events) == MAX_EVENTS
    assert {event.xid for event in events} == {31}, "the first was forgotten"
    assert set(watch.condemned()) == {"GPU-0"}
