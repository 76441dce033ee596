"""Brings a database to the schema that this program was written for, and says where it stands.

The revisions lie in `migrations/` of a checkout, and in `app/db/base/_migrations` of an installed package.
"""

import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, pool

from app.base.errors import PlimsollError

CHECKOUT = Path(__file__).resolve().parents[3] / "migrations"
PACKAGED = Path(__file__).resolve().parent / "_migrations"

# Alembic keeps the running environment in module globals; other processes are kept off by the advisory lock.
_alembic_runs = threading.Lock()


class UnknownRevision(PlimsollError):
    """The database has a revision that this program cannot start from."""


def upgrade(url: str, revision: str = "head") -> None:
    """Apply every revision up to `revision`; does nothing when it is there already. Blocks: run it in a thread.

    Raises UnknownRevision.
    """
    # Alembic itself would fail with a stack trace that does not tell people what to do.
    why = why_unknown(current(url))
    if why is not None:
        raise UnknownRevision(why)
    with _alembic_runs:
        command.upgrade(_config(url), revision)


def current(url: str) -> str | None:
    """The revision that the database has; None for an empty one."""
    # Asked once, from a thread: a pool would only keep the connection open.
    engine = create_engine(url, poolclass=pool.NullPool)
    try:
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()


def head() -> str | None:
    """The revision that this program needs."""
    return ScriptDirectory.from_config(_config("")).get_current_head()


def check(url: str) -> str | None:
    """None when the database has the revision that this program needs; else what is wrong and what to do."""
    has, needs = current(url), head()
    if has == needs:
        return None
    why = why_unknown(has)
    if why is not None:
        return why
    return f"the database has revision {has or 'none'}, but this program needs {needs}; run `plimsoll db upgrade`"


def why_unknown(has: str | None) -> str | None:
    """None where this program knows the revision, or the database has none; else what is wrong and what to do."""
    scripts = ScriptDirectory.from_config(_config(""))
    if has is None or has in {script.revision for script in scripts.walk_revisions()}:
        return None
    # Revisions are numbered, so the order of their names is the order in which they were made.
    first = scripts.get_base()
    if first is not None and has < first:
        return (
            f"the database has revision {has}: it was made before 0.1.0 "
            "and cannot be upgraded; start with an empty database, or with another data directory"
        )
    return (
        f"the database has revision {has}, which is unknown to this program; "
        f"run a newer version (this one has {scripts.get_current_head()})"
    )


def _config(url: str) -> Config:
    config = Config()
    config.set_main_option(
        # A checkout comes first: a developer's new revision must count without being packaged.
        "script_location",
        str(CHECKOUT if (CHECKOUT / "env.py").exists() else PACKAGED),
    )
    config.attributes["url"] = url
    return config
