"""Alembic's entry: every revision in its own transaction, under an advisory lock, with limits on waiting."""

from alembic import context
from sqlalchemy import Connection, create_engine, pool, text

# One key for every Plimsoll program that migrates: "plimsoll" in ASCII, cut to 63 bits.
MIGRATION_LOCK = 0x706C696D736F6C6C
# A second migrator waits for the first one; a fresh database takes about a second.
LOCK_WAIT = "120s"
# A revision gives up rather than queue behind a long reader and block everybody else.
LOCK_TIMEOUT = "5s"
STATEMENT_TIMEOUT = "600s"


def run_online(connection: Connection) -> None:
    """Apply the wanted revisions while holding the migration lock."""
    connection.execute(text(f"SET lock_timeout = '{LOCK_WAIT}'"))
    connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": MIGRATION_LOCK})
    connection.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT}'"))
    connection.execute(text(f"SET statement_timeout = '{STATEMENT_TIMEOUT}'"))
    connection.commit()
    try:
        context.configure(connection=connection, transaction_per_migration=True)
        with context.begin_transaction():
            context.run_migrations()
    finally:
        connection.rollback()
        connection.execute(
            text("SELECT pg_advisory_unlock(:key)"), {"key": MIGRATION_LOCK}
        )
        connection.commit()


engine = create_engine(context.config.attributes["url"], poolclass=pool.NullPool)
with engine.connect() as opened:
    run_online(opened)
engine.dispose()
