"""What goes into a budget, by hand; and a line on every policy."""

from dataclasses import replace

from app.simulate.report.html_budgets import budgets_section, described, summary_of
from app.simulate.run.results import RunResult
from app.simulate.scenario.parts import PolicyRun
from tests.app.runs import a_run, a_service_result


def using(run: RunResult, **gpus: list[float]) -> RunResult:
    return replace(run, series=replace(run.series, gpus=gpus))


def test_costs_go_on_for_a_month_and_are_held_against_what_was_in_slo() -> None:
    # 0.01 USD in a minute are 0.60 an hour, 438 in 730 hours; for 80 requests in SLO, 125 for a million.
    run = a_run(cost_usd=0.01, services=(a_service_result(served=100, in_slo=80),))
    (shown, _) = budgets_section({"one": [run]})
    assert "<td>one</td><td>438</td><td>125</td><td>1</td>" in shown


def test_gpus_are_counted_in_the_step_that_used_most() -> None:
    # Together 3.5 in the second step; of each type most in another one.
    first = using(a_run(seed=1), T4=[2.0, 1.5, 0.0], A100=[0.0, 2.0, 3.0])
    second = using(a_run(seed=2), T4=[1.0, 1.0, 1.0])
    (shown, _) = budgets_section({"one": [first, second]})
    assert "<th>of these A100</th><th>of these T4</th>" in shown
    assert "<td>3.5</td><td>3</td><td>2</td></tr>" in shown


def test_a_policy_is_told_with_its_differences() -> None:
    run = PolicyRun(
        policy="joint",
        name="best",
        settings={"target_attainment": 0.999},
        clairvoyant=True,
        foresight_s=3600,
        launch_s=0,
    )
    assert described(run) == (
        f"best (joint): {summary_of('joint')} Here: target_attainment 0.999, told the true rates of the next 3600 s "
        "and times, replicas ready after 0 s."
    )
