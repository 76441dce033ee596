"""A replica's share of a GPU under MPS: how it is written into its environment, and the proof that it is in force.

    thread_percentage(sm_percent) -> "33.3334"          memory_limit(memory_mib) -> "0=12288M"
    expected_sms(total_sms, sm_percent, step_sms) -> SMs that the replica should see
    objection(reported_sms, ...) -> why its report proves no limit, "" = it does
    step_sms(reported) -> SMs per step of the hardware, from reports of several shares

A process under MPS sees its capped number of SMs as the device's multiprocessor count, and that does not change for
its life. One that missed the daemon runs with all SMs and says nothing, so every replica must prove its limit before
it takes requests. NVIDIA's guide says that percentages are rounded down to what the hardware supports, without a table.
"""

import math
from collections.abc import Iterable

from agents.base.device import OutOfRange

DEFAULT_STEP_SMS = 2
"""SMs come in pairs since Volta; taken where the steps of a GPU type were not measured."""


def thread_percentage(sm_percent: float) -> str:
    """CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; rounded up in the fourth decimal, 0 < sm_percent <= 100 else OutOfRange.

    44 of 132 SMs are 33.333… %: cut to 33.3333 that would be 43.99996 SMs, which the hardware rounds down to 42.
    """
    _check_percent(sm_percent)
    # 1e-7 takes away the noise of floats: 30.000000000000004 stays 30.
    return f"{min(100.0, math.ceil(sm_percent * 1e4 - 1e-7) / 1e4):.4f}".rstrip(
        "0"
    ).rstrip(".")


def memory_limit(memory_mib: float) -> str:
    """CUDA_MPS_PINNED_DEVICE_MEM_LIMIT of the only GPU that the process sees; OutOfRange unless positive."""
    if not 0.0 < memory_mib < math.inf:
        raise OutOfRange(
            f"a memory limit must be finite and above 0 MiB, not {memory_mib:g}"
        )
    return f"0={math.ceil(memory_mib)}M"


def expected_sms(
    total_sms: int, sm_percent: float, step_sms: int = DEFAULT_STEP_SMS
) -> int:
    """SMs that a replica of that share should see: rounded down to whole steps, at least one step."""
    _check_percent(sm_percent)
    if not 1 <= step_sms <= total_sms:
        raise OutOfRange(f"a GPU of {total_sms} SMs cannot have steps of {step_sms}")
    # 1e-6 of a step: percentages of whole SMs are rarely exact.
    steps = math.floor(total_sms * sm_percent / 100.0 / step_sms + 1e-6)
    return total_sms if sm_percent >= 100.0 else max(1, steps) * step_sms


def objection(
    reported_sms: int,
    total_sms: int,
    sm_percent: float,
    step_sms: int = DEFAULT_STEP_SMS,
) -> str:
    """Why the SM count that a replica reports does not show its share in force; empty = it does.

    One step more or less is let pass, as NVIDIA gives no table of its rounding; all SMs below 100 % never are.
    """
    expected = expected_sms(total_sms, sm_percent, step_sms)
    if sm_percent < 100.0 and reported_sms >= total_sms:
        return (
            f"it sees all {total_sms} SMs at {sm_percent:g} %, so it runs outside MPS or its limit was ignored; "
            "is the daemon alive and the pipe directory the replica's?"
        )
    if sm_percent >= 100.0 and reported_sms != total_sms:
        return f"it sees {reported_sms} of {total_sms} SMs at 100 %: another limit is in force"
    if reported_sms < 1 or abs(reported_sms - expected) > step_sms:
        return f"it sees {reported_sms} of {total_sms} SMs, {sm_percent:g} % should give {expected} ± {step_sms}"
    return ""


def step_sms(reported: Iterable[int]) -> int:
    """SMs per step, the greatest common divisor of what processes of several shares saw; the default without any."""
    return math.gcd(*reported) or DEFAULT_STEP_SMS


def _check_percent(sm_percent: float) -> None:
    if not 0.0 < sm_percent <= 100.0:
        raise OutOfRange(
            f"an SM percent must be above 0 and at most 100, not {sm_percent:g}"
        )
