"""Services of language models: from a manifest to whole GPUs of a node, which the node is told to start them on."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.db.base.engine import make_engine
from app.db.postgres_store import PostgresStore
from solvers.types.llm import ServedModels, ServedStart
from tests.integration.api_harness import Api, ready_replicas, run_apart, running_api
from tests.integration.model_fleet import GPU_READING, NETWORK, put_model, service
from tests.integration.test_api_metrics import scraped

pytestmark = pytest.mark.integration

LOOSE_SLO = {"ttft_ms": 8000, "itl_ms": 200, "percentile": 0.9}


@pytest.fixture
def api(database: str) -> Iterator[Api]:
    """A node of two H100s and one of eight, both heard, and `chat`."""
    with running_api(database) as running:
        put_model(running)
        yield running


def test_a_language_model_gets_all_gpus_that_a_replica_spans(api: Api) -> None:
    outcome = api.tick()
    assert outcome.state == "target", outcome.reason
    plan = api.get(f"plans/{outcome.plan_id}")
    (planned,) = plan["document"]["llm_replicas"]
    assert planned["service"] == "chat"
    status = api.get("services/chat")["status"]
    assert status["replicas"] == {"H100": 1}
    told = [api.sync(name, sequence=2).json()["command"] for name in ("n1", "n2")]
    engines = [
        (command["node"], replica["engine"])
        for command in told
        for gpu in command["gpus"]
        for replica in gpu.get("replicas", [])
    ]
    ((name, engine),) = engines
    assert len(engine["gpus"]) == planned["tp"]
    assert engine["max_num_batched_tokens"] == planned["max_num_batched_tokens"]
    # Each of these GPUs is paid for.
    (command,) = (each for each in told if each["node"] == name)
    assert [gpu["index"] for gpu in command["gpus"]] == sorted(engine["gpus"])


def test_the_plan_tells_how_surely_capacities_are_known(api: Api) -> None:
    plan = api.get(f"plans/{api.tick().plan_id}")
    (said,) = (
        text
        for text in plan["document"]["report"]["messages"]
        if text.startswith("chat:")
    )
    assert "nine in ten between" in said


def test_starts_are_remembered_as_nodes_measured_them(api: Api) -> None:
    async def served() -> ServedModels:
        engine = make_engine(api.url, pool_size=2)
        try:
            return (await PostgresStore(engine).load_snapshot(api.clock.now())).served
        finally:
            await engine.dispose()

    assert run_apart(served()).starts == ()
    outcome = api.tick()
    assert outcome.state == "target", outcome.reason
    told = [api.sync(name, sequence=2).json()["command"] for name in ("n1", "n2")]
    ((name, index, replica),) = (
        (command["node"], gpu["index"], each["id"])
        for command in told
        for gpu in command["gpus"]
        for each in gpu.get("replicas", [])
    )
    launches = [
        {
            "replica": replica,
            "service": "chat",
            "gpu_index": index,
            "seconds": seconds,
        }
        for seconds in (300.0, 321.0, 400.0)
    ]
    api.sync(name, sequence=3, launches=launches)
    assert run_apart(served()).starts == (ServedStart("chat", "H100", 321.0),)


def test_the_manifest_comes_back_as_it_was_written(api: Api) -> None:
    spec = service(llm={"dtype": "fp8", "max_model_len": 8192})["spec"]
    api.put("services/chat", {**service(), "spec": spec})
    found = api.get("services/chat")["spec"]
    assert found["kind"] == "llm"
    assert found["slo"]["ttft_ms"] == 2000.0
    assert found["slo"]["latency_ms"] is None
    assert (found["llm"]["dtype"], found["llm"]["max_model_len"]) == ("fp8", 8192)


def test_a_model_may_ask_to_survive_the_loss_of_a_node(api: Api) -> None:
    api.put("services/chat", service(survive="node", survive_share=0.5))
    found = api.get("services/chat")["spec"]
    assert (found["survive"], found["survive_share"]) == ("node", 0.5)
    assert api.tick().state == "target"


def test_explanations_tell_what_its_replicas_can_take(api: Api) -> None:
    found = api.get(f"plans/{api.tick().plan_id}/explain")
    (chat,) = found["services"]
    (group,) = chat["replicas"]
    assert group["capacity_rps"] > 0.0
    assert group["tp"] in (2, 4, 8)
    (h100,) = found["gpu_types"]
    assert h100["used"] == group["tp"]


def test_a_what_if_prices_another_slo_and_another_degree(api: Api) -> None:
    asked = {
        "demand_rps": {"chat": 3.0},
        "scenarios": [
            {"name": "slower", "services": [service(slo=LOOSE_SLO)]},
            {"name": "tp 8", "services": [service(llm={"tp": 8})]},
        ],
    }
    answer = api.call("POST", "plans/preview", asked)
    assert answer.status_code == 200, answer.text
    cost = {
        each["question"]: each["cost_usd_per_hour"]
        for each in (answer.json()["today"], *answer.json()["answers"])
    }
    assert cost["slower"] <= cost["as it is"]
    assert cost["tp 8"] == 8 * 4.5


def test_what_cannot_be_planned_says_why_in_one_sentence(api: Api) -> None:
    refused = api.call("PUT", "services/other", service(slo={"ttft_ms": 100}))
    assert refused.status_code == 422
    assert "itl_ms" in refused.text
    api.put("services/chat", service(slo={"ttft_ms": 1, "itl_ms": 0.1}))
    plan = api.get(f"plans/{api.tick().plan_id}")
    (said,) = (
        text
        for text in plan["document"]["report"]["messages"]
        if text.startswith("chat:")
    )
    assert "raise it" in said


def test_metrics_count_a_replica_that_spans_gpus_once(api: Api) -> None:
    plan = api.get(f"plans/{api.tick().plan_id}")
    (node,) = {gpu["node"] for gpu in plan["gpus"] if gpu["replicas"]}
    gpus = [
        {**GPU_READING, "index": index} for index in range(2 if node == "n1" else 8)
    ]
    answer = api.sync(
        node,
        sequence=2,
        window_start_s=api.clock.now_s(),
        gpus=gpus,
        replicas=ready_replicas(api, node),
    )
    assert answer.status_code == 200, answer.text
    shown = scraped(api)
    (count,) = (
        count
        for series, count in shown.items()
        if series.startswith("service_current_replicas{")
    )
    assert count == 1


def test_what_engines_count_of_their_tokens_is_what_the_next_plan_is_sized_with(
    api: Api,
) -> None:
    plan = api.get(f"plans/{api.tick().plan_id}")
    (node,) = {gpu["node"] for gpu in plan["gpus"] if gpu["replicas"]}
    before = _capacity_message(plan)
    # Twenty sequences at a time, each with a token every 40 ms: not what was predicted.
    tokens = {"batches": 50_000, "execution_ms": 40.0}
    api.clock.advance(60.0)
    answer = api.sync(
        node,
        sequence=2,
        window_start_s=api.clock.now_s() - 50.0,
        gpus=[
            {**GPU_READING, "index": index} for index in range(2 if node == "n1" else 8)
        ],
        replicas=[{**each, **tokens} for each in ready_replicas(api, node)],
    )
    assert answer.status_code == 200, answer.text
    for name in ("n1", "n2"):
        api.sync(name, sequence=3, window_start_s=api.clock.now_s() - 5.0)
    after = _capacity_message(api.get(f"plans/{api.tick().plan_id}"))
    # The same degree carries less than was thought, or another one carries it now.
    assert after != before


def _capacity_message(plan: dict[str, Any]) -> str:
    messages = plan["document"]["report"]["messages"]
    (said,) = (text for text in messages if "is planned for" in text)
    return str(said)


def test_benchmarks_of_a_network_correct_the_next_plan(api: Api) -> None:
    def said() -> str:
        plan = api.get(f"plans/{api.tick().plan_id}")
        messages = plan["document"]["report"]["messages"]
        return next(text for text in messages if text.startswith("chat: a replica"))

    assert "(predicted;" in said()
    run = {
        "gpu_type": "H100",
        "tp": 2,
        "dtype": "bf16",
        "clients": 16,
        "prompt_tokens": 1000,
        "output_tokens": 200,
        "tpot_ms": 40,
    }
    runs = [run, {**run, "tp": 4}, {**run, "tp": 8}]
    network = {
        "kind": "Network",
        "metadata": {"name": NETWORK},
        "spec": {"runs": runs},
    }
    api.put(f"networks/{NETWORK}", network)
    assert "(calibrated;" in said()
    assert api.get(f"networks/{NETWORK}")["spec"]["runs"] == runs
    wrong = {**network, "spec": {"runs": [{**run, "tpot_ms": 0}]}}
    refused = api.call("PUT", f"networks/{NETWORK}", wrong, **{"If-Match": "*"})
    assert refused.status_code == 422
    assert "tpot_ms" in refused.text
