"""The hard guard of power caps: down within a period, back up without swinging, and loud where it can do nothing."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.base.clock import ManualClock
from agents.base.device import (
    DeviceError,
    GpuLost,
    GpuPoll,
    GpuState,
    NodeState,
    NotSupported,
)
from agents.base.protocol import GovernorCommand, NodeCommand
from agents.enforce.actions import Action
from agents.enforce.diff import actions
from agents.enforce.power_guard import (
    CALM_PERIODS,
    TOLERANCE,
    PowerGuard,
    faster,
    slower,
)
from tests.agents.control_planes import PaperControlPlane, an_agent
from tests.agents.factories import (
    a_replica,
    an_empty_node,
    on_gpu,
)
from tests.agents.factories import run as finish
from tests.agents.paper_device import PaperDevice
from tests.examples import examples

CLOCKS_MHZ = tuple(510.0 + 15.0 * step for step in range(67))
"""510 to 1500."""
COMMAND = on_gpu(a_replica("r1"), clock_mhz=1500.0, cap_w=300.0)


@dataclass
class Plant(PaperDevice):
    """A GPU whose power rises with its clock: `idle_w` + `full_w` · (clock / 1500) ** `exponent`."""

    idle_w: float = 50.0
    full_w: float = 200.0
    exponent: float = 2.0
    load: float = 1.0
    seen_mhz: list[float] = field(default_factory=list)
    blind: DeviceError | None = None

    def __post_init__(self) -> None:
        super().__init__(an_empty_node())
        self.knows(clocks_mhz=CLOCKS_MHZ, clock_mhz=1500.0, power_limit_w=300.0)

    def knows(self, **fields: object) -> None:
        gpu, *others = self._state.gpus
        self._state = replace(self._state, gpus=(replace(gpu, **fields), *others))  # type: ignore[arg-type]

    @property
    def gpu(self) -> GpuState:
        return self._state.gpus[0]

    def power_w(self, clock_mhz: float) -> float:
        return float(
            self.idle_w
            + self.load * self.full_w * (clock_mhz / 1500.0) ** self.exponent
        )

    async def poll(self, gpu_index: int) -> GpuPoll:
        assert gpu_index == 0
        if self.blind is not None:
            raise self.blind
        clock_mhz = self.gpu.clock_mhz or 1500.0
        self.seen_mhz.append(clock_mhz)
        return GpuPoll(peak_power_w=self.power_w(clock_mhz))


def steps(
    guard: PowerGuard, count: int, command: NodeCommand = COMMAND
) -> tuple[str, ...]:
    problems: tuple[str, ...] = ()
    for _ in range(count):
        problems = finish(guard.step(command))
    return problems


def over_the_cap() -> tuple[Plant, PowerGuard]:
    """A guard that has lowered the clock to 1245 MHz: 360 W at 1500 MHz are above the cap of 300."""
    plant = Plant(full_w=310.0)
    guard = PowerGuard(plant)
    steps(guard, 2)
    return plant, guard


def knob_actions(command: NodeCommand, state: NodeState) -> list[Action]:
    return [
        each
        for each in actions(command, state)
        if type(each).__name__ in ("LockClock", "LimitPower")
    ]


def test_over_the_cap_the_clock_is_lower_within_one_period() -> None:
    plant = Plant(full_w=310.0)  # 360 W at 1500 MHz
    guard = PowerGuard(plant)
    assert steps(guard, 1) == ()  # the first period began before anybody watched
    (words,) = steps(guard, 1)
    # 1500 · 300 / 360 = 1250 MHz; the next clock at or below it is 1245.
    assert plant.gpu.clock_mhz == 1245.0
    assert (
        words
        == "GPU 0 drew 360 W, over its power cap of 300: held at 1245 MHz instead of 1500"
    )


def test_enforcement_does_not_turn_the_clock_back() -> None:
    plant, guard = over_the_cap()
    state = finish(plant.state())
    assert knob_actions(guard.in_force(COMMAND), state) == []
    assert knob_actions(COMMAND, state) != []  # it would, were it not told


def test_when_the_load_falls_the_clock_comes_back_slowly_and_the_problem_ends() -> None:
    plant, guard = over_the_cap()
    plant.load = 0.2
    steps(guard, 1 + CALM_PERIODS - 1)
    assert plant.gpu.clock_mhz == 1245.0
    steps(guard, 1)
    assert plant.gpu.clock_mhz == 1260.0
    # 16 more steps to 1500, each after one period that does not count and five that do.
    assert steps(guard, 16 * (1 + CALM_PERIODS)) == ()
    assert plant.gpu.clock_mhz == 1500.0 and guard.in_force(COMMAND) is COMMAND


def test_under_the_cap_nothing_is_turned_and_an_empty_gpu_is_left_alone() -> None:
    plant = Plant(full_w=250.0 * TOLERANCE)  # 305 W: within the tolerance of 306
    assert steps(PowerGuard(plant), 20) == () and plant.log == []
    plant = Plant(full_w=400.0)
    assert steps(PowerGuard(plant), 5, on_gpu()) == ()
    assert plant.seen_mhz == []


def test_at_the_lowest_clock_it_says_that_only_fewer_replicas_help() -> None:
    plant = Plant(idle_w=400.0)
    guard = PowerGuard(plant)
    (words,) = steps(guard, 60)
    assert plant.gpu.clock_mhz == 510.0 and "lowest clock of 510 MHz" in words


def test_without_a_clock_lock_the_boards_limit_is_set_to_the_cap() -> None:
    plant = Plant(full_w=310.0)
    plant.knows(has_clock_lock=False, power_limit_w=None)
    guard = PowerGuard(plant)
    (words,) = steps(guard, 2)
    assert plant.gpu.power_limit_w == 300.0
    assert "board's limit was set to the cap" in words
    (words,) = steps(guard, 1)
    assert "the board does not enforce it" in words
    # Without either knob it is loud.
    plant = Plant(full_w=310.0)
    plant.knows(has_clock_lock=False, has_power_limit=False)
    (words,) = steps(PowerGuard(plant), 5)
    assert "NOTHING enforces the cap" in words and plant.log == []


def test_a_gpu_whose_governor_acts_is_let_go() -> None:
    _, guard = over_the_cap()
    assert finish(guard.step(COMMAND, {0})) == () and guard.in_force(COMMAND) is COMMAND


def test_a_new_clock_or_cap_begins_anew_and_other_replicas_do_not() -> None:
    _, guard = over_the_cap()
    others = on_gpu(a_replica("r2"), clock_mhz=1500.0, cap_w=300.0, generation=2)
    steps(guard, 1, others)
    assert guard.in_force(others).gpus[0].clock_mhz == 1245.0
    slow = on_gpu(a_replica("r2"), clock_mhz=1005.0, cap_w=300.0, generation=3)
    steps(guard, 1, slow)
    assert guard.in_force(slow) is slow


def test_a_gpu_that_cannot_be_measured_is_said_and_the_next_look_may_find_it() -> None:
    plant = Plant(full_w=310.0, blind=GpuLost("GPU 0 fell off the bus"))
    guard = PowerGuard(plant)
    (words,) = steps(guard, 1)
    assert "cannot be guarded" in words and "fell off the bus" in words
    plant.blind = None
    steps(guard, 2)
    assert plant.gpu.clock_mhz == 1245.0


@settings(max_examples=examples(60))
@given(
    idle_w=st.floats(0.0, 400.0),
    full_w=st.floats(1.0, 800.0),
    exponent=st.floats(0.2, 3.0),
    commanded_mhz=st.floats(510.0, 1500.0),
)
def test_on_a_steady_plant_it_comes_to_rest_and_never_goes_below_the_lowest_clock(
    idle_w: float, full_w: float, exponent: float, commanded_mhz: float
) -> None:
    plant = Plant(idle_w=idle_w, full_w=full_w, exponent=exponent)
    plant.knows(clock_mhz=commanded_mhz)
    command = on_gpu(a_replica("r1"), clock_mhz=commanded_mhz, cap_w=300.0)
    guard = PowerGuard(plant)
    # Down at most 66 steps of two periods, then up at most 66 of six: 528 periods, and then nothing more.
    steps(guard, 540, command)
    turns = len(plant.log)
    steps(guard, 60, command)
    assert len(plant.log) == turns
    assert min(plant.seen_mhz) >= min(510.0, commanded_mhz)
    lowest_w = plant.power_w(510.0)
    assert (
        plant.power_w(plant.gpu.clock_mhz or 0.0) <= 300.0 * TOLERANCE
        or lowest_w > 300.0 * TOLERANCE
    )
    # Once it has gone up it never comes down again: what would fit does fit.
    seen = plant.seen_mhz
    first_up = next(
        (at for at in range(1, len(seen)) if seen[at] > seen[at - 1]), len(seen)
    )
    assert all(seen[at] >= seen[at - 1] for at in range(max(first_up, 1), len(seen)))


@given(clock_mhz=st.sampled_from(CLOCKS_MHZ), share=st.floats(0.05, 0.99))
def test_slower_is_one_of_the_clocks_and_below_unless_it_is_the_lowest(
    clock_mhz: float, share: float
) -> None:
    found = slower(CLOCKS_MHZ, clock_mhz, share=share)
    assert found in CLOCKS_MHZ and (found < clock_mhz or clock_mhz == CLOCKS_MHZ[0])
    assert found <= clock_mhz * share or found == CLOCKS_MHZ[0]


@pytest.mark.parametrize(
    ("clock_mhz", "max_mhz", "found_mhz"),
    [(510.0, 1500.0, 525.0), (1005.0, 1010.0, 1010.0), (1500.0, 1500.0, 1500.0)],
)
def test_faster_is_the_next_clock_and_never_above_the_commanded(
    clock_mhz: float, max_mhz: float, found_mhz: float
) -> None:
    assert faster(CLOCKS_MHZ, clock_mhz, max_mhz=max_mhz) == found_mhz


def test_an_agent_guards_tells_and_keeps_enforcing_the_rest() -> None:
    plant = Plant(full_w=310.0)
    clock = ManualClock(1000.0)
    plane = PaperControlPlane(clock, COMMAND)
    agent = an_agent(plant, plane, clock)

    def second() -> None:
        clock.advance(1.0)
        finish(agent.step())
        finish(agent.guard())

    second()
    plant.make_ready()
    second()
    second()
    assert plant.gpu.clock_mhz == 1245.0
    log = len(plant.log)
    second()
    second()
    assert plant.gpu.clock_mhz == 1245.0 and len(plant.log) == log
    assert any(
        "held at 1245 MHz instead of 1500" in each
        for each in plane.received[-1].problems
    )
    assert plane.received[-1].acks[-1].status == "applied"


def test_where_the_governor_stands_still_the_guard_acts() -> None:
    plant = Plant(full_w=310.0)
    governor = GovernorCommand(
        name="power_latency", clocks_mhz=CLOCKS_MHZ, power_limit_w=330.0
    )
    command = on_gpu(a_replica("r1"), clock_mhz=1500.0, cap_w=300.0, governor=governor)
    clock = ManualClock(1000.0)
    agent = an_agent(plant, PaperControlPlane(clock, command), clock)
    for _ in range(3):
        clock.advance(1.0)
        finish(agent.step())
        finish(agent.guard())  # nothing lets the governor take a step
    assert plant.gpu.clock_mhz == 1245.0


@pytest.mark.parametrize("has_limit", [True, False])
def test_a_cap_is_said_not_to_be_kept_where_neither_power_is_told_nor_a_limit_taken(
    has_limit: bool,
) -> None:
    plant = Plant(blind=NotSupported("could not read the power of GPU 0: it has none"))
    plant.knows(has_power_limit=has_limit)
    said = steps(PowerGuard(plant), 3)
    expected = (
        "GPU 0: the power cap of 300 W is not kept: could not read the power of GPU 0: it has none",
    )
    assert said == (() if has_limit else expected)
