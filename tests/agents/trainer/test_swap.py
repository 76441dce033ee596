"""Swap hooks of a training loop, over real HTTP."""

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from agents.trainer.swap import SwapHooks, SwapStatus
from tests.waiting import PATIENCE_S, until


@dataclass(slots=True)
class Trainer:
    """A loop that steps only while it is let, and notes what happens."""

    events: list[str] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    failure: Exception | None = None

    def note(self, event: str) -> Callable[[], None]:
        def happened() -> None:
            self.threads.add(threading.get_ident())
            self.events.append(event)
            if self.failure is not None:
                raise self.failure

        return happened

    def hooks(self, *, timeout_s: float = PATIENCE_S) -> SwapHooks:
        return SwapHooks(
            offload=self.note("offload"),
            resume=self.note("resume"),
            timeout_s=timeout_s,
        )


def call(url: str, method: str = "GET") -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, method=method), timeout=PATIENCE_S
        ) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def put_later(url: str) -> "tuple[threading.Thread, list[tuple[int, bytes]]]":
    """A PUT that may have to wait; its answer comes into the list."""
    answers: list[tuple[int, bytes]] = []
    thread = threading.Thread(target=lambda: answers.append(call(url, "PUT")))
    thread.start()
    return thread, answers


def wait_for(hooks: SwapHooks, state: str) -> None:
    until(lambda: hooks.status().state == state)


def test_memory_moves_at_a_steps_boundary_in_the_loops_thread() -> None:
    trainer = Trainer()
    with trainer.hooks() as hooks:
        hooks.step_boundary()
        offload, offloaded = put_later(f"{hooks.url}/offload")
        wait_for(hooks, "asked")
        assert trainer.events == []  # Never in the middle of a step.

        def bring_back() -> None:
            offload.join()
            trainer.events.append("away")
            call(f"{hooks.url}/resume", "PUT")

        resumer = threading.Thread(target=bring_back)
        resumer.start()
        hooks.step_boundary()  # Returns when the memory is back.
        trainer.events.append("next step")
        resumer.join()
        status, body = call(f"{hooks.url}/status")
    assert trainer.events == ["offload", "away", "resume", "next step"]
    assert trainer.threads == {threading.get_ident()}
    assert [code for code, _ in offloaded] == [200]
    said = msgspec.json.decode(body, type=SwapStatus)
    assert status == 200
    assert said.state == "running"
    assert said.steps == 2
    assert said.done_iterations == 2
    assert said.kept_iterations == 0


def test_a_loop_that_comes_to_no_boundary_is_asked_no_longer() -> None:
    trainer = Trainer()
    with trainer.hooks(timeout_s=0.05) as hooks:
        code, body = call(f"{hooks.url}/offload", "PUT")
        assert (code, b"no boundary within 0.05 s" in body) == (503, True)
        # The second time it runs already, which is no mistake.
        for _ in range(2):
            assert call(f"{hooks.url}/resume", "PUT")[0] == 200
        hooks.step_boundary()
    assert trainer.events == []


def test_an_offload_that_has_begun_is_not_taken_back() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def offload() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    with SwapHooks(offload=offload, resume=lambda: None) as hooks:
        thread, answers = put_later(f"{hooks.url}/offload")
        wait_for(hooks, "asked")
        loop = threading.Thread(target=hooks.step_boundary)
        loop.start()
        assert begun.wait(PATIENCE_S)
        too_early = call(f"{hooks.url}/resume", "PUT")
        go_on.set()
        thread.join()
        resumed = call(f"{hooks.url}/resume", "PUT")
        loop.join()
    assert too_early[0] == 409
    assert b"offloading; it must be offloaded" in too_early[1]
    assert (answers[0][0], resumed[0]) == (200, 200)


def test_a_hook_that_fails_ends_the_step_and_is_answered() -> None:
    trainer = Trainer(failure=MemoryError("no host memory"))
    with trainer.hooks() as hooks:
        thread, answers = put_later(f"{hooks.url}/offload")
        wait_for(hooks, "asked")
        with pytest.raises(MemoryError):
            hooks.step_boundary()
        thread.join()
        again = call(f"{hooks.url}/resume", "PUT")
    assert (answers[0][0], again[0]) == (409, 409)
    assert b"failed" in again[1]


def test_who_waits_when_the_training_ends_is_answered() -> None:
    with Trainer().hooks() as hooks:
        thread, answers = put_later(f"{hooks.url}/offload")
        wait_for(hooks, "asked")
    thread.join()
    assert (answers[0][0], b"ended" in answers[0][1]) == (409, True)
