"""The page on cost: its figures are the SQL views' to the cent, and its files hold them."""

import csv
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import Page

from app.db.base.listen import conninfo
from tests.browser.conftest import Open, Picture
from tests.integration.api_harness import Api
from tests.integration.test_degrade import look

pytestmark = pytest.mark.integration


def ask(api: Api, query: str) -> list[tuple[object, ...]]:
    """What SQL says."""
    with psycopg.connect(conninfo(api.url)) as connection:
        return connection.execute(query.encode()).fetchall()


def table(page: Page) -> dict[str, Sequence[str]]:
    """Cells of the table of sums by the row's heading."""
    page.locator("table tfoot th").wait_for()
    rows = page.locator("table:has(tfoot) tr:has(td)")
    return {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts()
        for row in rows.all()
    }


def cents(amount: object) -> str:
    return f"${Decimal(str(amount)):,.2f}"


def test_tables_and_files_are_the_sql_views_to_the_cent(
    demo: Api, opened: Open, tmp_path: Path
) -> None:
    page = opened(demo, "cost")
    ((bill,),) = ask(demo, "SELECT sum(cost_usd) FROM report.bill_hour")
    for by in ("project", "service"):
        page.select_option("#cost-by", by)
        page.locator("figcaption", has_text=f"by {by}").wait_for()
        wanted = ask(
            demo,
            f"SELECT {by}, sum(cost_usd), sum(whole_gpu_cost_usd) FROM report.cost_by_{by}_hour GROUP BY 1",
        )
        found = table(page)
        assert {
            name: (found[str(name)][1], found[str(name)][3]) for name, *_ in wanted
        } == {name: (cents(cost), cents(whole)) for name, cost, whole in wanted}
        assert found["Bill"][1] == cents(bill)
        assert len(found) == len(wanted) + 1

    with page.expect_download() as download:
        page.click("a:has-text('CSV')")
    path = tmp_path / "cost.csv"
    download.value.save_as(path)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert cents(sum(Decimal(row["cost_usd"]) for row in rows)) == cents(bill)

    ((without,),) = ask(
        demo, "SELECT sum(cost_usd) FROM report.cost_without_sharing_hour"
    )
    assert f"Without it: {cents(without)}." in page.inner_text(".cost-facts")

    page.select_option("#cost-by", "gpu_type")
    page.locator("figcaption", has_text="by GPU type").wait_for()
    ((kind, cost, idle),) = ask(
        demo,
        "SELECT gpu_type, sum(cost_usd), sum(idle_cost_usd) FROM report.cost_by_gpu_type_hour GROUP BY 1",
    )
    found = table(page)
    busy = Decimal(str(cost)) - Decimal(str(idle))
    assert found[str(kind)][1] == cents(busy)
    assert found["(idle)"][1] == cents(idle)


@pytest.mark.thorough
def test_the_period_is_chosen_and_remembered(demo: Api, opened: Open) -> None:
    page = opened(demo, "cost")
    page.select_option("#cost-period", "30d")
    page.locator("figcaption", has_text="Cost per day").wait_for()
    page.reload()
    page.locator("figcaption", has_text=re.compile("Cost per day")).wait_for()
    assert page.input_value("#cost-period") == "30d"


def test_a_person_of_a_project_sees_its_cost(demo: Api, opened: Open) -> None:
    demo.add_token("mine", "viewer", projects=("team-a",))
    page = opened(demo, "cost", scope="mine")
    assert set(table(page)) == {"chat", "thumbnails", "Bill"}


def test_budgets_stand_beside_the_cost(
    demo: Api, opened: Open, picture: Picture
) -> None:
    for name, project, usd in (("all", None, "0.13"), ("mine", "team-a", "2")):
        spec = {"usd": usd, "project": project, "period": "hour", "action": "block_new"}
        demo.put(
            f"budgets/{name}",
            {"kind": "Budget", "metadata": {"name": name}, "spec": spec},
        )
    page = opened(demo, "cost")
    row = page.locator("tr", has=page.locator("th", has_text=re.compile("^all$")))
    row.wait_for()
    ((spent,),) = ask(
        demo, "SELECT spent_usd FROM report.budget_status WHERE budget = 'all'"
    )
    cells = row.locator("td").all_inner_texts()
    assert (cells[0], cells[2], cells[3]) == (
        "whole cluster",
        "$0.13/hour",
        cents(spent),
    )
    picture(page, "cost-budgets")
    for name in ("all", "mine"):
        demo.call("DELETE", f"budgets/{name}", token="admin", If_Match="*")


@pytest.mark.thorough
def test_who_is_planned_for_less_stands_beside_the_budget(
    fresh_demo: Api, opened: Open, picture: Picture
) -> None:
    spec = {"usd": "0.001", "project": "team-a", "period": "day", "action": "degrade"}
    fresh_demo.put(
        "budgets/limit", {"kind": "Budget", "metadata": {"name": "limit"}, "spec": spec}
    )
    assert look(fresh_demo) == 1
    page = opened(fresh_demo, "cost")
    row = page.locator("tr", has=page.locator("th", has_text=re.compile("^limit$")))
    row.wait_for()
    assert row.locator("td").last.inner_text().splitlines() == [
        "services of low priority are planned for less",
        "Now, of their demand: chat for 50 %, thumbnails for 50 %",
    ]
    picture(page, "cost-degraded")
