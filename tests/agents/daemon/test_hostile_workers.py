"""What a worker makes its node say or do: the agent lives, the node still syncs, and gets its commands."""

import asyncio
import logging
import math
from itertools import pairwise

import msgspec
import pytest

from agents.base.clock import ManualClock, ScaledClock
from agents.base.device import (
    DeviceError,
    DeviceReadings,
    GpuPoll,
    NodeState,
    within,
)
from agents.base.protocol import (
    Amount,
    Count,
    Iterations,
    Observation,
    TaskReading,
)
from agents.daemon.notes import sendable
from agents.daemon.steps import LOG_PERIOD_S, Steps
from tests.agents.control_planes import PaperControlPlane, an_agent
from tests.agents.factories import (
    a_command,
    a_replica,
    an_empty_node,
    an_observation,
    on_gpu,
)
from tests.agents.factories import run as finish
from tests.agents.paper_device import PaperDevice, paper_reading
from tests.waiting import eventually, in_loop, run


class BrokenDevice(PaperDevice):
    """Everything that asks it raises what was not foreseen."""

    is_broken = True

    async def state(self) -> NodeState:
        self._break()
        return await super().state()

    async def read(self) -> DeviceReadings:
        self._break()
        return await super().read()

    async def poll(self, gpu_index: int) -> GpuPoll:
        self._break()
        return await super().poll(gpu_index)

    def _break(self) -> None:
        if self.is_broken:
            raise RecursionError("maximum recursion depth exceeded")


def a_task_reading(name: str, *, done_iterations: float = 1.0) -> TaskReading:
    return TaskReading(
        name=name,
        gpu_index=0,
        state="running",
        sm_percent=5.0,
        batch=4,
        done_iterations=done_iterations,
    )


def last_told(plane: PaperControlPlane) -> str:
    """The problems of the newest observation."""
    return "; ".join(plane.received[-1].problems)


def decoded(observation: Observation) -> Observation:
    """As the control plane reads it."""
    return msgspec.json.decode(msgspec.json.encode(observation), type=Observation)


def test_no_exception_ends_the_agent(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> PaperControlPlane:
        clock = ScaledClock(speed=100.0)
        plane = PaperControlPlane(clock, on_gpu(a_replica("r1")))
        device = BrokenDevice(an_empty_node())
        device.is_broken = False
        agent, stop = an_agent(device, plane, clock), asyncio.Event()
        loops = asyncio.create_task(agent.run(stop))
        await eventually(lambda: "start r1" in device.log)
        device.is_broken = True
        before = len(plane.received)
        await eventually(lambda: loops.done() or len(plane.received) > before + 20)
        assert not loops.done()
        plane.command = a_command(generation=2)
        await eventually(lambda: loops.done() or "syncing failed" in last_told(plane))
        device.is_broken = False
        await eventually(lambda: loops.done() or "stop r1" in device.log)
        stop.set()
        await loops
        return plane

    with caplog.at_level(logging.ERROR):
        plane = run(scenario())
    told = [problem for each in plane.received for problem in each.problems]
    foreseen = "failed unexpectedly: RecursionError: maximum"
    assert any(f"observing {foreseen}" in each for each in told)
    assert any(f"enforcing {foreseen}" in each for each in told)
    assert any(f"syncing {foreseen}" in each for each in told)
    # Twenty observations of broken reads, and a line a minute of the agent's clock.
    lines = [each for each in caplog.messages if each.startswith("observing failed")]
    assert 1 <= len(lines) < 5
    windows = [(each.window_start_s, each.window_s) for each in plane.received]
    for (start_s, length_s), (next_s, _) in pairwise(windows):
        assert next_s == pytest.approx(start_s + length_s), "a window was lost"


@in_loop
async def test_a_device_that_raises_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, stop = ScaledClock(speed=100.0), asyncio.Event()
    # Its goodbye is answered by a command, for which the device is asked once more.
    plane = PaperControlPlane(clock, a_command())
    stop.set()
    await an_agent(BrokenDevice(an_empty_node()), plane, clock).run(stop)
    assert "observing failed" in last_told(plane)
    assert "could not sign off: syncing failed unexpectedly" in caplog.text


def test_a_failing_step_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, errors = ManualClock(0.0), [KeyError("le"), DeviceError("gone")]
    steps = Steps(clock)

    async def step() -> None:
        if errors:
            raise errors[0]

    for _ in range(int(2 * LOG_PERIOD_S)):
        assert not finish(steps.take("governing", step))
        clock.advance(1.0)
    assert len(caplog.messages) == 2
    assert "unexpectedly: KeyError: 'le'" in steps.problems[0]
    errors.pop(0)
    finish(steps.take("governing", step))
    finish(steps.take("enforcing", step))
    assert steps.problems == ("gone",), "one reason, told once"
    errors.pop(0)
    assert finish(steps.take("governing", step))
    assert finish(steps.take("enforcing", step))
    assert steps.problems == ()


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (7.5, Amount, 7.5),
        (10**9, Count, 10**9),
        (10**9 + 1, Count, 0),
        (-1, Count, 0),
        (10**400, Count, 0),
        (10**400, Amount, 0),
        (2.0**53, Iterations, 2.0**53),
        (1e300, Iterations, 0.0),
        (math.nan, Amount, 0.0),
        (math.inf, Amount, 0.0),
    ],
)
def test_a_number_beyond_the_bounds_of_the_wire_is_not_told(
    value: float, kind: object, expected: float
) -> None:
    assert within(value, kind) == expected


def test_only_a_reading_that_would_be_refused_is_left_out_and_named() -> None:
    good, bad = a_task_reading("t1"), a_task_reading("t2", done_iterations=1e300)
    gpus = (paper_reading(an_empty_node().gpus[0], 1.0),)
    seen = an_observation(problems=("old",), gpus=gpus, tasks=(good, bad))
    sent = decoded(sendable(seen))
    assert (sent.gpus, sent.tasks) == (gpus, (good,))
    assert "one of tasks was left out" in sent.problems[0]
    assert "done_iterations" in sent.problems[0]
    assert sent.problems[1:] == ("old",)
    well = an_observation(tasks=(good,))
    assert sendable(well) is well


def test_an_observation_that_is_refused_as_a_whole_is_sent_without_readings() -> None:
    many = tuple(a_task_reading(f"t{number}") for number in range(1025))
    sent = decoded(sendable(an_observation(tasks=many)))
    assert sent.tasks == ()
    assert "all readings were left out" in sent.problems[0]


def test_a_problem_that_cannot_be_encoded_is_told_as_far_as_it_can() -> None:
    clock = ManualClock(1000.0)
    plane, device = PaperControlPlane(clock), PaperDevice(an_empty_node())
    device.readings = DeviceReadings(problems=("half \ud800 of it\nERROR forged",))
    agent = an_agent(device, plane, clock)
    clock.advance(2.0)
    finish(agent.step())
    assert decoded(plane.received[-1]).problems == ("half   of it ERROR forged",)
