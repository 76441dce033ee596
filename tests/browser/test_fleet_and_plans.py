"""Fleet and plans: no claim about what is not reported, and what each plan changed."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open
from tests.browser.test_rollback import a_second_plan
from tests.integration.api_harness import Api

pytestmark = pytest.mark.integration


def test_the_fleet_does_not_claim_that_slos_hold_when_nobody_reports(
    fresh_demo: Api, opened: Open
) -> None:
    page = opened(fresh_demo, "fleet")
    expect(page.locator(".summary")).to_contain_text("search misses its SLO")
    fresh_demo.clock.advance(3600.0)
    expect(page.locator(".summary")).to_contain_text(
        "chat and thumbnails are not reported."
    )
    expect(page.locator(".gpu .hint").first).to_have_text("silent")


@pytest.mark.thorough
def test_a_node_without_readings_is_not_shown_as_empty(
    fresh_demo: Api, opened: Open
) -> None:
    fresh_demo.clock.advance(3600.0)
    answer = fresh_demo.sync(
        "n1", sequence=50, window_start_s=fresh_demo.clock.now().timestamp() - 3000.0
    )
    assert answer.status_code == 200, answer.text
    page = opened(fresh_demo, "fleet")
    expect(page.locator("[data-key='n1/gpu-0'] .hint")).to_have_text("no reading")


def test_a_plan_says_what_it_changed_and_which_rates_differ(
    fresh_demo: Api, opened: Open
) -> None:
    second = a_second_plan(fresh_demo)
    page = opened(fresh_demo, "plans", scope="viewer")
    row = page.locator(
        "tbody tr", has=page.get_by_role("link", name=str(second), exact=True)
    )
    expect(row).to_contain_text("in force")
    expect(row.locator("td.wrap")).to_contain_text("extra: +2 on")
    row.get_by_role("link").click()
    expect(page.locator("dd", has_text="extra 0/s")).to_contain_text("chat ")
