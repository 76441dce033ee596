"""A language model's service: what it promises is said in tokens, and its replica fills every GPU that it spans."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open
from tests.browser.dashboards import running_dashboard
from tests.integration.api_harness import Api, Prepared
from tests.integration.model_fleet import GPU_READING, put_model, ready_replicas

pytestmark = [pytest.mark.integration, pytest.mark.thorough]


@pytest.fixture(scope="module")
def model(no_fleet: Prepared) -> Iterator[Api]:
    """`chat`, planned on nodes that report its replica as ready."""
    with running_dashboard(no_fleet) as api:
        put_model(api)
        plan = api.get(f"plans/{api.tick().plan_id}")
        (gpu,) = (each for each in plan["gpus"] if each["replicas"])
        count = 2 if gpu["node"] == "n1" else 8
        answer = api.sync(
            gpu["node"],
            sequence=2,
            window_start_s=api.clock.now().timestamp() - 2.0,
            generation=plan["generation"],
            gpus=[{**GPU_READING, "index": index} for index in range(count)],
            replicas=ready_replicas(api, gpu["node"]),
        )
        assert answer.status_code == 200, answer.text
        yield api


def test_what_is_promised_is_said_and_changed_in_tokens(
    model: Api, opened: Open
) -> None:
    page = opened(model, "services/chat")
    expect(page.locator("#content")).to_contain_text(
        "95.0 % of its requests with a first token within 2,000 ms and further ones within 100 ms"
    )
    expect(page.locator("figcaption", has_text="Time to first token")).to_be_visible()
    page.get_by_text("Change its SLO, replicas or priority").click()
    page.get_by_label("Further tokens each within").fill("120")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("form.form [role=status]")).to_have_text(
        "Saved as generation 2."
    )
    slo = model.get("services/chat")["spec"]["slo"]
    assert (slo["ttft_ms"], slo["itl_ms"], slo["latency_ms"]) == (2000.0, 120.0, None)


def test_a_replica_fills_every_gpu_that_it_spans(model: Api, opened: Open) -> None:
    plan = model.get("plans?state=target&limit=1")["items"][0]
    (planned,) = model.get(f"plans/{plan['id']}")["document"]["llm_replicas"]
    page = opened(model, "fleet", scope="viewer")
    assert planned["tp"] > 1
    expect(page.locator(".part.ready", has_text="chat")).to_have_count(planned["tp"])


@pytest.mark.thorough
def test_a_new_model_is_read_from_yaml_into_fields_of_its_kind(
    model: Api, opened: Open
) -> None:
    page = opened(model, "new-service")
    expect(page.get_by_label("SLO latency")).to_be_visible()
    expect(page.get_by_label("First token within")).to_be_hidden()
    page.get_by_label("A manifest as").fill(
        "kind: Service\nmetadata: {name: writer}\nspec:\n  kind: llm\n  network: Llama-3.1-70B\n"
        "  slo: {ttft_ms: 2000, itl_ms: 100, percentile: 0.95}\n"
    )
    page.get_by_role("button", name="Read into the fields").click()
    expect(page.get_by_label("First token within")).to_have_value("2000")
    expect(page.get_by_label("SLO latency")).to_be_hidden()
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url("**/services/writer")
    assert model.get("services/writer")["spec"]["kind"] == "llm"
