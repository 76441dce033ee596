"""The page: it stands alone, is well formed, says what the figures say, and stays small."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from app.simulate.report.html import report_to_html
from app.simulate.report.html_services import MAX_CHARTED
from app.simulate.report.report import make_report
from app.simulate.report.timelines import MAX_POINTS
from app.simulate.run.results import FailedRun, RunResult, RunSeries, ServiceSeries
from tests.app.runs import (
    SERVICE,
    a_run,
    a_scenario,
    a_service_result,
    a_task_result,
)

VOID = ("meta", "br", "hr", "img", "link")
EVIL = '<script>alert("&")</script>'


class Checked(HTMLParser):
    """Complains of tags that are not closed in order, attributes given twice, and everything that loads something."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice: {names}"
        assert tag not in ("script", "link", "img", "iframe", "object"), (
            f"{tag} is not needed"
        )
        assert not {"src", "href", "onclick", "onload"} & set(names)
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def read(page: str) -> Checked:
    checked = Checked()
    checked.feed(page)
    checked.close()
    assert checked.open == []
    return checked


def words(page: str) -> str:
    return " ".join(read(page).words)


def a_page(*runs: RunResult, **spec: Any) -> str:
    return report_to_html(
        make_report(a_scenario(**spec), runs), version="9.9", file="mine.yaml"
    )


def kept(policy: str, *costs_usd: float, in_slo: int = 100) -> list[RunResult]:
    services = (a_service_result("a", served=100, in_slo=in_slo),)
    return [
        a_run(
            policy,
            seed=seed,
            cost_usd=cost,
            services=services,
            decision_seconds=(0.25, 1.5),
        )
        for seed, cost in enumerate(costs_usd, start=1)
    ]


def test_a_page_is_well_formed_and_loads_nothing() -> None:
    page = a_page(*kept("one", 1.0, 1.1), *kept("two", 2.0, 2.1))
    assert page.startswith("<!DOCTYPE html>\n")
    read(page)
    assert not re.search(r"https?://|@import|url\(", page)


def test_the_scenario_is_told_in_a_sentence() -> None:
    service = {
        **SERVICE,
        "load": {"rate_rps": 5, "day": {"amplitude": 1}, "bursts": {}},
    }
    shown = words(
        a_page(
            *kept("one", 1.0),
            services=[service],
            seeds=[1, 2],
            truth="planned",
            warm_up_s=60,
        )
    )
    assert (
        "2 × V100-32GB serve 1 service (1 under Poisson requests with a day's curve and bursts) for 2 min of simulated "
        "time, the first 1 min of which does not count; 1 policy, 2 seeds."
    ) in shown
    assert "Truth: planned." in shown and "CC BY 4.0" in shown
    assert (
        "plimsoll simulate mine.yaml --html report.html" in shown
        and "Made by Plimsoll 9.9." in shown
    )


def test_a_shown_saving_is_claimed_with_its_interval() -> None:
    shown = words(a_page(*kept("one", 0.8, 7.9, 2.4), *kept("two", 1.0, 10.0, 3.0)))
    assert "one is the cheapest that kept the SLO of every service: 100.00 %" in shown
    # Savings of 20, 21 and 20 %: deviation 0.577, times Student's 4.303, over the root of three.
    assert "Against two: costs 20.3 % less (± 1.4 points);" in shown


def test_what_chance_may_explain_is_not_claimed() -> None:
    mixed = [
        a_run(
            "one",
            seed=seed,
            cost_usd=cost,
            services=(a_service_result("a", served=100, in_slo=in_slo),),
        )
        for seed, cost, in_slo in ((1, 0.9, 100), (2, 1.0, 99), (3, 1.2, 100))
    ]
    shown = words(a_page(*mixed, *kept("two", 1.0, 1.1, 1.1)))
    assert "Against two: no difference in cost that these seeds can show (" in shown
    assert "no difference in requests in SLO that these seeds can show" in shown


def test_what_was_impossible_and_which_runs_failed_is_marked() -> None:
    scenario = a_scenario(policies=["hetsev", "joint"])
    runs = [
        a_run("hetsev", seed=1),
        FailedRun(policy="hetsev", seed=2, reason="lost"),
        a_run("joint", seed=1),
    ]
    page = report_to_html(
        make_report(scenario, runs, notes=["service a: 3 ms is impossible"])
    )
    assert "service a: 3 ms is impossible" in words(page)
    assert "<td>hetsev (1 of 2 seeds)</td>" in page and "<td>joint</td>" in page


def test_who_knows_the_future_is_a_bound_and_never_the_favourite() -> None:
    shown = words(
        a_page(
            *kept("bound", 1.0, 1.0),
            *kept("joint", 1.1, 1.1),
            policies=[
                {"policy": "joint", "name": "bound", "clairvoyant": True},
                "joint",
            ],
        )
    )
    assert "joint kept" in shown or "joint is the cheapest" in shown
    assert (
        "Against bound, which knows the future: costs 10.0 % more (± 0.0 points);"
        in shown
    )


def test_faults_are_marked_and_listed() -> None:
    fault = {
        "kind": "straggler",
        "node": "v100-2",
        "start_s": 10,
        "end_s": 40,
        "factor": 1.5,
    }
    page = a_page(
        *kept("one", 1.0),
        faults=[fault, {"kind": "gpu_lost", "node": "v100-1", "gpu": 0, "start_s": 30}],
    )
    assert "<li>v100-2: slow (× 1.5) from 10 s to 40 s</li>" in page
    assert "<li>v100-1, GPU 0: lost from 30 s to the end</li>" in page
    charts = page.count('<svg viewBox="0 0 380 200"')
    assert page.count('<rect class="fault"') == 2 * charts == 2 * (2 + 4)


