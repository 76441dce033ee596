"""Simulate: a scenario is asked for, run and compared; its report opens in a page that can run no script."""

import json
import re

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.conftest import Open
from tests.integration.api_harness import Api
from tests.integration.simulating import SCENARIO, in_state

pytestmark = pytest.mark.integration


def ask_for_own(page: Page, text: str) -> None:
    page.get_by_label("Scenario", exact=True).select_option("own")
    page.get_by_label("The scenario, as").fill(text)
    page.get_by_role("button", name="Simulate").click()


def test_a_scenario_is_run_and_its_report_opens(
    fresh_demo: Api, opened: Open, context: BrowserContext
) -> None:
    page = opened(fresh_demo, "simulate")
    ask_for_own(page, json.dumps(SCENARIO))
    bar = page.get_by_role("progressbar")
    expect(bar).to_be_visible()
    expect(bar).to_have_attribute("aria-valuetext", re.compile(r"^\d+ % of 2 runs$"))
    done = in_state(fresh_demo, 1, "finished", "failed")
    expect(bar).to_be_hidden()
    assert done["state"] == "finished", done
    table = page.locator(
        "table", has=page.locator("caption", has_text="Policies side by side")
    )
    expect(table.locator("tbody tr")).to_have_count(2)
    for at, each in enumerate(fresh_demo.get("simulations/1")["summary"]["policies"]):
        row = table.locator("tbody tr").nth(at)
        expect(row).to_contain_text(each["policy"])
        for name in (
            "cost_usd",
            "gpu_hours",
            "energy_kwh",
            "violations",
            "worst_attainment",
            "replicas_started",
        ):
            expect(row).to_contain_text(each[name]["words"])
    assert "run=1" in page.url
    with context.expect_page() as report:
        page.get_by_role("link", name="Open the report").click()
    expect(report.value.get_by_role("heading", level=1)).to_contain_text(
        "small: policies side by side"
    )
    assert report.value.locator("svg").count() > 0


def test_a_wrong_field_is_named_with_its_line(demo: Api, opened: Open) -> None:
    page = opened(demo, "simulate", refusals=(422,))
    ask_for_own(page, "kind: Scenario\nmetadata: {name: mine}\nspec:\n  duration: 60\n")
    expect(page.locator("#problem")).to_contain_text(
        "/scenario/spec/duration: line 4: unknown field"
    )
    expect(page.locator("#problem")).to_contain_text(
        "/scenario/spec/fleet: line 3: this field is missing"
    )


@pytest.mark.thorough
def test_a_shipped_scenario_fills_the_form_and_more_policies_than_may_be_cannot_be_chosen(
    demo: Api, opened: Open
) -> None:
    page = opened(demo, "simulate")
    scenario = page.get_by_label("Scenario", exact=True)
    scenario.select_option("spike")
    expect(page.get_by_label("Simulated seconds")).to_have_value("960")
    expect(page.locator("input[name=policy]:checked")).to_have_count(3)
    page.get_by_label("morak").check()
    page.get_by_label("mudi").check()
    expect(page.get_by_label("oltunes")).to_be_disabled()
    page.get_by_label("mudi").uncheck()
    expect(page.get_by_label("oltunes")).to_be_enabled()
    scenario.select_option("gpu_loss")
    expect(page.get_by_label("joint with room")).to_be_checked()


@pytest.mark.thorough
def test_one_that_waits_or_runs_is_cancelled(fresh_demo: Api, opened: Open) -> None:
    long = {
        **SCENARIO,
        "spec": {**SCENARIO["spec"], "duration_s": 21_600, "seeds": [1, 2, 3]},
    }
    page = opened(fresh_demo, "simulate")
    ask_for_own(page, json.dumps(long))
    page.get_by_role("button", name="Cancel simulation 1").click()
    expect(page.locator("tbody tr", has_text="cancelled")).to_have_count(1)
    expect(page.get_by_role("progressbar")).to_be_hidden()


def test_a_viewer_may_not_ask(demo: Api, opened: Open) -> None:
    page = opened(demo, "simulate", scope="viewer")
    expect(page.get_by_text("needs one of scope operator")).to_be_visible()
    expect(page.get_by_role("button", name="Simulate")).to_have_count(0)
