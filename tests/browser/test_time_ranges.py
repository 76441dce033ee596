"""The time range of charts: chosen with mouse or keys, kept in the address, asked of the API in few points."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open
from tests.browser.test_all_pages import settle
from tests.integration.api_harness import NOW, Api

pytestmark = pytest.mark.integration

PATHS = (
    "services/chat",
    pytest.param("gpus/n1/gpu-0", marks=pytest.mark.thorough),
)


@pytest.mark.parametrize("path", PATHS)
def test_a_range_stands_in_the_address_and_a_link_shows_it(
    demo: Api, opened: Open, path: str
) -> None:
    page = opened(demo, path)
    settle(page)
    choice = page.get_by_label("Time range")
    expect(choice).to_have_value("1h")
    with page.expect_response(lambda answer: "last_s=604800" in answer.url) as answer:
        choice.select_option("7d")
    points = answer.value.json()
    assert 1 <= len(points.get("points") or points["readings"]) <= 360
    expect(page).to_have_url(re.compile(r"\?range=7d$"))
    expect(page.locator(".history .hint")).to_contain_text("a point for each 30 min")
    # All who get the address see the same; "back" is the range before.
    again = opened(demo, f"{path}?range=7d")
    expect(again.get_by_label("Time range")).to_have_value("7d")
    page.go_back()
    expect(choice).to_have_value("1h")


def test_two_times_are_chosen_by_keys_and_a_wrong_order_is_told(
    demo: Api, opened: Open
) -> None:
    page = opened(demo, "services/chat", width=390)
    settle(page)
    page.get_by_label("Time range").select_option(label="from … to …")
    expect(page.get_by_label("From", exact=True)).to_be_focused()
    page.get_by_label("From", exact=True).fill(NOW.strftime("%Y-%m-%dT%H:%M:%S"))
    page.get_by_label("To", exact=True).fill("2020-01-01T00:00:00")
    page.keyboard.press("Enter")
    alert = page.locator(".history [role=alert]")
    expect(alert).to_have_text(
        "The first time must be before the second: change one of them."
    )
    # The browser of the tests is in UTC, as NOW is.
    page.get_by_label("To", exact=True).fill(NOW.strftime("%Y-%m-%dT%H:09:00"))
    page.keyboard.press("Enter")
    expect(alert).to_be_empty()
    expect(page).to_have_url(re.compile(r"\?from=.*&to="))
    expect(page.locator(".history .hint")).to_contain_text("a point for each 15 s")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.thorough
def test_a_range_that_is_not_kept_is_refused_in_words(demo: Api, opened: Open) -> None:
    old = "from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z"
    page = opened(demo, f"services/chat?{old}", refusals=(422,))
    expect(page.locator(".history [role=alert]")).to_contain_text(
        "this is kept for 28 days only: ask for a later `since`"
    )
    page.goto(f"{demo.client.base_url}/services/chat?range=5y")
    expect(page.locator(".history [role=alert]")).to_contain_text(
        "The address names no time range that there is, so the last hour is shown."
    )


@pytest.mark.thorough
def test_a_box_drawn_in_a_chart_is_the_range_of_all(demo: Api, opened: Open) -> None:
    page = opened(demo, "services/chat", scope="viewer")
    box = page.locator(".u-over").first.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.7 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.9 * box["width"], middle)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"\?from=.*&to="))
    expect(page.get_by_label("Time range")).to_have_value("custom")


def test_the_period_of_costs_stands_in_the_address(demo: Api, opened: Open) -> None:
    page = opened(demo, "cost?period=7d&by=gpu_type")
    expect(page.get_by_label("Period")).to_have_value("7d")
    expect(page.locator("#cost-by")).to_have_value("gpu_type")
    page.get_by_label("Period").select_option("30d")
    expect(page).to_have_url(re.compile(r"\?by=gpu_type&period=30d$"))
