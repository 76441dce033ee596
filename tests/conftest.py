"""Fixtures shared by all tests; those that start PostgreSQL are for tests marked `integration`."""

from __future__ import annotations

import gc
import logging
import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from app.db.base import migrate
from app.postgres import server as postgres
from app.postgres.roles import SUPERUSER
from tests.examples import load_profile
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    # A test that needs no control plane does not wait for its imports.
    from tests.integration.api_harness import Prepared


load_profile()

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 * 2**30
"""That several sessions leave enough to each other; clusters and files of one with four workers stay below two GiB."""

if (
    os.access(_MEMORY, os.W_OK)
    and shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES
    # Tests start programs from their folders.
    and not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
):
    # There a database is copied in a tenth of the time. xdist's workers read it, too.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and items stay to the end: looking through them for garbage took a third of the time of collecting."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # Solvers' programs and syntax trees are many live objects, through which one in ten seconds went.
        gc.set_threshold(100_000)
        gc.enable()


def pytest_runtest_logstart() -> None:
    """What a command set up in the test before, as it ran in this process, would hide lines from the next one."""
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    # pytest's own are of derived classes.
    root.handlers[:] = [
        each for each in root.handlers if type(each) is not logging.StreamHandler
    ]


_PATIENT: dict[str, float] = {
    "app.db.base.engine.LOCK_TIMEOUT_MS": 1000 * PATIENCE_S,
    "app.db.base.engine.POOL_TIMEOUT_S": PATIENCE_S,
    "app.db.base.engine.CONNECT_TIMEOUT_S": PATIENCE_S,
    "app.api.caches.noted_accesses.WRITTEN_WITHIN_S": PATIENCE_S,
    "app.api.caches.readiness.CHECK_LIMIT_S": PATIENCE_S,
    "app.api.workloads.logs.ANSWER_S": PATIENCE_S,
}
"""Limits of some seconds in the product: on a busy machine a process stands still for longer than people wait."""


@pytest.fixture(scope="session")
def patience() -> Iterator[None]:
    """None of them ends a wait of a test that has a database, nor of those after it."""
    with pytest.MonkeyPatch.context() as patched:
        for name, limit in _PATIENT.items():
            patched.setattr(name, int(limit))
        yield


@pytest.fixture(scope="session")
def postgres_server(
    tmp_path_factory: pytest.TempPathFactory, patience: None
) -> Iterator[postgres.Server]:
    """An embedded PostgreSQL, one for the session or for each xdist worker."""
    data_dir = tmp_path_factory.mktemp("postgres")
    try:
        server = postgres.start(data_dir, timeout_s=PATIENCE_S)
        _let_a_crash_lose_everything(server)
        yield server
    finally:
        postgres.stop(data_dir)
        # pytest keeps what lies outside a test's own directory.
        shutil.rmtree(data_dir)


def _let_a_crash_lose_everything(server: postgres.Server) -> None:
    """Nothing waits for the disk: this cluster is thrown away after the tests, and no test of it pulls a plug."""
    settings = {
        "fsync": "off",
        "full_page_writes": "off",
        "synchronous_commit": "off",
        "checkpoint_timeout": "1h",
        "max_wal_size": "256MB",
    }
    superuser = make_conninfo(server.conninfo, user=SUPERUSER)
    with psycopg.connect(superuser, autocommit=True) as connection:
        for name, value in settings.items():
            change = sql.SQL("ALTER SYSTEM SET {} = {}")
            connection.execute(change.format(sql.Identifier(name), sql.Literal(value)))
        connection.execute("SELECT pg_reload_conf()")


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


@pytest.fixture(scope="session")
def no_fleet(
    postgres_server: postgres.Server, migrated_template: str
) -> Iterator[Prepared]:
    """A token of each scope and nothing else."""
    from tests.integration.api_harness import prepared

    with prepared(postgres_server, migrated_template, lambda _: None) as found:
        yield found


@pytest.fixture(scope="session")
def small_fleet(
    postgres_server: postgres.Server, migrated_template: str
) -> Iterator[Prepared]:
    """The objects of `fill`."""
    from tests.integration.api_harness import fill, prepared

    with prepared(postgres_server, migrated_template, fill) as found:
        yield found


@pytest.fixture(scope="session")
def demo_fleet(
    postgres_server: postgres.Server, migrated_template: str
) -> Iterator[Prepared]:
    """What `fill_demo` makes, after ten minutes."""
    from tests.browser.dashboards import fill_demo
    from tests.integration.api_harness import prepared

    with prepared(postgres_server, migrated_template, fill_demo) as found:
        yield found


@contextmanager
def copied_database(server: postgres.Server, *, template: str) -> Iterator[str]:
    """The SQLAlchemy URL of a uniquely named copy of a database without connections; dropped at the end."""
    name = f"t_{uuid4().hex}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
        sql.Identifier(name), sql.Identifier(template)
    )
    drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        _executed(connection, create)
        try:
            yield server.database_url(name)
        finally:
            _executed(connection, drop)


def _executed(connection: psycopg.Connection, change: sql.Composed) -> None:
    """As soon as the last connection to the database has ended: PostgreSQL itself waits for that for 5 s only."""

    def is_done() -> bool:
        try:
            connection.execute(change)
        except psycopg.errors.ObjectInUse:
            return False
        return True

    until(is_done)
