"""GPUs that their node's agent does not report, or that an operator acquits: what becomes of their health."""

from collections.abc import Iterator
from datetime import timedelta

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.version import REPLY_FIELDS, TAKES_HEADER, takes
from app.db.fleet.gpu_health import BLIND_AFTER, NEVER_AFTER
from app.db.maintenance import roll_up
from app.db.postgres_store import PostgresStore
from app.store.node_book import UNREPORTED_AFTER
from tests.integration.api_harness import Api, Prepared, observation, service
from tests.integration.fleet import (
    START,
    make_gpu_reading,
    make_observation,
    observe,
    on_fleet,
)

pytestmark = pytest.mark.integration

BOTH = [make_gpu_reading(0), make_gpu_reading(1)]
SECOND = timedelta(seconds=1)
NOT_REPORTED = "GPU 0: not reported by its agent"


async def health(engine: AsyncEngine) -> list[bool]:
    async with engine.connect() as connection:
        query = text("SELECT healthy FROM gpu WHERE node = 'n1' ORDER BY index")
        return list((await connection.execute(query)).scalars())


async def events(engine: AsyncEngine) -> list[tuple[str, str]]:
    async with engine.connect() as connection:
        query = "SELECT kind, reason FROM event WHERE kind LIKE 'Gpu%' ORDER BY id"
        return [(row.kind, row.reason) for row in await connection.execute(text(query))]


