"""Small programs with known answers."""

import highspy
import numpy as np
import pytest

from solvers.highs import (
    INFINITE,
    is_feasible,
    is_solved,
    make_program,
    solve_program,
    solve_whole,
)


def a_program(*, least: float = 5.0, most: float = INFINITE) -> highspy.Highs:
    """min x, 2 x >= least, x <= most."""
    program = make_program()
    program.addCol(1.0, 0.0, most, 0, np.zeros(0, np.int32), np.zeros(0))
    program.addRow(least, INFINITE, 1, np.zeros(1, np.int32), np.array([2.0]))
    return program


def test_the_optimum_is_found() -> None:
    program = a_program()
    solve_program(program, "program")
    assert is_solved(program)
    assert program.getSolution().col_value == pytest.approx([2.5])


def test_a_program_without_an_optimum_is_named() -> None:
    program = a_program(most=1.0)
    with pytest.raises(
        RuntimeError, match="the program without an optimum with kInfeasible"
    ):
        solve_program(program, "program without an optimum")
    assert not is_feasible(program)


def test_whole_numbers_are_found() -> None:
    program = a_program()
    assert solve_whole(program, np.zeros(1, np.int32), 10)
    assert program.getSolution().col_value == pytest.approx([3.0])
    assert not solve_whole(a_program(most=2.6), np.zeros(1, np.int32), 10)


def a_hard_program() -> highspy.Highs:
    """To serve a dozen wants at once by 300 kinds of things: more than a node of work."""
    random, kinds = np.random.default_rng(0), 300
    program = make_program()
    for price in random.uniform(1.0, 2.0, kinds):
        program.addCol(price, 0.0, 50.0, 0, np.zeros(0, np.int32), np.zeros(0))
    for least in random.uniform(50.0, 100.0, 12):
        program.addRow(
            least,
            INFINITE,
            kinds,
            np.arange(kinds, dtype=np.int32),
            random.uniform(0.0, 3.0, kinds),
        )
    return program


def test_a_search_for_whole_numbers_ends_when_it_is_over() -> None:
    asked: list[int] = []

    def is_over() -> bool:
        asked.append(1)
        return len(asked) > 5

    solve_whole(a_hard_program(), np.arange(300, dtype=np.int32), 10_000, is_over)
    assert 5 < len(asked) < 50
