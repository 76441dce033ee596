"""Roll back from the page of an earlier plan."""

import pytest

from tests.browser.conftest import Open
from tests.integration.api_harness import Api, service

pytestmark = pytest.mark.integration


def a_second_plan(api: Api) -> int:
    """The plan that another service brings into force."""
    api.put("services/extra", service("extra", scaling={"min_replicas": 2}))
    outcome = api.tick()
    assert outcome.state == "target" and outcome.plan_id is not None
    api.call("DELETE", "services/extra", token="admin", If_Match="*")
    return outcome.plan_id


def test_an_operator_rolls_back_and_sees_it_in_force_and_a_viewer_cannot(
    fresh_demo: Api, opened: Open
) -> None:
    a_second_plan(fresh_demo)
    viewers = opened(fresh_demo, "plans/1", scope="viewer")
    viewers.locator("#content dl").wait_for()
    assert viewers.locator("button", has_text="Roll back").count() == 0
    page = opened(fresh_demo, "plans/1")
    page.click("button:has-text('Roll back to this plan')")
    page.click("button:has-text('Yes, put plan 1 back in force')")
    restored = page.locator("a", has_text="plan ").and_(page.locator("[role=status] a"))
    restored.wait_for()
    assert "now in mode approve" in page.inner_text("#content")
    assert fresh_demo.tick().state == "target"
    restored.click()
    page.wait_for_url("**/plans/*")
    page.locator("dd", has_text="in force plan 1 is restored").wait_for()


@pytest.mark.thorough
def test_why_a_plan_cannot_come_back_is_said(fresh_demo: Api, opened: Open) -> None:
    second = a_second_plan(fresh_demo)
    assert fresh_demo.tick().state == "target"
    page = opened(fresh_demo, f"plans/{second}", refusals=(409, 422))
    page.click("button:has-text('Roll back to this plan')")
    page.click("button:has-text('Yes, put')")
    page.locator("#problem", has_text="no service is called 'extra'").wait_for()
    page.locator("button", has_text="Roll back to this plan").wait_for()
