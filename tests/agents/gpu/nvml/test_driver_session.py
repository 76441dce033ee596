"""A driver's library that goes away: who asks again, how often, and who must be waited for."""

import threading

import pytest

from agents.base.device import GpuLost, NoDriver
from agents.gpu.nvml.driver_session import RESTART_PERIOD_S, DriverSession

MAX_S = 120.0


class Library:
    """What a session starts and stops; `loads` is the driver's, and a call works under the newest alone."""

    def __init__(self) -> None:
        self.loads, self.started, self.log = 1, 0, list[str]()
        self.now_s = 0.0
        self.is_away = False
        self.session = DriverSession(self.start, self.stop, now_s=lambda: self.now_s)

    def start(self) -> None:
        self.log.append("start")
        if self.is_away:
            raise NoDriver("away")
        self.started = self.loads

    def stop(self) -> None:
        self.log.append("stop")
        if not self.started:
            raise NoDriver("not started")
        self.started = 0

    def call(self) -> str:
        if self.started != self.loads:
            raise NoDriver("void")
        return "answer"


def test_after_the_driver_went_away_the_call_is_made_once_more() -> None:
    library = Library()
    library.loads = 2
    assert library.session.ask(library.call) == "answer"
    assert library.log == ["start", "stop", "start"]
    assert library.session.starts == 2


def test_a_lost_gpu_does_not_start_the_library_again_and_again() -> None:
    library = Library()

    def lost() -> None:
        raise GpuLost("gone")

    for _ in range(5):
        with pytest.raises(GpuLost):
            library.session.ask(lost)
    assert library.session.starts == 2
    library.now_s += RESTART_PERIOD_S
    with pytest.raises(GpuLost):
        library.session.ask(lost)
    assert library.session.starts == 3


def test_a_driver_that_stays_away_is_found_when_it_is_back() -> None:
    library = Library()
    library.loads, library.is_away = 2, True
    with pytest.raises(NoDriver, match="away"):
        library.session.ask(library.call)
    library.is_away = False
    with pytest.raises(NoDriver, match="void"):
        library.session.ask(library.call)
    library.now_s += RESTART_PERIOD_S
    assert library.session.ask(library.call) == "answer"


def test_who_asks_beside_a_new_start_profits_by_it() -> None:
    library, both_failed = Library(), threading.Barrier(2)
    library.loads = 2
    answers, waited = list[str](), threading.local()

    def call() -> str:
        try:
            return library.call()
        except NoDriver:
            if not getattr(waited, "once", False):
                waited.once = True
                both_failed.wait(MAX_S)
            raise

    threads = [
        threading.Thread(target=lambda: answers.append(library.session.ask(call)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(MAX_S)
    assert answers == ["answer", "answer"]
    assert library.session.starts == 2


def test_a_library_is_not_stopped_under_who_waits() -> None:
    library = Library()
    library.loads = 2
    with library.session.waiting(1):
        asking = threading.Thread(target=library.session.ask, args=(library.call,))
        asking.start()
        asking.join(0.1)
        assert library.log == ["start"], "it must wait for us"
    asking.join(MAX_S)
    assert library.log == ["start", "stop", "start"]


def test_what_was_made_under_an_earlier_start_is_void() -> None:
    library = Library()
    library.loads = 2
    library.session.ask(library.call)
    with pytest.raises(NoDriver, match="listen again"), library.session.waiting(1):
        raise AssertionError(
            "the library would be called with arguments of another start"
        )
    with library.session.waiting(2):
        pass


def test_nobody_waits_or_starts_it_after_the_end() -> None:
    library = Library()
    library.session.close()
    with pytest.raises(NoDriver):
        library.session.ask(library.call)
    assert library.log == ["start", "stop"]
    with pytest.raises(NoDriver), library.session.waiting(1):
        raise AssertionError("the library is stopped")
