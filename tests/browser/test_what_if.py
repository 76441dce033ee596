"""What-if: an operator's question is planned next to today's, and nothing is put in force."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open
from tests.integration.api_harness import Api

pytestmark = pytest.mark.integration


def test_an_answer_stands_beside_today_and_nothing_changes(
    demo: Api, opened: Open
) -> None:
    before = demo.get("plans")["items"]
    page = opened(demo, "what-if")
    page.get_by_label("Demand of chat times").fill("2")
    page.get_by_role("button", name="Plan it").click()
    answers = page.locator(
        "table", has=page.locator("caption", has_text="Answers")
    ).locator("tbody tr")
    expect(answers).to_have_count(2)
    expect(answers.first).to_contain_text("Today")
    expect(answers.first).to_contain_text("$0.70")
    assert "demand.chat=2" in page.url
    assert demo.get("plans")["items"] == before


def test_an_address_that_somebody_sent_is_filled_in(demo: Api, opened: Open) -> None:
    page = opened(demo, "what-if")
    page.goto(f"{demo.client.base_url}/what-if?demand.all=1.5&gpus.T4=-1&slo.chat=80")
    expect(page.get_by_label("Demand of every service")).to_have_value("1.5")
    expect(page.get_by_label("GPUs of T4 more")).to_have_value("-1")
    expect(page.get_by_label("SLO of chat")).to_have_value("80")


def test_a_viewer_may_not_plan(demo: Api, opened: Open) -> None:
    page = opened(demo, "what-if", scope="viewer")
    expect(page.get_by_role("button", name="Plan it")).to_be_disabled()
    expect(page.get_by_text("only an operator's may plan")).to_be_visible()


@pytest.mark.thorough
def test_the_planned_mix_stands_beside_todays_with_what_differs_first(
    fresh_demo: Api, opened: Open
) -> None:
    page = opened(fresh_demo, "what-if")
    page.get_by_label("Demand of chat times").fill("20")
    with page.expect_response("**/plans/preview") as answered:
        page.get_by_role("button", name="Plan it").click()
    told = answered.value.json()
    today, (answer,) = told["today"], told["answers"]
    before, after = (
        {each["service"]: each for each in side["mix"]} for side in (today, answer)
    )
    differing = sorted(
        name for name in after if _figures(before[name]) != _figures(after[name])
    )
    assert (
        "chat" in differing
        and after["chat"]["replicas"] + after["chat"]["sm_percent"] > 0
    )
    rows = page.locator(
        "table", has=page.locator("caption", has_text="Replicas that differ")
    ).locator("tbody tr")
    expect(rows).to_have_count(len(differing))
    assert [row.locator("th").inner_text() for row in rows.all()] == differing
    chat = rows.nth(differing.index("chat")).locator("td").all_inner_texts()
    assert chat[:3] == [
        "T4",
        str(before["chat"]["replicas"]),
        str(after["chat"]["replicas"]),
    ]
    assert [_percent(cell) for cell in chat[4:]] == pytest.approx(
        [before["chat"]["sm_percent"], after["chat"]["sm_percent"]], rel=0.01
    )
    gpus = page.locator(
        "table", has=page.locator("caption", has_text="GPUs in use")
    ).locator("tbody tr")
    assert gpus.locator("td").all_inner_texts()[:2] == [
        str(today["gpus"]["T4"]),
        str(answer["gpus"]["T4"]),
    ]
    stays = len(before) - len(differing)
    same = page.locator("summary", has_text="The same as today")
    expect(same).to_be_visible(visible=stays > 0)


def _figures(mix: dict[str, float]) -> tuple[float, float]:
    return mix["replicas"], mix["sm_percent"]


def _percent(cell: str) -> float:
    return float(cell.removesuffix(" %").replace(",", ""))


@pytest.mark.thorough
def test_gpus_of_a_type_that_the_fleet_lacks_may_be_added_at_their_price(
    fresh_demo: Api, opened: Open
) -> None:
    spare = fresh_demo.get("gpu-types/T4")
    manifest = {key: spare[key] for key in ("kind", "spec")}
    fresh_demo.put("gpu-types/spare", {**manifest, "metadata": {"name": "spare"}})
    page = opened(fresh_demo, "what-if")
    page.get_by_label("GPUs of spare more").fill("2")
    page.get_by_role("button", name="Plan it").click()
    answers = page.locator(
        "table", has=page.locator("caption", has_text="Answers")
    ).locator("tbody tr")
    expect(answers).to_have_count(2)
    price = 2 * float(spare["spec"]["price_usd_per_hour"])
    expect(answers.last).to_contain_text(f"${price:.2f}")
    # Nothing was ever measured on it, which the page says instead of a saving.
    expect(answers.last).to_contain_text("nothing")
    expect(page.get_by_text("is not planned on spare").first).to_be_visible()
