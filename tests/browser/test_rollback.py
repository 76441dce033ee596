"""What a person decides on the page of a plan: approve, reject, roll back."""

import pytest
from playwright.sync_api import expect

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


def proposed(api: Api, name: str) -> int:
    """The plan that another service is proposed in."""
    policy = {"kind": "Policy", "metadata": {"name": "default"}}
    api.put("policies/default", {**policy, "spec": {"mode": "approve"}})
    api.put(f"services/{name}", service(name, scaling={"min_replicas": 2}))
    outcome = api.tick()
    assert outcome.state == "proposed" and outcome.plan_id is not None
    return outcome.plan_id


def test_a_proposed_plan_is_put_in_force_and_the_next_one_rejected(
    fresh_demo: Api, opened: Open
) -> None:
    first = proposed(fresh_demo, "extra")
    page = opened(fresh_demo, f"plans/{first}")
    page.get_by_role("button", name="Approve: put it in force").click()
    expect(page.locator("dd .chip", has_text="approved")).to_be_visible()
    assert fresh_demo.tick().plan_id == first
    expect(page.locator("dd .chip", has_text="in force")).to_be_visible()
    second = proposed(fresh_demo, "more")
    page.goto(f"{fresh_demo.client.base_url}/plans/{second}")
    page.get_by_role("button", name="Reject").click()
    expect(page.locator("dd .chip", has_text="rejected")).to_be_visible()
    assert fresh_demo.get(f"plans/{second}")["state"] == "rejected"
    assert fresh_demo.get(f"plans/{first}")["state"] == "target"


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


@pytest.mark.thorough
def test_a_proposal_that_was_replaced_links_to_the_newer_one_and_is_not_rolled_back_to(
    fresh_demo: Api, opened: Open
) -> None:
    ids = [proposed(fresh_demo, name) for name in ("extra", "more")]
    page = opened(fresh_demo, "plans")
    page.click(f".chip a[href='/plans/{ids[1]}']")
    page.wait_for_url(f"**/plans/{ids[1]}")
    page.goto(f"{fresh_demo.client.base_url}/plans/{ids[0]}")
    page.locator("dd", has_text=f"replaced by plan {ids[1]}").wait_for()
    assert page.locator("button", has_text="Roll back").count() == 0
    assert page.locator("button", has_text="Approve").count() == 0
