"""Bad input against the whole API on a real database: nothing that an agent or a person sends may harm the others."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from agents.base.clock import ManualClock as AgentClock
from agents.base.protocol import NodeCommand, Observation, SyncReply
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.sync.ledger import Ledger
from agents.sync.transport import DirectTransport
from app.db.base.packing import packed
from tests.agents.factories import a_command, a_gpu, a_replica, an_empty_node
from tests.agents.paper_device import PaperDevice
from tests.integration.api_harness import (
    NOW,
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
def own_api(small_fleet: Prepared) -> Iterator[Api]:
    """Whose loop holds for no node that another test left behind."""
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


MAX_NAME = "n" * 253

# What passes the wire must pass the database: one observation that it refuses takes its whole batch down for ever.
ODD_BUT_ALLOWED: dict[str, dict[str, object]] = {
    "largest numbers": {
        "sequence": 2**53,
        "window_start_s": 1e12,
        "window_s": 3600.0,
        "generation": 2**53,
        "services": [
            {
                **reading(),
                "arrivals": 10**9,
                "served": 10**9,
                "latency_buckets": [[79, 10**9]],
            }
        ],
        "acks": [{"generation": 2**53, "status": "failed", "detail": "x" * 2000}],
    },
    "smallest numbers": {
        "window_start_s": 0.0,
        "window_s": 1e-7,
        "replicas": [replica_reading(sm_percent=5e-324, memory_mib=0)],
    },
    "a very short window": {"window_s": 1e-6, "services": [reading()]},
    "more in time than served": {
        "services": [{**reading(), "served": 1, "in_slo": 100}]
    },
    "the same twice": {
        "services": [reading(), reading()],
        "replicas": [replica_reading(), replica_reading()],
        "acks": [
            {"generation": 1, "status": "applied"},
            {"generation": 1, "status": "failed"},
        ],
    },
    "longest names": {
        "boot": MAX_NAME,
        "services": [reading(MAX_NAME)],
        "replicas": [replica_reading(id=MAX_NAME, service=MAX_NAME)],
    },
    "odd names": {
        "boot": "'; DROP TABLE node; --",
        "services": [reading("ключ \t\u2028 \U0001f600")],
        "problems": ["\x01\x7f", "{}", "NULL", ""],
        "agent_version": "v" * 253,
    },
    "strangers": {
        "services": [reading("nobody")],
        "replicas": [replica_reading(gpu_index=64_999)],
    },
}


@pytest.mark.parametrize("what", ODD_BUT_ALLOWED)
def test_what_passes_the_wire_passes_the_database(own_api: Api, what: str) -> None:
    name = f"odd-{list(ODD_BUT_ALLOWED).index(what)}"
    assert own_api.sync(name, **ODD_BUT_ALLOWED[what]).status_code == 200  # type: ignore[arg-type]
    assert own_api.execute(
        f"SELECT count(*) FROM observation WHERE node = '{name}'"
    ) == [(1,)]
    assert own_api.sync(name, sequence=7, boot="afterwards").json()["acknowledged"] == 7
    assert own_api.tick().plan_id is not None  # The loop still reads what it left.


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


@pytest.mark.parametrize(
    ("old", "new", "pointer"),
    [
        ('"power_w": 12', '"power_w": Infinity', "/gpus/0/power_w"),
        ('"power_w": 12', '"power_w": 1e999', "/gpus/0/power_w"),
        ('"energy_j": 24', '"energy_j": 1e13', "/gpus/0/energy_j"),
        ('"busy_percent": 0', '"busy_percent": "0"', "/gpus/0/busy_percent"),
        ('"generation": 0', '"generation": 1.5', "/generation"),
        ('"sequence": 1', '"sequence": 99999999999999999999999', "/sequence"),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_the_name_of_its_field(
    api: Api, old: str, new: str, pointer: str
) -> None:
    answer = send(api, json.dumps(observation()).replace(old, new, 1).encode())
    assert (answer.status_code, answer.headers["Content-Type"]) == (
        422,
        "application/problem+json",
    )
    assert [entry["pointer"] for entry in answer.json()["errors"]] == [pointer]


def agent_of(
    api: Api, name: str, directory: Path
) -> tuple[NodeAgent, AgentClock, list[NodeCommand]]:
    """A real agent that reaches the API, its clock, and commands that somebody slips into its next answers."""
    slipped: list[NodeCommand] = []
    clock = AgentClock(NOW.timestamp())

    async def exchange(sent: Observation, _wait_s: float) -> SyncReply:
        answer = await asyncio.to_thread(send, api, msgspec.json.encode(sent), name)
        assert answer.status_code == 200, answer.text
        reply = msgspec.json.decode(answer.content, type=SyncReply)
        return (
            msgspec.structs.replace(reply, command=slipped.pop()) if slipped else reply
        )

    agent = NodeAgent(
        AgentSettings(node=name, boot="boot-1"),
        PaperDevice(an_empty_node()),
        transport=DirectTransport(exchange),
        clock=clock,
        ledger=Ledger(directory),
    )
    return agent, clock, slipped


def test_a_replayed_command_of_an_older_generation_is_refused_and_the_audit_says_so(
    api: Api, tmp_path: Path
) -> None:
    api.put("nodes/stale", node("stale"))
    agent, clock, slipped = agent_of(api, "stale", tmp_path)
    newer, older = (
        a_command(a_gpu(a_replica("r1")), generation=number, node="stale")
        for number in (9, 4)
    )
    # It was made for this node once: refusals of other commands are not written down.
    api.execute(
        "INSERT INTO command (node, generation, body, created_at) "
        f"VALUES ('stale', 4, '\\x{packed(older).hex()}', '{NOW}') RETURNING node",
    )

    async def rounds(count: int) -> None:
        for _ in range(count):
            clock.advance(2.0)
            await agent.step()

    slipped.append(newer)
    asyncio.run(rounds(2))
    assert agent.command == newer
    slipped.append(older)
    asyncio.run(rounds(3))
    assert agent.command == newer
    refusals = api.execute(
        "SELECT generation, detail FROM acknowledgement WHERE node = 'stale' AND status = 'refused'",
    )
    assert [generation for generation, _ in refusals] == [4]
    told = api.get("events?kind=CommandRefused")["items"]
    assert [event["subject"] for event in told] == ["node/stale"]
    assert "generation 4 is older than 9" in told[0]["reason"]
