"""Overview: SLOs worst first, what waits, what changed, and every GPU as a cell that leads to it."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open
from tests.integration.api_harness import Api, service

pytestmark = pytest.mark.integration


def test_the_first_page_says_in_one_sentence_how_services_are(
    demo: Api, opened: Open
) -> None:
    page = opened(demo, "", scope="viewer")
    expect(page.locator(".headline")).to_have_text(
        "search misses its SLO and uses up its error budget too fast."
    )
    slos = page.get_by_role("region", name="SLOs", exact=True)
    expect(slos.locator("tbody th a")).to_have_text(["search", "chat", "thumbnails"])
    expect(slos.locator(".legend")).to_have_text("1 missed, or at risk2 kept")
    expect(page.locator(".tile", has_text="SLOs kept")).to_contain_text("2 of 3")
    waits = page.get_by_role("region", name="Waits for you")
    expect(waits).to_contain_text("Nothing: no plan is proposed")
    # Costs are those of the reports.
    costs = demo.get("costs?by=project&period=24h")
    today = costs["cost_usd"]
    assert {point["at"][:10] for point in costs["points"]} == {"2026-03-01"}
    expect(page.locator(".tile", has_text="Cost today")).to_contain_text(
        f"${today:.2f}"
    )
    saved = costs["without_sharing_usd"] - today
    expect(page.locator(".tile", has_text="Saved by sharing")).to_contain_text(
        f"${saved:.2f}"
    )


def test_what_waits_for_a_person_is_listed_with_where_to_go(
    fresh_demo: Api, opened: Open
) -> None:
    page = opened(fresh_demo, "")
    waits = page.get_by_role("region", name="Waits for you")
    expect(waits).to_contain_text("Nothing: ")
    policy = {"kind": "Policy", "metadata": {"name": "default"}}
    fresh_demo.put("policies/default", {**policy, "spec": {"mode": "approve"}})
    fresh_demo.put(
        "services/chat", service("chat", project="team-a", scaling={"min_replicas": 3})
    )
    fresh_demo.tick()
    plan = fresh_demo.get("plans?state=proposed")["items"][0]["id"]
    expect(waits.get_by_role("link", name=f"Plan {plan}")).to_be_visible()
    fresh_demo.call("POST", "policies/default/pause")
    expect(waits).to_contain_text("The loop is paused")
    fresh_demo.clock.advance(3600.0)
    expect(waits).to_contain_text("2 nodes silent: n1, n2")
    waits.get_by_role("link", name="Look and approve").click()
    expect(page.get_by_role("heading", name=f"Plan {plan}")).to_be_visible()


def test_a_cell_of_a_gpu_is_shaded_told_and_leads_to_it(
    demo: Api, opened: Open
) -> None:
    page = opened(demo, "", scope="viewer")
    cells = page.locator(".heatmap .cell")
    expect(cells).to_have_count(4)
    given = {
        gpu["id"]: sum(replica["sm_percent"] for replica in gpu["replicas"])
        for gpu in demo.get("plans/1")["gpus"]
    }
    for name, percent in given.items():
        # Five shades of 20 % each.
        step = -(-percent // 20)
        expect(page.get_by_role("link", name=name, exact=True)).to_have_attribute(
            "data-step", f"{step:g}"
        )
    cells.first.hover()
    expect(page.get_by_role("tooltip")).to_contain_text("n1/gpu-0 (T4)")
    # One cell is in the order of Tab, the others are reached by arrows.
    expect(page.locator(".heatmap .cell[tabindex='0']")).to_have_count(1)
    cells.first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("link", name="n1/gpu-1", exact=True)).to_be_focused()
    expect(page.get_by_role("tooltip")).to_contain_text("n1/gpu-1 (T4)")
    page.keyboard.press("Enter")
    page.wait_for_url("**/gpus/n1/gpu-1")


def test_cells_of_ill_gpus_are_framed_and_come_first_when_asked(
    fresh_demo: Api, opened: Open
) -> None:
    page = opened(fresh_demo, "", scope="viewer")
    fresh_demo.clock.advance(3600.0)
    fresh_demo.sync(
        "n2", sequence=50, window_start_s=fresh_demo.clock.now().timestamp() - 2.0
    )
    silent = page.locator(".heatmap .cell[data-wrong='silent']")
    expect(silent).to_have_count(2)
    page.get_by_label("Order").select_option("worst")
    expect(page.locator(".heatmap > .cell").first).to_have_attribute(
        "data-wrong", "silent"
    )
    page.get_by_label("Colour").select_option("problem")
    expect(silent.first).to_have_attribute("data-step", "bad")
