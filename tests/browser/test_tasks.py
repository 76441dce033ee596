"""Tasks: how far each has come, and an operator who cancels one."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open
from tests.integration.api_harness import Api

pytestmark = pytest.mark.integration

TASK = {
    "kind": "Task",
    "metadata": {"name": "nightly", "project": "team-a"},
    "spec": {
        "kind": "offline",
        "network": "resnet50",
        "batch": 8,
        "inputs": 80_000,
        "deadline_after_s": 3600,
    },
}


def test_a_task_is_shown_with_its_deadline_and_cancelled_after_a_question(
    fresh_demo: Api, opened: Open
) -> None:
    page = opened(fresh_demo, "tasks", scope="viewer")
    expect(page.locator(".summary")).to_contain_text("There is no task")
    fresh_demo.put("tasks/nightly", TASK)
    row = page.locator("tbody tr", has_text="nightly")
    expect(row).to_contain_text("offline, resnet50, team-a")
    # Who only looks is offered no change.
    expect(page.locator("main button", has_text="Cancel")).to_have_count(0)
    page = opened(fresh_demo, "tasks")
    row = page.locator("tbody tr", has_text="nightly")
    expect(row.locator(".chip")).to_have_text("queued")
    expect(page.get_by_role("status").last).to_contain_text("1 task, 0 running")
    row.get_by_role("button", name="Cancel nightly").click()
    assert fresh_demo.get("tasks/nightly")["status"]["state"] == "queued"
    row.get_by_role("button", name="Yes, cancel nightly").click()
    expect(page.locator(".summary")).to_have_text("Every task is over.")
    assert fresh_demo.get("tasks/nightly")["status"]["state"] == "cancelled"
    page.get_by_label("show finished tasks").check()
    expect(row.locator(".chip")).to_have_text("cancelled")
