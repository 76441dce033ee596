"""Nodes: an operator cordons one and sees it; who may only look has no button."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open
from tests.integration.api_harness import Api

pytestmark = pytest.mark.integration


def test_an_operator_cordons_a_node_and_lets_it_be_used_again(
    demo: Api, opened: Open
) -> None:
    page = opened(demo, "nodes")
    row = page.locator("#n1")
    row.get_by_role("button", name="Cordon n1", exact=True).click()
    expect(row.locator(".chip")).to_have_text("cordoned")
    assert demo.get("nodes/n1")["spec"]["cordoned"]
    row.get_by_role("button", name="Uncordon n1").click()
    expect(row.locator(".chip")).to_have_text("in order")
    assert not demo.get("nodes/n1")["spec"]["cordoned"]


def test_what_a_node_cannot_do_and_that_it_is_silent_is_shown(
    fresh_demo: Api, opened: Open
) -> None:
    page = opened(fresh_demo, "nodes")
    fresh_demo.clock.advance(3.0)
    fresh_demo.sync(
        "n2",
        sequence=50,
        window_start_s=fresh_demo.clock.now().timestamp() - 2.0,
        problems=["no power caps"],
    )
    expect(page.locator("#n2")).to_contain_text("no power caps")
    fresh_demo.clock.advance(3600.0)
    expect(page.locator("#n2 .chip").first).to_have_text("silent")


def test_a_viewer_has_no_buttons(demo: Api, opened: Open) -> None:
    page = opened(demo, "nodes", scope="viewer")
    expect(page.locator("#n1 .chip")).to_have_text("in order")
    assert page.locator("#content button").count() == 0
