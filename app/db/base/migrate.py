"""Brings a database to the schema that this program was written for, and says where it stands.

The revisions lie in `migrations/` of a checkout, and in `app/db/_migrations` of an installed package.
"""

import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, pool

CHECKOUT = Path(__file__).resolve().parents[3] / "migrations"
PACKAGED = Path(__file__).resolve().parent / "_migrations"

# Alembic keeps the running environment in module globals; other processes are kept off by the advisory lock.
_alembic_runs = threading.Lock()


def upgrade(url: str, revision: str = "head") -> None:
    """Apply every revision up to `revision`; does nothing when it is there already. Blocks: run it in a thread."""
    with _alembic_runs:
        command.upgrade(_config(url), revision)


def downgrade(url: str, revision: str) -> None:
    """Undo revisions down to `revision` ("base" = all). Deletes what they held."""
    with _alembic_runs:
        command.downgrade(_config(url), revision)


def current(url: str) -> str | None:
    """The revision that the database has; None for an empty one."""
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
    known = {script.revision for script in ScriptDirectory.from_config(_config("")).walk_revisions()}
    if has is not None and has not in known:
        return f"the database has revision {has}, which this program does not know; run a newer program (needs {needs})"
    return f"the database has revision {has or 'none'}, this program needs {needs}; run `plimsoll db upgrade`"


def _config(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(CHECKOUT if (CHECKOUT / "env.py").exists() else PACKAGED))
    config.attributes["url"] = url
    return config
