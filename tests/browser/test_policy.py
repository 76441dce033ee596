"""Policy: an operator pauses and resumes it, an admin switches it, and its versions say who changed what."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open
from tests.integration.api_harness import Api

pytestmark = pytest.mark.integration


def test_an_operator_pauses_the_loop_and_lets_it_go_on(demo: Api, opened: Open) -> None:
    page = opened(demo, "policy", width=390)
    expect(page.locator(".headline")).to_have_text("joint decides and acts by itself.")
    expect(page.get_by_role("region", name="Change it")).to_have_count(0)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".headline")).to_contain_text("Paused: nodes keep what they")
    assert demo.get("policies/default")["spec"]["paused"]
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert not demo.get("policies/default")["spec"]["paused"]
    newest = page.locator("tbody tr").first
    expect(newest).to_contain_text("paused: true → false")
    expect(newest).to_contain_text("operator")


def test_an_admin_switches_the_mode_and_a_conflict_is_told(
    fresh_demo: Api, opened: Open
) -> None:
    page = opened(fresh_demo, "policy", scope="admin", refusals=(412,))
    page.get_by_label("Mode").select_option("approve")
    page.get_by_label("the first plan of another policy").check()
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".headline")).to_contain_text("a person approves them")
    spec = fresh_demo.get("policies/default")["spec"]
    assert (spec["mode"], spec["approve_switch"]) == ("approve", True)
    page.locator("select[name=policy]").select_option("k8s_hpa")
    # Somebody else changes it while the form is filled in.
    policy = {"kind": "Policy", "metadata": {"name": "default"}}
    fresh_demo.put("policies/default", {**policy, "spec": {"target_attainment": 0.999}})
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#problem")).to_contain_text("Somebody else changed the policy")
    assert fresh_demo.get("policies/default")["spec"]["policy"] == "joint"
    # Why it was refused stays, whatever the feed makes the page read again.
    fresh_demo.call("POST", "policies/default/pause")
    expect(page.locator(".headline")).to_contain_text("Paused")
    expect(page.locator("#problem")).to_contain_text("Somebody else changed the policy")
