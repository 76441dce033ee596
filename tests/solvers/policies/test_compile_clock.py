"""The clock of single plans: it stands still while numba compiles, and goes on otherwise."""

import time

from numba import njit

from solvers.policies.compile_clock import clock_without_compiling


def test_what_is_compiled_is_no_time_of_a_policy() -> None:
    @njit
    def inner(x: float) -> float:
        return x + 1.0

    @njit
    def outer(x: float) -> float:
        total = 0.0
        for _ in range(3):
            total += inner(x)
        return total

    began_s = time.monotonic()
    with clock_without_compiling() as now_s:
        before_s = now_s()
        assert outer(1.0) == 6.0
        counted_s = now_s() - before_s
        compiled_s = time.monotonic() - began_s - counted_s
        # The inner kernel, which is compiled within the outer one's compilation, is not counted twice.
        assert 0.0 <= counted_s < compiled_s
        again_s = now_s()
        time.sleep(0.01)
        assert now_s() - again_s >= 0.01
