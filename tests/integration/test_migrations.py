"""Schema revisions: up, down, two at once, and the Python tables against the schema."""

import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect, pool, text

from app.db.base import migrate
from app.db.base.tables import metadata

pytestmark = pytest.mark.integration


def _relations(url: str) -> list[tuple[str, ...]]:
    query = """
        SELECT n.nspname, c.relkind::text, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname IN ('public', 'report') AND c.relname NOT LIKE 'alembic_version%'
        UNION ALL
        SELECT n.nspname, 'function', p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname IN ('public', 'report')
          AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
        UNION ALL
        SELECT n.nspname, 'domain', t.typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
        WHERE n.nspname IN ('public', 'report') AND t.typtype = 'd'
        ORDER BY 1, 2, 3
    """
    engine = create_engine(url, poolclass=pool.NullPool)
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(text(query))]
    engine.dispose()
    return rows


def test_an_empty_database_is_told_what_to_do_and_is_at_head_afterwards(
    empty_database: str,
) -> None:
    message = migrate.check(empty_database)
    assert message is not None and "plimsoll db upgrade" in message
    migrate.upgrade(empty_database)
    assert migrate.check(empty_database) is None
    assert migrate.current(empty_database) == migrate.head()


def test_a_downgrade_removes_everything_and_an_upgrade_makes_the_same_again(
    database: str,
) -> None:
    before = _relations(database)
    command.downgrade(migrate._config(database), "base")
    assert _relations(database) == []
    migrate.upgrade(database)
    assert _relations(database) == before


def test_two_upgrades_at_once_both_succeed(empty_database: str) -> None:
    with ProcessPoolExecutor(
        max_workers=2, mp_context=multiprocessing.get_context("spawn")
    ) as processes:
        for outcome in [
            processes.submit(migrate.upgrade, empty_database) for _ in range(2)
        ]:
            outcome.result()
    assert migrate.check(empty_database) is None


@pytest.mark.parametrize(
    ("revision", "told"),
    [
        ("0036", "made before 0.1.0 and cannot be upgraded"),
        ("9999", "run a newer version"),
    ],
)
def test_a_database_of_another_program_is_refused_and_says_why(
    database: str, revision: str, told: str
) -> None:
    engine = create_engine(database, poolclass=pool.NullPool)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE alembic_version SET version_num = :revision"),
            {"revision": revision},
        )
    engine.dispose()
    message = migrate.check(database)
    assert message is not None and re.search(told, message)
    with pytest.raises(migrate.UnknownRevision, match=told):
        migrate.upgrade(database)


def test_every_table_says_what_it_holds(database: str) -> None:
    engine = create_engine(database, poolclass=pool.NullPool)
    inspector = inspect(engine)
    silent = [
        name
        for name in inspector.get_table_names()
        if name != "alembic_version" and not inspector.get_table_comment(name)["text"]
    ]
    engine.dispose()
    assert silent == []


def test_the_tables_in_python_are_those_of_the_schema(database: str) -> None:
    engine = create_engine(database, poolclass=pool.NullPool)
    with engine.connect() as connection:
        # Types are left out: the schema's are domains.
        wanted = {
            "compare_type": False,
            "include_object": lambda _, name, kind, *_rest: _is_compared(name, kind),
        }
        context = MigrationContext.configure(connection, opts=wanted)
        changes = compare_metadata(context, metadata)
    engine.dispose()
    flat = [
        part
        for change in changes
        for part in (change if isinstance(change, list) else [change])
    ]
    # Comments are the schema's alone.
    assert [part for part in flat if "comment" not in part[0]] == []


def _is_compared(name: str | None, kind: str) -> bool:
    return kind == "column" or (kind == "table" and name in metadata.tables)
