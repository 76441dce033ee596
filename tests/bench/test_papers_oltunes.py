"""OLTunes' tables: claims from runs made by hand, and one small run of every policy."""

from dataclasses import replace

import pytest

from agents.sim.truth.truth import Truth
from bench.papers import oltunes
from bench.papers.jobs.report import JobFigures, JobsReport
from bench.papers.oltunes_jobs import Case
from bench.papers.table import Row, Table

pytestmark = pytest.mark.thorough


def a_report(
    policy: str, *, p99_ms: float, rate: float, late: int, seed: int = 0
) -> JobsReport:
    """A hundred jobs in 10 s; 8 GPUs."""
    jobs = JobFigures(
        submitted=100,
        finished=100,
        rejected=0,
        late=late,
        inputs_per_s=rate,
        p50_ms=10.0,
        p99_ms=p99_ms,
        longest_s=1.0,
        accuracy_loss_percent=2.0,
        epc=6500.0,
        epc_above_base=400.0 * p99_ms / 100.0,
    )
    return JobsReport(
        policy=policy,
        seed=seed,
        counted_s=10.0,
        jobs=jobs,
        utilisation_percent=50.0,
        utilisation_spread_percent=5.0,
        energy_kwh=0.01,
        carbon_g=None,
        launches=0,
        trainings=0,
    )


RUNS = {
    "oltunes": [a_report("oltunes", p99_ms=100.0, rate=300.0, late=1)],
    "orion": [a_report("orion", p99_ms=400.0, rate=200.0, late=10)],
    "reserve_and_pack": [
        a_report("reserve_and_pack", p99_ms=200.0, rate=150.0, late=50)
    ],
    "least_cost": [a_report("least_cost", p99_ms=50.0, rate=600.0, late=0)],
}
WORSE = {**RUNS, "oltunes": [a_report("oltunes", p99_ms=390.0, rate=201.0, late=9)]}


def by_hand(_: Truth, case: Case) -> JobsReport:
    """Under a trace OLTunes does worse."""
    runs = WORSE if case.pattern == "trace" else RUNS
    return replace(runs[case.policy][0], seed=case.seed)


@pytest.fixture
def made() -> tuple[Table, ...]:
    return oltunes.tables(quick=True, run=by_hand)


@pytest.fixture
def claims(made: tuple[Table, ...]) -> Table:
    return made[0]


def row(table: Table, figure: str) -> Row:
    return next(each for each in table.rows if each.figure.startswith(figure))


def test_up_to_means_the_best_baseline_and_pattern_and_least_cost_is_none(
    claims: Table,
) -> None:
    # 100 against 400 ms, 300 against 150 inputs a second, 1 against 50 late of a hundred.
    assert row(claims, "p99").values == pytest.approx((-75.0,))
    assert row(claims, "throughput").values == pytest.approx((100.0,))
    assert row(claims, "violations").values == pytest.approx((-98.0,))
    assert [
        row(claims, figure).holds for figure in ("p99", "throughput", "violations")
    ] == [True, True, True]


def test_energy_is_told_by_both_readings_of_the_estimate_and_as_simulated(
    claims: Table,
) -> None:
    assert row(claims, "EPC of a job").values == (0.0,)
    # One reading says nothing, the other how long jobs wait: neither is called reached or missed.
    assert row(claims, "EPC of a job").holds is None
    assert row(claims, "EPC of a GPU").holds is None
    # 40 spans of 2 s on 8 GPUs: 60 + 400 / 40 = 70 W against 60 + 800 / 40 = 80 W.
    assert row(claims, "EPC of a GPU").values == pytest.approx((-12.5,))
    # The same energy over 300 and over 150 inputs a second.
    assert row(claims, "energy of an input").values == pytest.approx((-50.0,))


def test_accuracy_is_the_worst_patterns_and_nothing_is_reproduced(
    claims: Table,
) -> None:
    assert row(claims, "accuracy loss").values == (2.0,)
    assert {each.truth for each in claims.rows} == {"synthetic"}
    assert any("Affinity" in note for note in claims.notes)
