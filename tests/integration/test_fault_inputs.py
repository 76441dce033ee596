"""Bad input against the whole API on a real database: nothing that an agent or a person sends may harm the others."""

import asyncio
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tests.integration.api_harness import (
    Api,
    Prepared,
    gpu_type,
    network,
    node,
    observation,
    profile,
    reading,
    service,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def api(small_fleet: Prepared) -> Iterator[Api]:
    """One control plane for all: each test has a node of its own."""
    with small_fleet.running_api() as running:
        yield running


@pytest.fixture
def empty_api(no_fleet: Prepared) -> Iterator[Api]:
    """A control plane that knows a GPU type, a network and its profile, but no node."""
    with no_fleet.running_api() as running:
        running.put("gpu-types/T4", gpu_type())
        running.put("networks/resnet50", network())
        running.put("profiles/resnet50/T4", profile())
        yield running


def send(api: Api, body: bytes | Iterator[bytes], name: str = "n1") -> Any:
    """The answer to a body that is no tidy observation."""
    headers = {
        "Authorization": f"Bearer {api.secrets[api.token_of(name)]}",
        "Content-Type": "application/json",
    }
    return api.client.post(f"/api/v1/nodes/{name}/sync", content=body, headers=headers)


def replica_reading(**fields: object) -> dict[str, object]:
    base = {
        "id": "r",
        "service": "chat",
        "gpu_index": 0,
        "state": "ready",
        "sm_percent": 50,
        "batch": 1,
    }
    return {**base, "memory_mib": 1000, **fields}


HOSTILE = [
    "NaN",
    "-1",
    "1e999",
    "1e308",
    "null",
    '"1"',
    "true",
    "[]",
    "{}",
    "-0.0",
    '"\\ud800"',
    '""',
]


def test_any_value_in_any_place_is_taken_or_refused_and_the_next_one_is_taken(
    api: Api,
) -> None:
    tidy = json.dumps(
        observation(
            replicas=[replica_reading(batches=1, requests=2, execution_ms=3.5)],
            services=[reading()],
            acks=[{"generation": 4, "status": "applied", "detail": "fine"}],
            problems=["none"],
            agent_version="1",
        )
    )
    places = [place for place, letter in enumerate(tidy) if letter == ":"]
    random = Random(7)
    answers: list[int] = []
    for round_ in range(100):
        place = random.choice(places)
        end = min(found for end in ",}]" if (found := tidy.find(end, place)) > 0)
        odd = random.choice([*HOSTILE, "9" * 400])
        body = f"{tidy[: place + 1]} {odd}{tidy[end:]}"
        answers.append(send(api, body.encode()).status_code)
        assert answers[-1] in (200, 400, 422), (round_, place)
    assert {200, 422} <= set(answers)
    assert api.sync(sequence=10**6, boot="afterwards").status_code == 200


@pytest.mark.parametrize("announces", [True, False])
def test_ten_megabytes_are_refused_without_being_read(
    api: Api, announces: bool
) -> None:
    block = b" " * 1_000_000
    answer = send(api, block * 10 if announces else iter([block] * 10))
    assert (answer.status_code, answer.json()["code"]) == (413, "too-large")


def test_a_part_that_hangs_does_not_hang_the_probe(
    empty_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.api.caches.readiness.CHECK_LIMIT_S", 0.05)
    empty_api.client.app.state.parts.checks["stuck"] = asyncio.Event().wait  # type: ignore[attr-defined]
    answer = empty_api.client.get("/readyz")
    assert answer.status_code == 503
    assert "stuck" in answer.json()["checks"]
    assert empty_api.client.get("/livez").status_code == 200


def test_an_api_whose_solver_compiles_is_not_ready_and_says_for_how_long(
    empty_api: Api,
) -> None:
    compiling = empty_api.client.app.state.parts.compiling  # type: ignore[attr-defined]
    compiling.set()
    answer = empty_api.client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"] == {"solver": "compiling kernels (a minute, once)"}


def test_two_agents_with_one_name_are_told_of_once_and_a_restart_is_none(
    api: Api,
) -> None:
    def report(boot: str, sequence: int) -> None:
        api.clock.advance(2.0)
        start_s = api.clock.now().timestamp() - 2.0
        said = {"boot": boot, "sequence": sequence, "window_start_s": start_s}
        assert api.sync("shared", **said).status_code == 200

    for boot, sequence in (("a", 1), ("a", 2), ("b", 1), ("b", 2)):
        report(boot, sequence)
    assert api.get("events?kind=NodeNameShared")["items"] == []
    for sequence in (3, 4, 5):
        report("a", sequence)
        report("b", sequence)
    (told,) = api.get("events?kind=NodeNameShared")["items"]
    assert told["subject"] == "node/shared"
    assert "two agents report under this name" in told["reason"]


def test_without_any_gpu_the_loop_holds_and_says_what_to_do(empty_api: Api) -> None:
    empty_api.put("services/chat", service(scaling={"min_replicas": 1}))
    held = empty_api.tick()
    assert (held.state, held.generation) == (None, 0)
    (line,) = empty_api.get("events?kind=LoopHeld")["items"]
    for words in (held.reason, line["reason"]):
        assert "no GPU is registered" in words


def test_when_every_gpu_is_cordoned_nothing_is_placed_and_the_service_says_so(
    empty_api: Api,
) -> None:
    empty_api.put("nodes/n1", node(cordoned=True))
    empty_api.put("services/chat", service(scaling={"min_replicas": 1}))
    empty_api.sync(services=[reading()])
    empty_api.clock.advance(2.0)
    outcome = empty_api.tick()
    assert outcome.state in ("target", "kept")
    assert empty_api.execute("SELECT count(*) FROM plan_replica") == [(0,)]
    told = empty_api.get("services/chat")["status"]["conditions"]
    assert {each["type"]: each["status"] for each in told}["Ready"] == "False"
