"""HiGHS as planners use it: silent, on one thread, and begun again where a basis turns out to be singular."""

from collections.abc import Callable
from typing import Final

import highspy
import numpy as np
from highspy.highs import HighsCallbackEvent

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.int32]]

INFINITE: Final[float] = highspy.kHighsInf
DUAL_SIMPLEX: Final = 1
"""New rows and limits leave a basis dual feasible,"""
PRIMAL_SIMPLEX: Final = 4
"""new columns leave it primal feasible."""


class SolverFailed(RuntimeError):
    """HiGHS found no optimum of a program that has one; the caller answers with what it has."""


def make_program(simplex: int | None = None) -> highspy.Highs:
    """An empty program to minimise; `simplex`: which one, by default HiGHS chooses."""
    program = highspy.Highs()
    program.setOptionValue("output_flag", False)
    # HiGHS has one pool of threads in a process, made by the first caller.
    program.setOptionValue("threads", 1)
    if simplex is not None:
        program.setOptionValue("simplex_strategy", simplex)
    return program


def solve_program(program: highspy.Highs, name: str) -> None:
    """Solve a linear program that has an optimum. Raises SolverFailed, with its name, when HiGHS finds none."""
    if not is_solved(program):
        # A basis that many changes of rows and columns left behind may be singular: begin without one.
        program.clearSolver()
        if not is_solved(program):
            raise SolverFailed(
                f"HiGHS ended the {name} with {program.getModelStatus().name}"
            )


def is_solved(program: highspy.Highs) -> bool:
    """Run HiGHS; whether it found the optimum. After an error the status is that of the run before."""
    status = program.run()
    return bool(
        status != highspy.HighsStatus.kError
        and program.getModelStatus() == highspy.HighsModelStatus.kOptimal
    )


def solve_whole(
    program: highspy.Highs,
    places: Numbers,
    nodes: int,
    is_over: Callable[[], bool] | None = None,
) -> bool:
    """Look for whole numbers at these columns in at most `nodes` nodes; whether any were found. They stay whole.

    A node may take a second: where `is_over` is given, it is asked all along.
    """
    program.changeColsIntegrality(
        len(places),
        places,
        [highspy.HighsVarType.kInteger] * len(places),
    )
    program.setOptionValue("mip_max_nodes", nodes)
    if is_over is None:
        return is_feasible(program)

    def stop_in_time(event: HighsCallbackEvent) -> None:
        if is_over():
            event.interrupt()

    # The time limit of HiGHS would not do: `is_over` may count rounds, or ask whether a plan is proven.
    program.cbMipInterrupt.subscribe(stop_in_time)
    try:
        return is_feasible(program)
    finally:
        program.cbMipInterrupt.unsubscribe(stop_in_time)


def is_feasible(program: highspy.Highs) -> bool:
    """Run HiGHS; whether it found any solution, the best one or not."""
    status = program.run()
    return bool(status != highspy.HighsStatus.kError and has_solution(program))


def has_solution(program: highspy.Highs) -> bool:
    """Whether the last run found a solution, whatever limit ended it."""
    found = program.getInfo().primal_solution_status
    return bool(found == highspy.SolutionStatus.kSolutionStatusFeasible)
