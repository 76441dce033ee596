"""GPU: what it carries as planned, its last hour, and what uses more than it was given."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open
from tests.integration.api_harness import Api

pytestmark = pytest.mark.integration


def test_replicas_of_the_plan_stand_there_and_the_last_hour_is_drawn(
    demo: Api, opened: Open
) -> None:
    gpu = demo.get("plans/1")["gpus"][0]
    page = opened(demo, f"gpus/{gpu['id']}")
    for replica in gpu["replicas"]:
        expect(page.locator(f"tr[data-key='replica/{replica['id']}']")).to_contain_text(
            f"{replica['sm_percent']:.0f} %"
        )
    expect(page.locator(".uplot")).to_have_count(4)
    expect(page.get_by_text("a point for each 15 s")).to_be_visible()


@pytest.mark.thorough
def test_overuse_is_told_with_what_was_granted(fresh_demo: Api, opened: Open) -> None:
    gpu = fresh_demo.get("plans/1")["gpus"][0]
    replica, index = gpu["replicas"][0], int(gpu["id"].split("-")[-1])
    over = {"quantity": "memory", "granted": 1024, "used": 2048}
    use = {
        "kind": "replica",
        "name": replica["id"],
        "gpu_index": index,
        "service": replica["service"],
        "energy_j": 4,
    }
    fresh_demo.clock.advance(3.0)
    answer = fresh_demo.sync(
        gpu["node"],
        sequence=50,
        window_start_s=fresh_demo.clock.now().timestamp() - 2.0,
        uses=[{**use, "memory_used_mib": 2048, "sm_percent": 20, "over": [over]}],
    )
    assert answer.status_code == 200, answer.text
    page = opened(fresh_demo, f"gpus/{gpu['id']}")
    expect(page.locator(f"tr[data-key='replica/{replica['id']}']")).to_contain_text(
        "uses 2 GiB of 1 GiB memory"
    )
