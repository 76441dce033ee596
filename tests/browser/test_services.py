"""Services and one service: sort and filter, budgets as SQL has them, change one as an operator, apply a new one."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.dashboards import report
from tests.integration.api_harness import Api, service

pytestmark = pytest.mark.integration


def names(page: Page) -> list[str]:
    """The services of the table, in its order."""
    return page.locator("tbody tr th a").all_inner_texts()


def test_rows_are_sorted_by_any_column_and_found_by_text_and_project(
    demo: Api, opened: Open
) -> None:
    page = opened(demo, "services", scope="viewer")
    expect(page.locator("tbody tr")).to_have_count(3)
    assert names(page) == ["chat", "search", "thumbnails"]
    page.get_by_role("button", name="Rate").click()
    # 60, 40 and 20 requests in two seconds; the largest first, then the smallest.
    assert names(page) == ["chat", "search", "thumbnails"]
    page.get_by_role("button", name="Rate").click()
    assert names(page) == ["thumbnails", "search", "chat"]
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("Rate")
    page.get_by_role("button", name="Met, last minute").click()
    assert names(page)[0] == "search"
    page.get_by_label("Find").fill("THUMB")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"/services\?find=THUMB$"))
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Find").fill("")
    page.get_by_label("Project").select_option("team-b")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert names(page) == ["search"]

    page.get_by_label("Project").select_option("")
    row = page.locator("tbody tr", has_text="search")
    # One in twenty is late and one in fifty may be: two and a half times too many, in any period.
    expect(row.locator("[data-label='Budget left'] span")).to_have_text("-150.0 %")
    expect(row.locator("[data-label='Burn 1 h']")).to_have_text("2.50")
    expect(row.locator(".trouble")).to_have_text(
        "95.00 % of the last minute's requests met 100 ms (wanted 98 %); "
        "error budget used up 2.5 times too fast over 3 d"
    )
    chat = page.locator("tbody tr", has_text="chat")
    expect(chat.locator(".trouble")).to_have_count(0)
    # The band of the forecast that the plan was made for.
    (demand,) = demo.get("demand/chat?limit=1")["items"]
    low, high = (round(demand[name], 1) for name in ("low_rps", "high_rps"))
    assert low < 30.0 < demand["arrival_rate_rps"] < high
    foreseen = f"foreseen {low:g}–{high:g}/s"
    expect(chat.locator("[data-label=Rate]")).to_contain_text(foreseen)


def test_budget_and_burn_are_those_of_the_sql_view(demo: Api, opened: Open) -> None:
    rows = demo.get("reports/slo_budget?service=search")
    found = (dict(zip(rows["columns"], row, strict=True)) for row in rows["rows"])
    of_hour = next(row for row in found if row["period"] == "1 h")
    assert (of_hour["burn_rate"], of_hour["budget_used_percent"]) == (2.5, 250.0)
    page = opened(demo, "services/search", scope="viewer")
    hour = page.locator(
        "#budget tbody tr", has=page.get_by_role("rowheader", name="1 h", exact=True)
    )
    finished, misses = (f"{of_hour[name]:g}" for name in ("finished", "misses"))
    allowed = f"{of_hour['allowed_misses']:.1f}"
    cells = [finished, misses, allowed, "250.00 %", "2.50", "14.4"]
    expect(hour.locator("td")).to_have_text(cells)


@pytest.mark.thorough
def test_the_summary_does_not_praise_the_minute_where_budgets_burn(
    fresh_demo: Api, opened: Open
) -> None:
    page = opened(fresh_demo, "services", scope="viewer")
    summary = page.locator(".summary")
    expect(summary).to_contain_text(
        "search misses its SLO and uses up its error budget too fast."
    )
    fresh_demo.clock.advance(120.0)
    report(fresh_demo, 12, one_late_in=1000)
    expect(summary).to_contain_text("/h. search uses up its error budget too fast.")
    expect(summary).not_to_contain_text("Every service")
    page.get_by_label("Find").fill("chat")
    expect(summary).to_contain_text("Every service kept its SLO in the last minute.")


def test_a_service_shows_cost_of_today_replicas_and_why(
    demo: Api, opened: Open
) -> None:
    rows = demo.get("reports/cost_by_service_hour?service=chat")
    cost = sum(row[rows["columns"].index("cost_usd")] for row in rows["rows"])
    assert cost > 0
    page = opened(demo, "services/chat", scope="viewer")
    expect(page.get_by_role("region", name="Today, UTC")).to_contain_text(
        f"${cost:.4f} by SM percent"
    )
    expect(page.locator("a[href^='/gpus/']").first).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("is in force"))).to_have_attribute(
        "href", "/why/1"
    )
    expect(page.locator("canvas")).to_have_count(3)
    # Who only looks is offered no change.
    expect(page.locator("form.form")).to_have_count(0)
    page.goto(f"{demo.client.base_url}/new-service")
    expect(page.locator("#content")).to_contain_text("Your token may look only.")
    expect(page.locator("form.form")).to_have_count(0)


def test_an_operator_changes_the_slo_and_what_is_wrong_or_in_conflict_is_told(
    fresh_demo: Api, opened: Open
) -> None:
    page = opened(fresh_demo, "services/chat", refusals=(412, 422))
    page.get_by_text("Change its SLO, replicas or priority").click()
    percentile = page.get_by_label("Requests that must meet it")
    latency = page.get_by_label("SLO latency")
    save = page.get_by_role("button", name="Save")
    said = page.locator("form.form [role=status]")
    percentile.fill("99.99")
    save.click()
    field = page.locator(".field", has=percentile)
    expect(field.locator(".bad")).to_have_text("must be from 50 to 99.9 %")
    expect(percentile).to_be_focused()
    # No operating point takes a millisecond: it may be forced anyway.
    percentile.fill("98")
    latency.fill("1")
    save.click()
    impossible = page.locator(".field .bad", has_text="impossible")
    expect(impossible).to_contain_text("tick the box below")
    page.get_by_label("Accept an SLO that no operating point can meet").check()
    save.click()
    expect(said).to_have_text("Saved as generation 2.")
    latency.fill("80")
    page.get_by_label("Least replicas").fill("2")
    save.click()
    expect(said).to_have_text("Saved as generation 3.")
    spec = fresh_demo.get("services/chat")["spec"]
    assert spec["slo"]["latency_ms"] == 80.0
    assert spec["slo"]["percentile"] == 0.98
    assert spec["scaling"]["min_replicas"] == 2
    expect(page.locator("td.wrap", has_text="slo_latency_ms: 1 → 80")).to_be_visible()
    # Somebody else is faster; what was typed stays.
    latency.fill("70")
    fresh_demo.put("services/chat", service("chat", project="team-a", latency_ms=90.0))
    save.click()
    alert = page.locator("form.form [role=alert]")
    expect(alert).to_contain_text("it is at generation 4")
    assert latency.input_value() == "70"
    page.get_by_role("button", name="Take what it is now").click()
    assert latency.input_value() == "90"
    assert fresh_demo.get("services/chat")["spec"]["slo"]["latency_ms"] == 90.0


def test_a_new_service_is_read_from_yaml_applied_and_planned(
    fresh_demo: Api, opened: Open
) -> None:
    page = opened(fresh_demo, "services")
    page.get_by_role("link", name="New service").click()
    page.get_by_label("A manifest as").fill(
        "kind: Service\nmetadata: {name: &a x, project: *a}"
    )
    page.get_by_role("button", name="Read into the fields").click()
    expect(page.locator("#yaml-problem")).to_contain_text("Line 2: anchors and aliases")
    page.get_by_label("A manifest as").fill(
        "kind: Service\nmetadata: {name: ocr, project: team-a}\n"
        "spec:\n  network: resnet50\n  slo: {latency_ms: 90}\n  scaling: {minReplicas: 1, downscale_delay_s: 30}\n"
    )
    page.get_by_role("button", name="Read into the fields").click()
    expect(page.get_by_label("Name", exact=True)).to_have_value("ocr")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url("**/services/ocr")
    spec = fresh_demo.get("services/ocr")["spec"]
    slo = spec["slo"]
    assert (slo["latency_ms"], slo["percentile"]) == (90.0, 0.99)
    assert spec["scaling"]["min_replicas"] == 1
    assert spec["scaling"]["downscale_delay_s"] == 30.0
    fresh_demo.tick()
    expect(page.locator("tbody a[href^='/gpus/']")).to_have_count(1)
    expect(page.locator(".chip", has_text="planned, not seen yet")).to_be_visible()
    report(fresh_demo, 12)
    expect(page.locator("td .chip", has_text="ready")).to_be_visible()


@pytest.mark.thorough
def test_a_name_that_is_taken_is_told_at_its_field(demo: Api, opened: Open) -> None:
    page = opened(demo, "new-service", refusals=(412,))
    page.get_by_label("Name", exact=True).fill("chat")
    page.get_by_label("Network").fill("resnet50")
    page.get_by_role("button", name="Apply").click()
    expect(
        page.locator(".field", has=page.get_by_label("SLO latency")).locator(".bad")
    ).to_have_text("is needed")
    page.get_by_label("SLO latency").fill("100")
    page.get_by_role("button", name="Apply").click()
    expect(
        page.locator(".field", has=page.get_by_label("Name", exact=True)).locator(
            ".bad"
        )
    ).to_contain_text("there already")


@pytest.mark.thorough
def test_a_latency_far_above_the_slo_does_not_press_it_to_the_bottom(
    fresh_demo: Api, opened: Open
) -> None:
    page = opened(fresh_demo, "services/chat", scope="viewer")
    chart = page.locator("figure", has_text="Latency at p98")
    expect(chart).to_have_attribute("data-scale", "linear")
    fresh_demo.clock.advance(60.0)
    # Bucket 60 ends at 8.2 s; the SLO is 100 ms.
    slow = {"served": 9, "in_slo": 0, "latency_buckets": [[60, 9]]}
    answer = fresh_demo.sync(
        "n1",
        sequence=50,
        window_start_s=fresh_demo.clock.now().timestamp() - 2.0,
        services=[{"service": "chat", "arrivals": 9, **slow}],
    )
    assert answer.status_code == 200, answer.text
    fresh_demo.clock.advance(5.0)
    expect(chart).to_have_attribute("data-scale", "logarithmic")
