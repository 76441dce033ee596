"""Small programs with known answers."""

import highspy
import numpy as np
import pytest

from solvers.joint.highs import INFINITE, is_feasible, is_solved, make_program, solve_program, solve_whole


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
    with pytest.raises(RuntimeError, match="the program without an optimum with kInfeasible"):
        solve_program(program, "program without an optimum")
    assert not is_feasible(program)


def test_whole_numbers_are_found() -> None:
    program = a_program()
    assert solve_whole(program, np.zeros(1, np.int32), 10)
    assert program.getSolution().col_value == pytest.approx([3.0])
    assert not solve_whole(a_program(most=2.6), np.zeros(1, np.int32), 10)
