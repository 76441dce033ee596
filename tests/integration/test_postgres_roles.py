"""Who owns what in an embedded PostgreSQL: the role of the API is no superuser."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from app.postgres import server as postgres
from app.postgres.roles import SUPERUSER
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


def _as_superuser(server: postgres.Server, role: str = SUPERUSER) -> psycopg.Connection:
    conninfo = make_conninfo(server.conninfo, user=role, dbname="postgres")
    return psycopg.connect(conninfo, autocommit=True)


def test_a_start_that_ended_between_roles_and_database_is_gone_on_with(
    data_dir: Path,
) -> None:
    with _as_superuser(postgres.start(data_dir)) as superuser:
        superuser.execute("DROP DATABASE plimsoll")
    server = postgres.start(data_dir)
    assert scalar(server.url, OWNED_BY_OTHERS) == 0


def test_a_cluster_with_another_superuser_says_what_to_do(data_dir: Path) -> None:
    server = postgres.start(data_dir)
    with _as_superuser(server) as superuser:
        superuser.execute("CREATE ROLE renamer LOGIN SUPERUSER")
    with _as_superuser(server, "renamer") as superuser:
        superuser.execute("ALTER ROLE postgres RENAME TO another")
    with pytest.raises(postgres.StartFailed, match="an empty data directory"):
        postgres.start(data_dir)