@on_fleet()
async def test_a_gpu_that_a_new_start_of_its_agent_does_not_report_is_ill_at_once(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await observe(store, 1, START, gpus=BOTH)
    at = START + 4 * SECOND
    await observe(store, 1, at, boot="b2", gpus=[make_gpu_reading(1)])
    assert await health(engine) == [False, True]
    assert await events(engine) == [("GpuFailed", NOT_REPORTED)]
    # Told once, however long it is missing.
    await observe(store, 2, at + 2 * SECOND, boot="b2", gpus=[make_gpu_reading(1)])
    assert len(await events(engine)) == 1
    await observe(store, 3, at + 4 * SECOND, boot="b2", gpus=BOTH)
    assert await health(engine) == [True, True]
    assert (await events(engine))[1:] == [("GpuRecovered", "GPU 0 accepts work again")]


@on_fleet()
async def test_a_gpu_that_one_start_no_longer_reports_is_ill_after_a_moment(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await observe(store, 1, START, gpus=BOTH)
    soon = START + 4 * SECOND
    await observe(store, 2, soon, gpus=[make_gpu_reading(1)])
    assert await health(engine) == [True, True]
    late = START + UNREPORTED_AFTER + SECOND
    await observe(store, 3, late, gpus=[make_gpu_reading(1)])
    assert await health(engine) == [False, True]


@on_fleet()
async def test_a_gpu_that_was_registered_and_never_reported_is_ill_in_the_end(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await observe(store, 1, START, gpus=[make_gpu_reading(1)])
    await observe(store, 2, START + NEVER_AFTER, gpus=[make_gpu_reading(1)])
    assert await health(engine) == [True, True]
    late = START + NEVER_AFTER + SECOND
    await observe(store, 3, late, gpus=[make_gpu_reading(1)])
    assert await health(engine) == [False, True]
    assert await events(engine) == [("GpuFailed", NOT_REPORTED)]


@on_fleet()
async def test_the_gpus_of_an_agent_that_reads_none_are_ill_after_a_minute_if_it_says_why(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    await observe(store, 1, START, gpus=BOTH)
    for sequence, problems, after, expected in (
        (2, ("no GPU answers",), BLIND_AFTER, [True, True]),
        # Without a word of why, as of an agent whose readings are elsewhere.
        (3, (), BLIND_AFTER + 5 * SECOND, [True, True]),
        (4, ("no GPU answers",), BLIND_AFTER + 9 * SECOND, [False, False]),
    ):
        seen = make_observation(sequence, START + after - SECOND)
        seen = msgspec.structs.replace(seen, problems=problems)
        await store.ingest((seen,), START + after - SECOND)
        assert await health(engine) == expected


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        yield running


class Agent:
    """Reports GPU 0 as it is told to."""

    def __init__(self, api: Api) -> None:
        self._api, self._sequence = api, 0

    def sync(self, *, healthy: bool, **headers: str) -> dict[str, object]:
        self._sequence += 1
        self._api.clock.advance(2.0)
        seen = observation(
            sequence=self._sequence,
            window_start_s=self._api.clock.now_s() - 2.0,
            problems=[] if healthy else ["GPU 0: the driver told Xid 79; ..."],
        )
        seen["gpus"][0]["healthy"] = healthy
        token = self._api.token_of("n1")
        answer = self._api.call("POST", "nodes/n1/sync", seen, token=token, **headers)
        assert answer.status_code == 200, answer.text
        found: dict[str, object] = answer.json()
        return found


def test_what_a_driver_does_not_tell_is_null_in_readings_and_left_out_of_metrics(
    api: Api,
) -> None:
    seen = observation()
    told = dict(seen["gpus"][0])
    seen["gpus"][0] |= {"power_w": None, "memory_used_mib": None, "clock_mhz": None}
    answer = api.call("POST", "nodes/n1/sync", seen, token=api.token_of("n1"))
    assert answer.status_code == 200, answer.text
    (first,) = api.get("gpus/n1/gpu-0/readings")["readings"]
    (other,) = api.get("gpus/n1/gpu-1/readings")["readings"]
    for name in ("power_w", "memory_used_mib", "clock_mhz"):
        assert (first[name], other[name]) == (None, told[name])


@on_fleet()
async def test_hours_of_gpus_that_tell_little_are_summed_from_what_they_tell(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    blind = msgspec.structs.replace(
        make_gpu_reading(0), power_w=None, memory_used_mib=None, clock_mhz=None
    )
    at = START + timedelta(minutes=9)
    await observe(store, 1, at, gpus=[blind, make_gpu_reading(1)])
    half = msgspec.structs.replace(make_gpu_reading(1), memory_used_mib=None)
    await observe(store, 2, at + 2 * SECOND, gpus=[blind, half])
    await roll_up(engine, START + timedelta(hours=2))
    async with engine.connect() as connection:
        query = text(
            "SELECT observed_s, energy_j, memory_mib_s FROM gpu_hour ORDER BY gpu"
        )
        rows = [tuple(row) for row in await connection.execute(query)]
    # GPU 1: 4096 MiB in the two seconds that are known, so in all four.
    assert rows == [(4.0, 160.0, 0.0), (4.0, 160.0, 4096.0 * 4)]


TAKES = {TAKES_HEADER.replace("-", "_"): takes(REPLY_FIELDS)}


def test_an_acquittal_is_told_to_the_agent_until_it_reports_the_gpu_healthy(
    api: Api,
) -> None:
    agent = Agent(api)
    assert "acquitted" not in agent.sync(healthy=False, **TAKES)
    assert api.status("POST", "nodes/n1/acquit", {"gpus": [7]}) == 404
    answer = api.call("POST", "nodes/n1/acquit", {"gpus": [0, 1]})
    assert answer.json()["status"]["healthy_gpus"] == 1
    # An agent of before takes no answer with it.
    assert "acquitted" not in agent.sync(healthy=False)
    first = agent.sync(healthy=False, **TAKES)["acquitted"]
    assert [index for index, _ in first] == [0]  # type: ignore[attr-defined]
    assert agent.sync(healthy=False, **TAKES)["acquitted"] == first
    assert "acquitted" not in agent.sync(healthy=True, **TAKES)
    # What fails later is another matter.
    assert "acquitted" not in agent.sync(healthy=False, **TAKES)
    api.call("POST", "nodes/n1/acquit")
    ((_, number),) = agent.sync(healthy=False, **TAKES)["acquitted"]  # type: ignore[misc,attr-defined]
    assert number > first[0][1]  # type: ignore[index]
    kinds = [each["kind"] for each in api.get("events?subject=node/n1")["items"]]
    assert kinds.count("GpusAcquitted") == 2


def test_a_refusal_is_said_in_the_nodes_condition(api: Api) -> None:
    api.put("services/chat", service(scaling={"min_replicas": 1}))
    api.sync()
    generation = api.tick().generation
    words = "there is no GPU 0; this node has [1]"
    ack = {"generation": generation, "status": "refused", "detail": words}
    api.clock.advance(2.0)
    start_s = api.clock.now_s() - 2.0
    api.sync(sequence=2, window_start_s=start_s, acks=[ack])
    (applied,) = api.get("nodes/n1")["status"]["conditions"]
    assert (applied["status"], applied["reason"]) == ("False", "CommandRefused")
    assert words in applied["message"]
