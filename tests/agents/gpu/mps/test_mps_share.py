"""How a replica's share is written down, and which SM counts prove it."""

import math
from fractions import Fraction

import pytest

from agents.base.device import OutOfRange
from agents.gpu.mps.sm_percent import (
    expected_sms,
    memory_limit,
    objection,
    step_sms,
    thread_percentage,
)


@pytest.mark.parametrize(
    ("sm_percent", "written"),
    [
        (100.0, "100"),
        (40.0, "40"),
        (12.5, "12.5"),
        (100.0 / 3.0, "33.3334"),
        (30.000000000000004, "30"),
        (0.00001, "0.0001"),
    ],
)
def test_a_percentage_is_written_rounded_up_in_the_fourth_decimal(
    sm_percent: float, written: str
) -> None:
    assert thread_percentage(sm_percent) == written


@pytest.mark.parametrize("total_sms", [46, 72, 80, 108, 132, 142, 148])
def test_every_whole_number_of_sms_comes_back_when_the_hardware_rounds_down(
    total_sms: int,
) -> None:
    for sms in range(1, total_sms + 1):
        written = Fraction(thread_percentage(100.0 * sms / total_sms))
        assert math.floor(written * total_sms / 100) == sms
        assert expected_sms(total_sms, 100.0 * sms / total_sms, step_sms=1) == sms


@pytest.mark.parametrize(
    ("total_sms", "sm_percent", "step", "sms"),
    [
        (132, 40.0, 2, 52),  # 52.8 are 26.4 steps: 26 · 2
        (132, 100.0 / 3.0, 2, 44),
        (132, 1.0, 2, 2),  # 1.32 are no whole step; at least one
        (132, 99.9, 2, 130),  # 131.868
        (132, 100.0, 8, 132),  # 16.5 steps of 8, and yet all of them
        (132, 50.0, 8, 64),  # 66 are 8.25 steps
        (80, 50.0, 2, 40),
        (80, 33.0, 1, 26),  # 26.4
    ],
)
def test_expected_sms_are_whole_steps_rounded_down(
    total_sms: int, sm_percent: float, step: int, sms: int
) -> None:
    assert expected_sms(total_sms, sm_percent, step) == sms


@pytest.mark.parametrize(
    ("reported", "sm_percent", "is_proven"),
    [
        (52, 40.0, True),
        (54, 40.0, True),  # one step more: no table of the rounding exists
        (50, 40.0, True),
        (56, 40.0, False),
        (48, 40.0, False),  # a tighter limit than the one commanded
        (132, 40.0, False),  # outside MPS
        (132, 99.9, False),  # 130 ± 2 would reach 132, which shows no limit at all
        (130, 99.9, True),
        (132, 100.0, True),
        (130, 100.0, False),
        (2, 1.0, True),
        (0, 1.0, False),  # 2 ± 2, but nothing runs on no SM
    ],
)
def test_a_report_of_132_sms_in_steps_of_2_proves_its_share(
    reported: int, sm_percent: float, is_proven: bool
) -> None:
    assert (objection(reported, 132, sm_percent, 2) == "") == is_proven


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_values_that_nobody_can_want_are_refused(value: float) -> None:
    with pytest.raises(OutOfRange, match="finite and above 0 MiB"):
        memory_limit(value)
    with pytest.raises(OutOfRange, match="above 0 and at most 100"):
        thread_percentage(value)
    with pytest.raises(OutOfRange, match="above 0 and at most 100"):
        expected_sms(132, value)


@pytest.mark.parametrize("step", [0, 133])
def test_a_step_must_fit_the_gpu(step: int) -> None:
    with pytest.raises(OutOfRange, match=f"132 SMs cannot have steps of {step}"):
        expected_sms(132, 50.0, step)


def test_the_step_is_learned_from_reports_of_several_shares() -> None:
    assert step_sms([64, 40, 120]) == 8
    assert step_sms([52, 66, 132]) == 2
    assert step_sms([]) == 2
