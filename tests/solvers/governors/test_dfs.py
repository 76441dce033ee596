"""dfs by hand: a step down above the cap, up below it, further the further away."""

import pytest

from solvers.governors.registry import govern
from solvers.governors.types import GovernorKnobs, GpuPeriod
from tests.solvers.governors.plants import a_period, limits


def turned_mhz(
    clock_mhz: float, power_w: float, memory: dict[str, float] | None = None
) -> tuple[float, GovernorKnobs]:
    """How far one step turns the clock under a cap of 100 W."""
    knobs = GovernorKnobs(clock_mhz=clock_mhz, batches={"r1": 4}, memory=memory or {})
    after = govern(
        "dfs",
        knobs,
        GpuPeriod(peak_power_w=power_w, replicas=(a_period(),)),
        limits(100.0),
    )
    return after.clock_mhz - clock_mhz, after


def turns(powers_w: list[float], knobs: GovernorKnobs) -> list[float]:
    """How far each step turns the clock when these powers are measured one after the other."""
    turned = []
    for power_w in powers_w:
        step_mhz, knobs = turned_mhz(knobs.clock_mhz, power_w, dict(knobs.memory))
        turned.append(step_mhz)
    return turned


@pytest.mark.parametrize(
    ("power_w", "steps"),
    [
        (140.0, -10),
        (118.0, -5),
        (108.0, -2),
        (104.0, -1),
        (100.0, 0),
        (98.0, 0),
        (97.0, 1),
        (92.0, 2),
        (85.0, 5),
        (70.0, 10),
    ],
)
def test_the_step_grows_with_the_distance_from_the_cap(
    power_w: float, steps: int
) -> None:
    assert turned_mhz(1050.0, power_w)[0] == 15.0 * steps


def test_the_ends_of_the_grid_end_the_way() -> None:
    assert turned_mhz(600.0, 140.0)[0] == 0.0
    assert turned_mhz(1530.0, 50.0)[0] == 0.0


def test_a_clock_that_broke_the_cap_is_tried_again_when_power_has_fallen() -> None:
    _, before = turned_mhz(1035.0, 97.0)
    assert before.clock_mhz == 1050.0
    _, over = turned_mhz(1050.0, 101.0, dict(before.memory))
    assert over.clock_mhz == 1035.0
    # The step from 1035 to 1050 MHz made 101 W of 97 W. Now 96 W would become 96 · 101 / 97 = 99.96 W, above 98 W, and
    # 94 W would become 97.9 W: ten such seconds in a row are believed, and one of 96 W among them is not.
    assert turns([96.0] * 30, over) == [0.0] * 30
    assert turns([94.0] * 10, over) == [0.0] * 9 + [15.0]
    assert turns([94.0] * 9 + [96.0] + [94.0] * 10, over) == [0.0] * 19 + [15.0]
