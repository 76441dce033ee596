"""The questions of docs/sql.md, asked as a reader, against figures that were worked out by hand."""

from collections.abc import Iterator
from decimal import Decimal

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.base.listen import conninfo
from app.db.postgres_store import PostgresStore
from app.db.workloads import budgets, tasks
from app.postgres import server as postgres
from solvers.types.state import Task
from tests.conftest import copied_database
from tests.integration.fault_harness import with_store
from tests.integration.fleet import (
    START,
    make_gpu_reading,
    make_service_reading,
    observe,
)
from tests.integration.test_reports import Rows, a_busy_morning, at
from tools.documents.sql_questions import QUESTIONS

pytestmark = pytest.mark.integration

HEALTH = """
INSERT INTO fit_health (network, gpu_type, profile_id, now, planned, planned_at)
SELECT network, gpu_type, id, jsonb_build_object(
           'mean', ARRAY[0.0953102], 'covariance', ARRAY[ARRAY[0.01]], 'error', 0.042, 'band', 0.03,
           'alarm_since_s', 1772359200, 'readings', 7, 'seen_until_s', 1772362800), '{}', created_at
FROM profile WHERE is_current
"""
NOW = "timestamptz '2026-03-01 11:15+00'"


async def _fill(engine: AsyncEngine) -> None:
    """The morning of `test_reports`; at 11:10 chat had 400 requests, 10 of them late, and search 100; both GPUs drew.

    Of the 80 J of gpu-0 chat has 30 W of 40 W; search has no row at 100 %, so 60 W (cap less idle) of 70 W of 70 J.
    """
    await a_busy_morning(engine)
    seen = [
        make_service_reading(
            "chat", arrivals=400, served=400, in_slo=390, output_tokens=10**6
        ),
        make_service_reading("search", arrivals=100, served=100, in_slo=100),
    ]
    drawn = [make_gpu_reading(0, energy_j=80.0), make_gpu_reading(1, energy_j=70.0)]
    await observe(PostgresStore(engine), 2, at(11, 10), services=seen, gpus=drawn)
    late = Task(
        name="late",
        project="web",
        kind="offline",
        network="resnet50",
        batch=8,
        iterations=1000,
        due_in_s=60.0,
    )
    async with engine.begin() as connection:
        await connection.execute(text(HEALTH))
        await tasks.save(
            connection, tasks.TaskSubmission(task=late), at=START, actor="test"
        )
        for name, usd in (("small", "50"), ("large", "70")):
            await budgets.save(
                connection,
                name,
                project=None,
                period="day",
                limit_usd=Decimal(usd),
                action="warn",
                protected_priority=100.0,
                at=START,
            )


@pytest.fixture(scope="module")
def url(postgres_server: postgres.Server, migrated_template: str) -> Iterator[str]:
    with copied_database(postgres_server, template=migrated_template) as found:
        with_store(found, lambda _, engine: _fill(engine))
        yield found


def usd(words: str) -> Decimal:
    return Decimal(words)


ANSWERS: dict[str, Rows] = {
    # search 1.44 for 100 requests, chat 1.08 for 400; vision's were not counted.
    "What do 1,000 requests": [
        ("search", 100, usd("1.44"), usd("14.4")),
        ("chat", 400, usd("1.08"), usd("2.7")),
        ("vision", None, usd("0.30"), None),
    ],
    # In whole GPUs: web 1.48 + 0.60, default 0.92 + 0.60; by SM percent 1.38 and 1.44.
    # 60 % of a quarter of an hour at 2.40 USD.
    "What do a million tokens": [("chat", 1_000_000, Decimal("0.36"), Decimal("0.36"))],
    "Who would pay": [
        ("web", usd("1.38"), usd("0.70")),
        ("default", usd("1.44"), usd("0.08")),
    ],
    "What did sharing": [(usd("3.60"), usd("6.00"), usd("2.40"), usd("40.0"))],
    # Only hours that have both count: 11:00, with 0.36 for chat and 0.60 for search.
    "What did a tighter SLO": [
        ("chat", 100.0, 1, 400, usd("0.36"), usd("0.9")),
        ("search", 100.0, 1, 100, usd("0.60"), usd("6")),
    ],
    "How restless": [(at(0), 2, 4, 2)],
    # 60 J of 400 requests, 60 J of 100.
    "How much energy": [
        ("search", 100, usd("0.016667"), usd("0.6")),
        ("chat", 400, usd("0.016667"), usd("0.15")),
    ],
    "Which tasks are late": [("web", "late", 1, "queued", usd("0"), at(10, 1), None)],
    # exp(0.0953102) = 1.1.
    "Which predictions": [
        ("resnet50", "T4", "measured", usd("4.2"), usd("10.0"), True, 7)
    ],
    # 3.60 spent; 4.80 an hour for 12.75 hours: 64.80 in the end.
    "Which budgets": [
        (
            "small",
            "(whole cluster)",
            "day",
            usd("50"),
            usd("3.60"),
            usd("64.80"),
            at(0).replace(day=2),
        )
    ],
    # gpu-0: 60 % given; gpu-1: all of it. The readings say 50 % busy.
    "Which GPUs are given": [
        ("n1/gpu-0", "T4", usd("60.0"), usd("50.0")),
        ("n1/gpu-1", "T4", usd("100.0"), usd("50.0")),
    ],
    # 400 requests at 98 % leave 8 misses; 10 were.
    "Which services use up": [("web", "chat", 100.0, usd("98"), 400, 10, usd("125.0"))],
    "Which hours": [
        (at(10), usd("2.40"), usd("0.54")),
        (at(11), usd("1.20"), usd("0.24")),
    ],
}


def test_there_are_thirteen_and_each_is_answered_below() -> None:
    assert len(QUESTIONS) == 13
    assert [
        [words for words in ANSWERS if each.words.startswith(words)]
        for each in QUESTIONS
    ] == [[words] for words in ANSWERS]


@pytest.mark.parametrize("place", range(13), ids=list(ANSWERS))
def test_a_reader_gets_what_hand_arithmetic_says(url: str, place: int) -> None:
    question = QUESTIONS[place]
    with psycopg.connect(conninfo(url)) as connection:
        connection.execute("SET timezone = 'UTC'")
        connection.execute("SET ROLE plimsoll_reader")
        rows = connection.execute(
            question.sql.replace("now()", NOW).encode()
        ).fetchall()
    assert rows == list(ANSWERS.values())[place]
