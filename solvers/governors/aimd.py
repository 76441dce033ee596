"""Additive increase, multiplicative decrease of a batch size.

    b ← b + 1 while the limit is kept,   b ← ⌊0.9 · b⌋ when it is broken

Source: Crankshaw et al., "Clipper: A Low-Latency Online Prediction Serving System", NSDI 2017, §4.3.1, as Morak's
evaluation uses it. Clipper names a back-off of 10 % and no increment; one request is the smallest there is. It finds
the limit without knowing any curve and, because it goes on probing, breaks it once per tooth of its saw.
"""

import math

INCREMENT = 1
BACK_OFF = 0.9


def next_batch(batch: int, *, is_over: bool) -> int:
    """The next batch size, at least 1: a back-off always takes one request at least."""
    # Not held below the largest batch: `govern` holds every answer within the limits.
    return max(1, math.floor(BACK_OFF * batch)) if is_over else batch + INCREMENT
