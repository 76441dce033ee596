"""Brings a database to the schema that this program was written for, and says where it stands.

The revisions lie in `migrations/` of a checkout, and in `app/db/base/_migrations` of an installed package, each in a
file that begins with its number. Alembic is loaded only where something is upgraded: every start asks for revisions.
"""

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import create_engine, inspect, pool, text

from app.base.errors import PlimsollError

if TYPE_CHECKING:
    from alembic.config import Config

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
    from alembic import command

    with _alembic_runs:
        command.upgrade(_config(url), revision)


def current(url: str) -> str | None:
    """The revision that the database has; None for an empty one."""
    # Asked once, from a thread: a pool would only keep the connection open.
    engine = create_engine(url, poolclass=pool.NullPool)
    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return None
            # Empty after a downgrade to the base.
            found = connection.execute(text("SELECT version_num FROM alembic_version"))
            return found.scalar_one_or_none()
    finally:
        engine.dispose()


def head() -> str:
    """The revision that this program needs."""
    return _revisions()[-1]


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
    revisions = _revisions()
    if has is None or has in revisions:
        return None
    if has < revisions[0]:
        return (
            f"the database has revision {has}: it was made before 0.1.0 "
            "and cannot be upgraded; start with an empty database, or with another data directory"
        )
    return (
        f"the database has revision {has}, which is unknown to this program; "
        f"run a newer version (this one has {revisions[-1]})"
    )


def _revisions() -> list[str]:
    """Numbers, in the order in which they were made."""
    files = (_folder() / "versions").glob("[0-9]*_*.py")
    return sorted(file.name.partition("_")[0] for file in files)


def _folder() -> Path:
    # A checkout comes first: a developer's new revision must count without being packaged.
    return CHECKOUT if (CHECKOUT / "env.py").exists() else PACKAGED


def _config(url: str) -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_folder()))
    config.attributes["url"] = url
    return config