def test_what_users_wrote_is_escaped() -> None:
    runs = [
        a_run(f"{EVIL}{policy}", services=(a_service_result(EVIL),)) for policy in "ab"
    ]
    page = a_page(*runs, policies=[{"policy": "joint", "name": EVIL}])
    assert EVIL in words(page)
    assert "<script" not in page


def a_long_run(policy: str, services: int, steps: int) -> RunResult:
    """Every service another; the later, the worse."""
    results = tuple(
        a_service_result(f"s{number:03}", served=1000, in_slo=1000 - number)
        for number in range(services)
    )
    wave = [float(step % 97) for step in range(steps)]
    series = ServiceSeries(
        arrival_rate_rps=wave,
        planned_rps=wave,
        attainment=[0.99] * steps,
        p99_ms=[*wave],
        replicas=[3] * steps,
    )
    run = a_run(policy, services=results)
    whole = RunSeries(
        step_s=1.0,
        cost_usd_per_hour=wave,
        power_w=wave,
        gpus={"T4": [2] * steps},
        services={each.service: series for each in results},
    )
    return RunResult(
        **{name: getattr(run, name) for name in run.__slots__} | {"series": whole}
    )


def test_a_hundred_services_and_thousands_of_steps_give_a_small_page() -> None:
    page = a_page(
        *(
            a_long_run(policy, services=100, steps=2_000)
            for policy in ("one", "two", "three", "four")
        )
    )
    assert len(page) < 1_500_000
    assert (
        max(path.count("L") for path in re.findall(r' d="([^"]*)"', page)) < MAX_POINTS
    )
    shown = re.findall(r"<h3>(s\d+)</h3>", page)
    assert shown == [f"s{number:03}" for number in range(99, 99 - MAX_CHARTED, -1)]
    rows = re.findall(r"<td>(s\d+)</td>", page)
    assert rows == [f"s{number:03}" for number in range(99 - MAX_CHARTED, -1, -1)]


def test_tasks_have_a_row_and_a_bar_under_each_policy() -> None:
    tasks = (
        a_task_result("quick", finished_s=70.0, deadline_s=60.0),
        a_task_result(EVIL),
    )
    work = {"network": "resnet18-training", "batch": 128}
    spec = {"tasks": [{"name": "quick", "kind": "training", "iterations": 200, **work}]}
    page = a_page(a_run("one", tasks=tasks), a_run("two", tasks=tasks), **spec)
    shown = words(page)
    assert "serve 1 service (1 under Poisson requests) and 1 task for 2 min" in shown
    assert (
        page.count("<h2>Tasks</h2>") == 1 and page.count('aria-label="Tasks under') == 2
    )
    # One of two finished, after 60 s; it was late, and no other has a deadline. 80 + 180 iterations of 0.01 h.
    assert (
        "<td>one</td><td>50.0</td><td>1.0</td><td>0</td><td>0</td><td>2.60</td>" in page
    )
    assert (
        '<span class="bad">too late</span>' in page
        and EVIL in shown
        and "<script" not in page
    )
    assert "(Gavel)" in shown


@pytest.mark.parametrize("count", [1, 9, 32])
def test_every_policy_has_its_own_look_in_every_chart(count: int) -> None:
    page = a_page(*(run for number in range(count) for run in kept(f"p{number}", 1.0)))
    first = re.findall(
        r'<path class="line" (stroke="[^>]*?) d=', page.partition("Fleet over time")[2]
    )
    assert len(set(first)) == count


def test_clients_have_arrivals_under_each_policy() -> None:
    spec = {"services": [{**SERVICE, "name": "a", "load": {"clients": 3}}]}
    page = a_page(*kept("one", 1.0), *kept("two", 1.0), **spec)
    assert "requests that arrived, one" in page and "requests that arrived, two" in page
    assert "1 under clients in a closed loop" in words(page)


def test_policies_that_used_no_gpu_are_not_compared_in_cost() -> None:
    assert "no comparison of cost" in words(
        a_page(*kept("one", 1.0), *kept("two", 0.0, in_slo=50))
    )


def test_one_seed_claims_no_interval() -> None:
    shown = words(a_page(*kept("one", 1.0), *kept("two", 2.0, in_slo=95)))
    assert "one kept the SLO of every service" in shown
    assert "Against two: costs 50.0 % less; 5.00 points more of the requests" in shown
    assert "There is one seed: nothing tells how much of a difference is" in shown
    assert "±" not in shown.replace("± ", "")


def test_broken_slos_are_admitted() -> None:
    page = a_page(*kept("one", 1.0, in_slo=90), *kept("two", 2.0, in_slo=80))
    assert "No policy kept the SLO of every service. one is the cheapest" in words(page)
    assert "90.00 % of all requests were in SLO; it failed a." in words(page)
    assert '<span class="bad">90.00</span>' in page


def test_where_nothing_was_served_nobody_is_praised() -> None:
    unserved = (a_service_result("a", served=0, rejected=100),)
    free = a_run("one", cost_usd=0.0, services=unserved)
    shown = words(a_page(free, a_run("two", services=unserved)))
    assert "No policy served a single request, so none is better than another." in shown
    assert "no comparison of cost" in shown
    assert "less" not in shown.partition("Policies")[0]


def test_a_service_for_which_nobody_asked_is_shown_as_unknown() -> None:
    page = a_page(a_run("one", services=(a_service_result("idle", served=0),)))
    assert "–" in words(page)
    assert "There were no requests" in words(page) and "kept" not in words(page)
