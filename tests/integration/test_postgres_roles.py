"""Who owns what in an embedded PostgreSQL: the role of the API is no superuser, also in data directories of before."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from alembic import command

from app.db.base import migrate
from app.postgres import server as postgres
from tests.integration.fault_harness import execute, scalar

pytestmark = pytest.mark.integration

OWNED_BY_OTHERS = """
SELECT count(*) FROM (
    SELECT relowner AS owner, oid FROM pg_class WHERE relnamespace::regnamespace::text IN ('public', 'report')
    UNION ALL SELECT datdba, oid FROM pg_database WHERE NOT datistemplate AND datname <> 'postgres'
    UNION ALL SELECT nspowner, oid FROM pg_namespace WHERE nspname = 'report'
) AS ours WHERE owner <> 'plimsoll'::regrole
"""
ROLES = (
    "SELECT string_agg(rolname || CASE WHEN rolsuper THEN ' super' WHEN rolcreaterole THEN ' roles' ELSE '' END, ', ' "
    "ORDER BY rolname) FROM pg_roles WHERE rolname NOT LIKE 'pg\\_%'"
)


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "postgres"
    postgres.stop(tmp_path / "postgres")


def test_the_apis_role_is_no_superuser_and_owns_the_database(
    postgres_server: postgres.Server,
) -> None:
    assert scalar(postgres_server.url, "SELECT current_user::text") == "plimsoll"
    roles = "plimsoll, plimsoll_reader, postgres super"
    assert scalar(postgres_server.url, ROLES) == roles
    assert scalar(postgres_server.url, OWNED_BY_OTHERS) == 0
    for statement in (
        "COPY (SELECT 1) TO PROGRAM 'true'",
        "SELECT pg_read_file('PG_VERSION')",
        "ALTER SYSTEM SET fsync = off",
        "CREATE ROLE mine SUPERUSER",
        "SET ROLE postgres",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            execute(postgres_server.url, statement)


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_an_older_cluster_is_given_to_a_role_that_is_no_superuser(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, *, is_interrupted: bool
) -> None:
    with monkeypatch.context() as as_before:
        as_before.setattr(postgres, "prepare_roles", lambda _: None)
        old = postgres.start(data_dir)
        migrate.upgrade(old.url)
        execute(
            old.url, "INSERT INTO project (name, created_at) VALUES ('kept', now())"
        )
        execute(old.url, "CREATE DATABASE other")
        if is_interrupted:
            execute(old.url, "CREATE ROLE plimsoll_renamer LOGIN SUPERUSER")
        assert scalar(old.url, ROLES) != "plimsoll, plimsoll_reader, postgres super"
        # Processes of before may go on, and keep the rights of their sessions.
        with psycopg.connect(old.conninfo) as still_there:
            as_before.undo()
            server = postgres.start(data_dir)
            assert not server.started_here
            assert still_there.execute("SELECT 1").fetchone() == (1,)

    assert scalar(server.url, ROLES) == "plimsoll, plimsoll_reader, postgres super"
    assert scalar(server.url, OWNED_BY_OTHERS) == 0
    assert scalar(server.url, "SELECT count(*) FROM project WHERE name = 'kept'") == 1
    # What a migration and the daily maintenance do, by the owner's rights alone.
    command.downgrade(migrate._config(server.url), "0100")
    migrate.upgrade(server.url)
    execute(server.url, "CREATE VIEW report.later AS SELECT 1 AS one")
    readable = "SELECT has_table_privilege('plimsoll_reader', 'report.later', 'SELECT')"
    assert scalar(server.url, readable) is True
    execute(server.url, "DROP DATABASE other")


def test_an_older_cluster_with_a_role_in_the_way_says_what_to_do(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as as_before:
        as_before.setattr(postgres, "prepare_roles", lambda _: None)
        old = postgres.start(data_dir)
        execute(old.url, "CREATE ROLE postgres LOGIN")
    # At each start, and without a superuser more.
    for _ in range(2):
        with pytest.raises(postgres.StartFailed, match="ALTER ROLE postgres RENAME"):
            postgres.start(data_dir)
        assert scalar(old.url, ROLES) == "plimsoll super, postgres"
    execute(old.url, "ALTER ROLE postgres RENAME TO another")
    server = postgres.start(data_dir)
    assert (
        scalar(server.url, ROLES)
        == "another, plimsoll, plimsoll_reader, postgres super"
    )
