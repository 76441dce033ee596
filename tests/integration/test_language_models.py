"""Services of language models: from a manifest to whole GPUs of a node, which the node is told to start them on."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.db.postgres_store import PostgresStore
from app.postgres import server as postgres
from solvers.types.llm import ServedModels, ServedStart
from tests.integration.api_harness import Api, Prepared, prepared
from tests.integration.model_fleet import (
    GPU_READING,
    NETWORK,
    put_model,
    ready_replicas,
    service,
)
from tests.integration.test_api_metrics import scraped
from tests.waiting import until

pytestmark = pytest.mark.integration

LOOSE_SLO = {"ttft_ms": 8000, "itl_ms": 200, "percentile": 0.9}


@pytest.fixture(scope="module")
def models(
    postgres_server: postgres.Server, migrated_template: str
) -> Iterator[Prepared]:
    """A node of two H100s and one of eight, both heard, and `chat`."""
    with prepared(postgres_server, migrated_template, put_model) as found:
        yield found


@pytest.fixture
def api(models: Prepared) -> Iterator[Api]:
    with models.running_api() as running:
        yield running


def messages(api: Api, start: str) -> list[str]:
    """What the report of the next plan says, of what begins so."""
    plan = api.get(f"plans/{api.tick().plan_id}")
    said: list[str] = plan["document"]["report"]["messages"]
    return [text for text in said if text.startswith(start)]


def commands(api: Api) -> list[Any]:
    """What the next plan, or the one that was just made, tells both nodes; the API hears of its push a moment later."""
    api.tick()

    def told() -> list[Any]:
        answers = [api.sync(name, sequence=2).json() for name in ("n1", "n2")]
        found = [answer["command"] for answer in answers]
        return [each for each in found if each] if any(found) else []

    return until(told)


def hosting_node(api: Api) -> str:
    """The node that the next plan has the replica on."""
    plan = api.get(f"plans/{api.tick().plan_id}")
    (node,) = {str(gpu["node"]) for gpu in plan["gpus"] if gpu["replicas"]}
    return node


def readings(node: str) -> list[dict[str, object]]:
    """Of all GPUs of that node, which are busy."""
    count = 2 if node == "n1" else 8
    return [{**GPU_READING, "index": index} for index in range(count)]


def test_a_language_model_gets_all_gpus_that_a_replica_spans_and_the_plan_says_why(
    api: Api,
) -> None:
    outcome = api.tick()
    assert outcome.state == "target", outcome.reason
    plan = api.get(f"plans/{outcome.plan_id}")
    (planned,) = plan["document"]["llm_replicas"]
    assert planned["service"] == "chat"
    assert api.get("services/chat")["status"]["replicas"] == {"H100": 1}
    told = commands(api)
    ((name, engine),) = [
        (command["node"], replica["engine"])
        for command in told
        for gpu in command["gpus"]
        for replica in gpu.get("replicas", [])
    ]
    assert len(engine["gpus"]) == planned["tp"]
    assert engine["max_num_batched_tokens"] == planned["max_num_batched_tokens"]
    # Each of these GPUs is paid for.
    (command,) = (each for each in told if each["node"] == name)
    assert [gpu["index"] for gpu in command["gpus"]] == sorted(engine["gpus"])
    # How surely capacities are known.
    said = plan["document"]["report"]["messages"]
    (sure,) = (text for text in said if text.startswith("chat:"))
    assert "nine in ten between" in sure
    # What its replicas can take.
    found = api.get(f"plans/{outcome.plan_id}/explain")
    (chat,) = found["services"]
    (group,) = chat["replicas"]
    assert group["capacity_rps"] > 0.0
    assert group["tp"] in (2, 4, 8)
    (h100,) = found["gpu_types"]
    assert h100["used"] == group["tp"]


def test_starts_are_remembered_as_nodes_measured_them(api: Api) -> None:
    def served() -> ServedModels:
        store, now = PostgresStore(api.engine), api.clock.now()
        return api.on_engine(lambda _: store.load_snapshot(now)).served

    assert served().starts == ()
    told = commands(api)
    ((name, index, replica),) = (
        (command["node"], gpu["index"], each["id"])
        for command in told
        for gpu in command["gpus"]
        for each in gpu.get("replicas", [])
    )
    launch = {"replica": replica, "service": "chat", "gpu_index": index}
    launches = [{**launch, "seconds": seconds} for seconds in (300.0, 321.0, 400.0)]
    api.sync(name, sequence=3, launches=launches)
    assert served().starts == (ServedStart("chat", "H100", 321.0),)


def test_a_model_may_ask_to_survive_the_loss_of_a_node_and_its_manifest_comes_back(
    api: Api,
) -> None:
    llm = {"dtype": "fp8", "max_model_len": 8192}
    api.put("services/chat", service(survive="node", survive_share=0.5, llm=llm))
    found = api.get("services/chat")["spec"]
    assert (found["survive"], found["survive_share"]) == ("node", 0.5)
    assert (found["kind"], found["slo"]["ttft_ms"]) == ("llm", 2000.0)
    assert found["slo"]["latency_ms"] is None
    assert found["llm"].items() >= llm.items()
    assert api.tick().state == "target"


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
    (said,) = messages(api, "chat:")
    assert "raise it" in said


def test_what_an_engine_would_not_start_with_is_refused_where_it_is_stated(
    api: Api,
) -> None:
    config = {
        "num_hidden_layers": 28,
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
        "max_position_embeddings": 8192,
    }
    metadata = {"name": "own"}
    network = {"kind": "Network", "metadata": metadata, "spec": {"config": config}}
    api.put("networks/own", network)

    def refusal(**llm: object) -> str:
        manifest = service(network="own", llm=llm)
        answer = api.call("PUT", "services/chat", manifest, **{"If-Match": "*"})
        assert answer.status_code == 422, answer.text
        return str(answer.text)

    assert "28 heads cannot be divided by 8" in refusal(tp=8, max_model_len=8192)
    assert "16384 is more than 8192" in refusal(tp=4)
    embedding = {**config, "architectures": ["BertModel"]}
    wrong = {**network, "spec": {"config": embedding}}
    refused = api.call("PUT", "networks/own", wrong, **{"If-Match": "*"})
    assert refused.status_code == 422
    assert "generates no tokens" in refused.text


def test_metrics_count_a_replica_that_spans_gpus_once(api: Api) -> None:
    node = hosting_node(api)
    answer = api.sync(
        node,
        sequence=2,
        window_start_s=api.clock.now_s(),
        gpus=readings(node),
        replicas=ready_replicas(api, node),
    )
    assert answer.status_code == 200, answer.text
    count = "service_current_replicas{"
    assert [n for series, n in scraped(api).items() if series.startswith(count)] == [1]


def test_what_engines_count_of_their_tokens_is_what_the_next_plan_is_sized_with(
    api: Api,
) -> None:
    node = hosting_node(api)
    before = messages(api, "chat: a replica")
    # Twenty sequences at a time, each with a token every 40 ms: not what was predicted.
    tokens = {"batches": 50_000, "execution_ms": 40.0}
    api.clock.advance(60.0)
    answer = api.sync(
        node,
        sequence=2,
        window_start_s=api.clock.now_s() - 50.0,
        gpus=readings(node),
        replicas=[{**each, **tokens} for each in ready_replicas(api, node)],
    )
    assert answer.status_code == 200, answer.text
    for name in ("n1", "n2"):
        api.sync(name, sequence=3, window_start_s=api.clock.now_s() - 5.0)
    # The same degree carries less than was thought, or another one carries it now.
    assert messages(api, "chat: a replica") != before


def test_benchmarks_of_a_network_correct_the_next_plan(api: Api) -> None:
    assert "(predicted;" in messages(api, "chat: a replica")[0]
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
    metadata = {"name": NETWORK}
    network = {"kind": "Network", "metadata": metadata, "spec": {"runs": runs}}
    api.put(f"networks/{NETWORK}", network)
    assert "(calibrated;" in messages(api, "chat: a replica")[0]
    assert api.get(f"networks/{NETWORK}")["spec"]["runs"] == runs
    wrong = {**network, "spec": {"runs": [{**run, "tpot_ms": 0}]}}
    refused = api.call("PUT", f"networks/{NETWORK}", wrong, **{"If-Match": "*"})
    assert refused.status_code == 422
    assert "tpot_ms" in refused.text
