"""Fixtures shared by all tests; those that start PostgreSQL are for tests marked `integration`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from app.db.base import migrate
from app.postgres import server as postgres


@pytest.fixture(scope="session")
def postgres_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[postgres.Server]:
    """An embedded PostgreSQL, one for the session or for each xdist worker."""
    data_dir = tmp_path_factory.mktemp("postgres")
    try:
        yield postgres.start(data_dir)
    finally:
        postgres.stop(data_dir)
        # pytest keeps the directories of three sessions, at 40 MB for a cluster.
        shutil.rmtree(data_dir)


@pytest.fixture
def empty_database(postgres_server: postgres.Server) -> Iterator[str]:
    """The SQLAlchemy URL of a fresh database without any table, dropped after the test."""
    with copied_database(postgres_server, template="template1") as url:
        yield url


@pytest.fixture(scope="session")
def migrated_template(postgres_server: postgres.Server) -> str:
    """The name of a database at the newest revision, to be copied; migrating costs far more than copying."""
    name = "migrated"
    with psycopg.connect(postgres_server.conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    migrate.upgrade(postgres_server.database_url(name))
    return name


@pytest.fixture
def database(postgres_server: postgres.Server, migrated_template: str) -> Iterator[str]:
    """The SQLAlchemy URL of a fresh database with all tables and no rows but the first ones."""
    with copied_database(postgres_server, template=migrated_template) as url:
        yield url


@contextmanager
def copied_database(server: postgres.Server, *, template: str) -> Iterator[str]:
    """The SQLAlchemy URL of a uniquely named copy of a database that nobody is connected to; dropped at the end."""
    name = f"t_{uuid4().hex}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
        sql.Identifier(name), sql.Identifier(template)
    )
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(create)
        try:
            yield server.database_url(name)
        finally:
            connection.execute(
                sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
            )
