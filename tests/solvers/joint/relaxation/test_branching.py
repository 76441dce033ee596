import numpy as np

from solvers.joint.patterns.branching_rows import BranchingRow
from solvers.joint.patterns.columns import Pattern, make_column
from solvers.joint.patterns.tables import make_tables
from solvers.joint.relaxation.branching import Split, find_split
from tests.solvers.instances import a_problem, a_service, a_type

# One type at one clock; candidates 0 and 1 are the half and the whole GPU of `chat`, 2 and 3 those of `photo`.
TABLES = make_tables(
    a_problem(
        a_service("chat", rate_rps=90.0),
        a_service("photo", rate_rps=90.0),
        types=(a_type(),),
    )
)
NO_IDLE = np.zeros(1)


def _split(**counts_of: float) -> Split | None:
    patterns = {"half": (0,), "whole": (1,), "photo": (3,), "both": (0, 2)}
    columns = [make_column(TABLES, Pattern(0, patterns[name])) for name in counts_of]
    return find_split(TABLES, columns, np.array(list(counts_of.values())), NO_IDLE)


def test_gpus_of_a_type_come_first() -> None:
    assert _split(whole=0.7, photo=0.7) == Split(BranchingRow((0,)), 1.4)


def test_idle_gpus_count_among_those_of_their_mode() -> None:
    columns = [make_column(TABLES, Pattern(0, (1,)))]
    assert find_split(TABLES, columns, np.array([0.75]), np.array([0.5])) == Split(
        BranchingRow((0,)), 1.25
    )


def test_then_replicas_of_the_most_fractional_service() -> None:
    found = _split(whole=0.6, photo=0.4)
    assert found is not None
    assert found.row.ranges == ((0, 2),)


def test_then_the_candidates_of_a_service() -> None:
    # One GPU, one replica of `chat`, but half of it on 50 % and half on the whole GPU.
    assert _split(half=0.5, whole=0.5) == Split(BranchingRow((0,), ((1, 2),)), 0.5)


def test_nothing_is_left_to_split_where_all_sums_are_whole() -> None:
    assert _split(both=1.0, photo=2.0) is None


def test_a_row_counts_patterns_of_its_modes_with_a_candidate_of_the_range() -> None:
    row = BranchingRow((0,), ((0, 2),))
    assert row.counts(Pattern(0, (1,)))
    assert row.counts(Pattern(0, (0, 2)))
    assert not row.counts(Pattern(0, (3,)))
    assert not row.counts(Pattern(1, (1,)))
    assert BranchingRow((0,)).counts(Pattern(0, (3,)))
