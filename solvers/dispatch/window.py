"""The batch window: for how long a batch that is not full is held open for more jobs.

Source: OLTunes, Table 4 and Algorithm 3: 50 to 1000 ms; 10 ms less after a round in which more than 0.7 of the waiting
jobs are latency-critical, else 10 ms more. With nobody waiting the printed ratio is 0 / 0: the window stays.
"""

LEAST_MS = 50.0
MOST_MS = 1000.0
STEP_MS = 10.0
CRITICAL_SHARE = 0.7
"""Default of ρ_lc."""


def adjusted_ms(window_ms: float, critical_share: float | None) -> float:
    """The window of the next round, given the share of latency-critical jobs in this one."""
    if critical_share is None:
        return window_ms
    if critical_share > CRITICAL_SHARE:
        return shorter_ms(window_ms)
    return min(window_ms + STEP_MS, MOST_MS)


def shorter_ms(window_ms: float) -> float:
    """The window after a failed deployment, too: the failed jobs shall go soon."""
    return max(window_ms - STEP_MS, LEAST_MS)
