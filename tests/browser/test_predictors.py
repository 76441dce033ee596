"""Predictors: fitted curves through what was measured, with the API's own figures, and what drifts."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.integration.api_harness import Api, gpu_type, profile
from tests.integration.measured import fit_here

pytestmark = pytest.mark.integration

PATH = "networks/resnet50/fits/curves?gpu_type=T4"


def rows_of(page: Page) -> list[list[str]]:
    """Batch, SM percent, measured, fitted, off, off the curve: as the table has them."""
    page.get_by_text("As a table").click()
    rows = page.locator("details tbody tr")
    rows.first.wait_for()
    return [row.locator("th, td").all_inner_texts() for row in rows.all()]


def test_curves_and_table_are_what_the_api_says_with_error_and_drift(
    demo: Api, opened: Open
) -> None:
    page = opened(demo, "predictors")
    fit = demo.get(PATH)["fit"]
    words = page.locator("section [role=status]")
    expect(words).to_contain_text(
        f"{fit['technique'].replace('_', ' ')}, version 1, from 20 samples"
    )
    expect(words).to_contain_text(
        f"held-out samples: {100 * fit['cross_validated_error']:.1f} % on average"
    )
    expect(words).to_contain_text(
        f"9 in 10 below {100 * fit['cross_validated_error_p90']:.1f} %"
    )
    expect(words).to_contain_text("Drift: nothing of what is served was compared")
    expect(page.locator("figcaption")).to_have_text(
        "Latency of resnet50 on T4 over SM percent: lines as fitted, dots as measured"
    )
    expect(page.locator("figure canvas")).to_be_visible()
    drawn = page.evaluate(
        "echarts.getInstanceByDom(document.querySelector('figure .chart')).getOption().series"
        ".map((each) => [each.name, each.type, each.symbol, each.data.length])"
    )
    assert [tuple(each) for each in drawn if each[0] == "batch 1"] == [
        ("batch 1", "line", "none", 40),
        ("batch 1", "scatter", "circle", 5),
        ("batch 1", "scatter", "circle", 1),
    ]
    assert {each[0] for each in drawn} == {"batch 1", "batch 2", "batch 4", "batch 8"}
    # The table says the same of every sample.
    found = rows_of(page)
    told = sorted(
        demo.get(PATH)["measured"], key=lambda each: (each["batch"], each["sm_percent"])
    )
    assert len(found) == len(told) == 21
    assert [(float(row[0]), float(row[1].removesuffix(" %"))) for row in found] == [
        (each["batch"], each["sm_percent"]) for each in told
    ]
    for row, each in zip(found, told, strict=True):
        assert float(row[2].removesuffix(" ms")) == pytest.approx(
            each["latency_ms"], rel=0.01
        )
        if each["fitted_ms"] is None:
            assert row[3:] == ["–", "–", "next to neighbours"]
        else:
            off = 100 * (each["fitted_ms"] / each["latency_ms"] - 1)
            assert float(row[3].removesuffix(" ms")) == pytest.approx(
                each["fitted_ms"], rel=0.01
            )
            assert float(row[4].removesuffix(" %").replace("−", "-")) == pytest.approx(
                off, abs=0.051
            )
            assert row[5] == "no"


@pytest.mark.thorough
def test_another_one_is_chosen_and_stays_in_the_address(
    fresh_demo: Api, opened: Open
) -> None:
    fresh_demo.put("gpu-types/V100", gpu_type("V100"))
    fresh_demo.put("profiles/resnet50/V100", profile("resnet50", "V100"))
    samples = [
        {
            "gpu_type": "V100",
            "batch": batch,
            "sm_percent": share,
            "latency_ms": batch * (2.0 + 100 / share),
        }
        for share in (20, 40, 60, 80, 100)
        for batch in (1, 2)
    ]
    fresh_demo.call("POST", "networks/resnet50/samples", {"samples": samples})
    fit_here(fresh_demo)
    page = opened(fresh_demo, "predictors")
    caption = page.locator("figcaption")
    expect(caption).to_contain_text("resnet50 on T4")
    page.get_by_label("Fitted against measured").select_option("resnet50 on V100")
    expect(caption).to_contain_text("resnet50 on V100")
    page.reload()
    expect(caption).to_contain_text("resnet50 on V100")
    assert len(rows_of(page)) == 10
