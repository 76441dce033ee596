"""Logs on the pages of a service and of tasks: chosen, followed, and shown as the text that they are."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Page, expect

from agents.processes.records import TASKS_FOLDER
from tests.browser.conftest import Open
from tests.browser.dashboards import running_dashboard
from tests.browser.test_tasks import TASK
from tests.integration.api_harness import V1, Api, Prepared
from tests.integration.fault_harness import execute, rows
from tests.integration.logging_node import LoggingNode
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

HOSTILE = b"\x1b[32mready\x1b[0m <img src=x onerror=alert(1)>\x1b[2J \xff\xe2\x80\xae\n"


def unfold_logs(page: Page) -> None:
    """By a key: what is still loaded above may move them while a mouse's button is down, and that is no click."""
    page.get_by_text("Logs", exact=True).press("Enter")


def test_a_replicas_log_is_shown_as_text_and_followed(
    fresh_demo: Api, opened: Open, tmp_path: Path
) -> None:
    ((replica, name),) = rows(
        fresh_demo.url,
        "SELECT r.replica, split_part(r.gpu, '/', 1) FROM plan_replica r JOIN target t USING (plan_id) "
        "WHERE upper_inf(t.valid) AND r.service = 'chat'",
    )
    node = LoggingNode(fresh_demo, name, tmp_path)
    node.write(replica, b"loading\n" + HOSTILE)
    with node.answering():
        page = opened(fresh_demo, "services/chat", scope="viewer")
        unfold_logs(page)
        log = page.get_by_role("region", name="Log")
        expect(log).to_have_text(
            "loading\nready <img src=x onerror=alert(1)>\\u001b[2J �\\u202e\n",
            use_inner_text=False,
        )
        expect(page.get_by_label("Replica")).to_have_value(replica)
        expect(page.locator("#logs [role=status]")).to_have_text(f"On node {name}.")
        page.get_by_label("Follow").check()
        node.write(replica, b"batch 1\n")
        expect(log).to_contain_text("\\u202e\nbatch 1")
        page.locator("#logs").get_by_label("Last").select_option("200 lines")
        page.get_by_label("Follow").uncheck()
        page.get_by_role("button", name="Refresh").click()
        expect(log).to_contain_text("batch 1")
        # A question that is not answered any more would keep the application from ending.
        page.goto("about:blank")
        until(
            lambda: rows(fresh_demo.url, "SELECT count(*) FROM log_request") == [(0,)]
        )


@pytest.mark.thorough
def test_why_there_is_no_log_is_said_and_another_replica_can_be_chosen(
    fresh_demo: Api, opened: Open, tmp_path: Path
) -> None:
    ((name,),) = rows(
        fresh_demo.url,
        "SELECT split_part(r.gpu, '/', 1) FROM plan_replica r JOIN target t USING (plan_id) "
        "WHERE upper_inf(t.valid) AND r.service = 'search'",
    )
    with LoggingNode(fresh_demo, name, tmp_path).answering():
        page = opened(fresh_demo, "services/search", scope="viewer")
        unfold_logs(page)
        said = page.locator("#logs [role=status]")
        expect(said).to_contain_text("has no log of replica")
        expect(page.get_by_label("Replica").locator("option")).to_have_text(
            [re.compile(r"search-g\d+-\d+ \(ready\)")]
        )


@pytest.mark.thorough
def test_a_tasks_log_opens_above_the_table(
    fresh_demo: Api, opened: Open, tmp_path: Path
) -> None:
    fresh_demo.put("tasks/nightly", TASK)
    # As after a plan that had room for it.
    execute(
        fresh_demo.url,
        """
        UPDATE task SET starts = 1 WHERE name = 'nightly';
        INSERT INTO allocation_task
        SELECT id, 'nightly', 'nightly', 'team-a', 'offline', 'resnet50', 10, 8, 1, 0
        FROM allocation WHERE upper_inf(generations) AND gpu LIKE 'n1/%' LIMIT 1
        """,
    )
    node = LoggingNode(fresh_demo, "n1", tmp_path)
    node.write("nightly", b"epoch 1\n", folder=TASKS_FOLDER)
    with node.answering():
        page = opened(fresh_demo, "tasks", scope="viewer")
        page.get_by_role("button", name="Log of nightly").click()
        dialog = page.get_by_role("dialog", name="Log of nightly")
        expect(dialog.get_by_role("region", name="Log")).to_have_text("epoch 1")
        dialog.get_by_role("button", name="Close").click()
        expect(dialog).to_have_count(0)


def test_a_question_that_a_node_has_not_answered_ends_with_the_control_plane(
    demo_fleet: Prepared,
) -> None:
    with ThreadPoolExecutor(1) as thread:
        with running_dashboard(demo_fleet) as api:
            # By a client that outlives the server.
            asked = thread.submit(
                httpx2.get,
                f"{api.client.base_url}{V1}/services/chat/logs",
                headers={"Authorization": f"Bearer {api.secrets['viewer']}"},
                timeout=PATIENCE_S,
            )
            until(lambda: rows(api.url, "SELECT 1 FROM log_request"))
        assert asked.result().status_code == 503
